"""The tables of states: nothing leaves an end but by the ways that are listed here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.platform.store.states import (
    CHECKPOINT,
    EXPERIMENT,
    RUN,
    CheckpointState,
    ExperimentState,
    RunState,
    step,
)

TABLES: dict[Any, Mapping[Any, frozenset[Any]]] = {
    ExperimentState: EXPERIMENT,
    RunState: RUN,
    CheckpointState: CHECKPOINT,
}

# Kind → final state → what may follow it. An experiment that is run again goes on.
ENDS: dict[Any, dict[str, set[str]]] = {
    RunState: {"COMPLETED": set(), "KILLED": {"RUNNING"}, "ERROR": {"RUNNING"}},
    CheckpointState: {"COMPLETED": {"DELETED"}, "ERROR": {"DELETED"}, "DELETED": set()},
    ExperimentState: {
        "COMPLETED": set(),
        "STOPPED": {"QUEUED"},
        "KILLED": {"QUEUED"},
        "ERROR": {"QUEUED"},
    },
}

kinds = st.sampled_from(list(TABLES))
pairs = kinds.flatmap(lambda kind: st.tuples(st.sampled_from(kind), st.sampled_from(kind)))
walks = kinds.flatmap(lambda kind: st.lists(st.sampled_from(list(kind)), min_size=1, max_size=12))


@given(pairs)
def test_a_step_is_in_the_table_or_refused(pair: tuple[Any, Any]) -> None:
    before, after = pair
    table = TABLES[type(before)]
    if after == before or after in table[before]:
        assert step(table, before, after, "it") is after
    else:
        with pytest.raises(Refused, match="it: "):
            step(table, before, after, "it")


@given(walks)
def test_nothing_leaves_an_end_but_by_the_ways_listed(walk: list[Any]) -> None:
    """A walk of asked-for states, refusals left out, passes no end but as `ENDS` says."""
    table = TABLES[type(walk[0])]
    path = [walk[0]]
    for asked in walk[1:]:
        try:
            path.append(step(table, path[-1], asked, "it"))
        except Refused:
            continue
    for before, after in pairwise(path):
        if before in ENDS[type(before)] and after != before:
            assert after in ENDS[type(before)][before]


def test_only_what_is_uploaded_becomes_a_checkpoint() -> None:
    ways = {before for before, after in CHECKPOINT.items() if CheckpointState.COMPLETED in after}
    assert ways == {CheckpointState.ACTIVE}
