"""A plugin of pytest for `tests.mutants`: the first failure, within a bound of test time."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

NEAREST = 2
BOUND_S, REPORT = float(os.environ["BOUND_S"]), Path(os.environ["REPORT"])

_failed: list[str] = []
_began: list[float] = []


def tell(over: bool = False) -> None:
    """Write what was found so far."""
    seconds = time.monotonic() - _began[0] if _began else 0.0
    REPORT.write_text(json.dumps({"failed": _failed, "seconds": seconds, "over": over}))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_ray = [item for item in items if item.get_closest_marker("ray")]
    config.hook.pytest_deselected(items=on_ray)
    left = [item for item in items if item not in on_ray]
    near = [*dict.fromkeys(item.path for item in left)][:NEAREST]

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        browser, ranks = (item.get_closest_marker(mark) for mark in ("browser", "ranks"))
        return browser is not None, item.path not in near, ranks is not None

    items[:] = sorted(left, key=place)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def pytest_runtest_logstart() -> None:
    if not _began:
        _began.append(time.monotonic())
        timer = threading.Timer(BOUND_S, lambda: (tell(over=True), os._exit(1)))
        timer.daemon = True
        timer.start()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    tell()
