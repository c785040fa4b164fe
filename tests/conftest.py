"""Settings that all tests share, the marks that come by themselves, and how ``pytest -n 2`` deals.

`MARKS` gives a test its mark by what it asks for: a Ray cluster, a browser, a database server. What
starts a cluster in a process of its own bears ``pytest.mark.ray`` by hand; without it, that process
finds an address where no cluster is, and the test fails.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings

# The time of one example says nothing on a machine that other work shares.
settings.register_profile("govray", deadline=None)
settings.load_profile("govray")

MARKS = {
    "ray": {"cluster", "ray_cluster"},
    "browser": {"chromium", "page"},
    "database": {"postgres"},
}
"""Mark → fixtures whose users get it."""

NO_CLUSTER = "127.0.0.1:1"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Give every test its marks and its lane.

    One process runs what is marked ``ray``, first and in order: two Ray clusters on one machine
    want the same ports. The other takes the rest, file by file, since module fixtures are dear.
    """
    for item in items:
        asked = {*getattr(item, "fixturenames", ())}
        for mark, fixtures in MARKS.items():
            if asked & fixtures:
                item.add_marker(mark)
        if item.nodeid.endswith("]") and "postgresql" in item.callspec.params.values():
            item.add_marker("database")
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("ray" if on_ray(item) else file))
    items.sort(key=lambda item: not on_ray(item))


def on_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Who is not marked ``ray`` finds no cluster and starts none."""
    if on_ray(item):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", NO_CLUSTER)
        return (yield)
