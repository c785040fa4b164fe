"""How many workers a search may have at once, written into its file where the file is silent.

A queue counts a search's slots before it starts, and the search obeys its file. So both read one
number, and the record of the search has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from govray.governance.submission.yaml_overrides import Value, below


def lacks_room(config: Mapping[str, Any]) -> bool:
    """Whether it is a search that states no limit.
    A file that is not as it should be lacks none: who validates it says what is wrong."""
    search, resources = config.get("search"), config.get("resources", {})
    return (
        isinstance(search, dict)
        and isinstance(resources, dict)
        and "max_concurrent_trials" not in search
        and "max_workers" not in resources
        and type(_workers(resources)) is int
    )


def with_room(config: Mapping[str, Any], slots: int) -> Value:
    """A search that `lacks_room`, with ``resources.max_workers``. One trial always has room."""
    most = max(slots, _workers(config.get("resources", {})))
    return below(config, {"resources": {"max_workers": most}})


def _workers(resources: Mapping[str, Any]) -> Any:
    """The most workers of one trial, as the file has it."""
    workers = resources.get("num_workers", 1)
    return workers[-1] if isinstance(workers, list) and workers else workers


def stated_pool(config: Mapping[str, Any]) -> str | None:
    """The pool that a file names; None if it names none."""
    resources = config.get("resources")
    pool = resources.get("pool") if isinstance(resources, dict) else None
    return pool if isinstance(pool, str) else None
