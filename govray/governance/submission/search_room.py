"""How many workers a search may have at once, written into its file where the file is silent.

A queue counts a search's slots before it starts, and the search obeys its file. So both read one
number, and the record of the search has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from govray.governance.submission.yaml_overrides import Value, below


def with_room(config: Mapping[str, Any], slots: int | None) -> Value:
    """``config`` with ``resources.max_workers``, if it is a search that states no limit.

    One trial has room in any case. A file that is not as it should be stays as it is: who
    validates it says what is wrong.

    Args:
        slots: What the search may hold; None: nobody knows, and nothing is added.
    """
    search, resources = config.get("search"), config.get("resources", {})
    if slots is None or not isinstance(search, dict) or not isinstance(resources, dict):
        return dict(config)
    if "max_concurrent_trials" in search or "max_workers" in resources:
        return dict(config)
    workers = resources.get("num_workers", 1)
    most = workers[-1] if isinstance(workers, list) and workers else workers
    if type(most) is not int:
        return dict(config)
    return below(config, {"resources": {"max_workers": max(slots, most)}})


def stated_pool(config: Mapping[str, Any]) -> str | None:
    """The pool that a file names; None if it names none."""
    resources = config.get("resources")
    pool = resources.get("pool") if isinstance(resources, dict) else None
    return pool if isinstance(pool, str) else None
