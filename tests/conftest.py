"""Settings that all tests share, and how ``pytest -n 2`` deals them to its two processes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# The time of one example says nothing on a machine that other work shares.
settings.register_profile("govray", deadline=None)
settings.load_profile("govray")

ON_RAY = (
    "tests/benchmarks/",
    "tests/cli/test_command.py",
    "tests/cli/test_demo.py",
    "tests/data/",
    "tests/faults/",
    "tests/service/test_serve_app.py",
    "tests/train/",
    "tests/tune/",
)
"""Tests that start a Ray cluster, or all the processes that the machine has room for."""


class TwoLanes(LoadScopeScheduling):
    """One process runs what is `ON_RAY`, in order: two Ray clusters on one machine want the same
    ports. The other takes the rest, file by file, since module fixtures are dear."""

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if nodeid.startswith(ON_RAY) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoLanes:
    """The scheduler of ``pytest -n 2``."""
    return TwoLanes(config, log)
