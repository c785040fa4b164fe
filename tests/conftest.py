"""Settings that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# The time of one example says nothing on a machine that other work shares.
settings.register_profile("govray", deadline=None)
settings.load_profile("govray")

ON_RAY = {"benchmarks", "data", "faults", "train", "tune"}
"""Folders whose tests start a Ray cluster, or all the processes that the machine has room for."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the tests to the two processes of ``pytest -n 2 --dist loadgroup``.

    Two Ray clusters on one machine want the same ports, so whatever may start one is one group,
    which one process runs in order. The other takes the rest, module by module, since module
    fixtures are dear.
    """
    for item in items:
        folder = Path(item.path).parent.name
        crowded = folder in ON_RAY or item.get_closest_marker("slow") is not None
        name = "ray" if crowded else str(item.path)
        item.add_marker(pytest.mark.xdist_group(name))
