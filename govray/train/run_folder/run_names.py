"""The names of runs that are not named after an experiment: a search's trials, and replays.

A run's name is that of its ledger and of what is signed, so no two runs of one storage share one.
"""

from __future__ import annotations

import re

from govray.governance.formats import canonical_json

_REPLAY = re.compile(r"replay-[A-Za-z0-9-]{1,64}")


def trial_name(search: str, number: int) -> str:
    """The name of a trial, by its number; ``search`` is the folder of its search.
    A clone of it has a dot and a number more."""
    token = canonical_json.sha256(search.encode()).removeprefix("sha256:")[:8]
    return f"trial-{number:04d}-{token}"


def is_trial_of(search: str, name: str) -> bool:
    """Whether a run is called as a trial of this search is, or a clone of one."""
    found = re.fullmatch(r"trial-([0-9]{4,9})-[0-9a-f]{8}(?:\.[0-9]{1,9})?", name)
    return found is not None and name.partition(".")[0] == trial_name(search, int(found[1]))


def is_replay(name: str) -> bool:
    """Whether a run is called as a replay is."""
    return _REPLAY.fullmatch(name) is not None
