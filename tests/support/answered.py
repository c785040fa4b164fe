"""Statuses that a service's description has and that no test of the platform saw answered.

One that never occurs is a claim that nobody holds. A run of all tests of the platform fails by one.
After a failure, a skip or with a part of these tests nothing is compared.

What layers around the routes answer, and what follows from a caller or a body, is left out. Its
own tests ask a few routes for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DECLARED, ANSWERED = "statuses declared", "statuses answered"
"""What a worker of pytest-xdist tells of."""

told: dict[str, set[str]] = {DECLARED: set(), ANSWERED: set()}
"""Each as `GET /v1/runs 200`."""

_OF_ALL = ("400", "401", "403", "413", "421", "422", "429", "500", "503")
_PLATFORM = Path("tests", "platform")
_PARTS = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
"""Options by which a run leaves tests out."""


def unanswered(declared: set[str], answered: set[str]) -> list[str]:
    return sorted(each for each in declared - answered if not each.endswith(_OF_ALL))


def _whole(config: pytest.Config) -> bool:
    """Whether all tests of the platform were asked for, but its stories, and none was skipped."""
    asked = [Path(config.invocation_params.dir, each).resolve() for each in config.args]
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return (
        any((config.rootpath / _PLATFORM).is_relative_to(each) for each in asked)
        and not any(config.getoption(each, False) for each in _PARTS)
        and config.getoption("stories") is None
        and not any(
            _PLATFORM.as_posix() in each.nodeid for each in reporter.stats.get("skipped", ())
        )
    )


def _found(config: pytest.Config, status: int) -> list[str]:
    compared = status == pytest.ExitCode.OK and _whole(config)
    return unanswered(told[DECLARED], told[ANSWERED]) if compared else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that prints, and this one compares."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update({key: sorted(names) for key, names in told.items()})
    elif _found(session.config, session.exitstatus):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The process that prints hears from a worker."""
    for key, names in told.items():
        names.update(getattr(node, "workeroutput", {}).get(key, ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    for each in _found(config, exitstatus):
        terminalreporter.line(f"described, and answered in no test of the platform: {each}")
