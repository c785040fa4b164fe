"""Which steps a replay runs, from where, with how many workers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.train.replay.segments import Segment, last_branch, segments, start_and_stop
from tests.support.leaves import leaf, norms


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_segments_cover_the_steps_with_their_world_sizes(
    sizes: list[int], data: st.DataObject
) -> None:
    leaves = [leaf(step, world=size) for step, size in enumerate(sizes)]
    start = data.draw(st.integers(0, len(sizes) - 1))
    stop = data.draw(st.integers(start + 1, len(sizes)))
    found = segments(leaves, start, stop)
    assert [size for part in found for size in [part.world_size] * (part.stop - part.start)] == (
        sizes[start:stop]
    )
    assert [part.stop for part in found[:-1]] == [part.start for part in found[1:]]
    assert all(one.world_size != two.world_size for one, two in itertools.pairwise(found))


def test_gradient_norms_are_no_steps_and_the_newest_branch_counts() -> None:
    rolled_back = leaf(1, world=1).model_copy(update={"branch": 1})
    ledger = [leaf(0), norms(0), leaf(1), rolled_back]
    assert last_branch(ledger) == (leaf(0), rolled_back)
    assert segments(ledger, 0, 2) == (Segment(0, 1, 2), Segment(1, 2, 1))


@pytest.mark.parametrize(
    ("wanted", "kept", "expected"),
    [
        (None, [2, 4, 6], (0, 6)),
        ((2, 4), [2, 4, 6], (2, 4)),
        ((3, 5), [2, 4, 6], (2, 5)),  # from the newest at or before
        ((1, 4), [2, 4, 6], (0, 4)),  # the beginning needs no commit
        ((4, 6), [6], (0, 6)),
    ],
)
def test_a_replay_starts_at_the_newest_kept_state(
    wanted: tuple[int, int] | None, kept: list[int], expected: tuple[int, int]
) -> None:
    assert start_and_stop(wanted, kept) == expected
