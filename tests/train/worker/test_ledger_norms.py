"""Gradient norms on their way into the ledger: whole groups, permitted groups, one order."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.policy.route import Route
from govray.governance.record.ledger import (
    MAX_SQUARED_NORM,
    CorpusUse,
    GradientNorms,
    Leaf,
    Ledger,
    read_leaves,
)
from govray.train.worker.recorder import gradient_norms

GROUPS = ("embedding", "block.0", "head")
TRUNK = Route(dict.fromkeys(GROUPS, 1.0))
UPPER = Route({"head": 0.5})
OWN = Route({}, "acme", 2)
ROUTES = {route.digest: route for route in (TRUNK, UPPER, OWN)}
STREAMS = {"alpha": TRUNK, "beta": TRUNK, "gamma": UPPER, "acme": OWN}
PIECES: list[tuple[int, str, dict[str, int]]] = [
    (1, UPPER.digest, {"gamma": 1}),
    (0, TRUNK.digest, {"beta": 2}),
    (0, TRUNK.digest, {"alpha": 1, "beta": 1}),
    (1, OWN.digest, {"acme": 1}),
]
SQUARES = {
    (corpus, group): 1.0 + len(corpus)
    for corpus, route in STREAMS.items()
    for group in route.groups
}

UNMEASURED = [math.nan, math.inf, -math.inf, -1.0, MAX_SQUARED_NORM * 2]


def leaf(branch: int = 0, step: int = 0) -> Leaf:
    return Leaf(
        branch=branch,
        step=step,
        world_size=2,
        policy=TRUNK.digest,
        plan=TRUNK.digest,
        streams={},
        corpora={corpus: CorpusUse(rows=1, targets=1) for corpus in STREAMS},
    )


def sample(**changes: Any) -> GradientNorms | None:
    arguments = {"leaf": leaf(), "pieces": PIECES, "squares": SQUARES, "routes": ROUTES}
    return gradient_norms(**arguments | changes)


def measured(norms: GradientNorms | None) -> dict[tuple[str, str], float]:
    assert norms is not None
    return {
        (corpus, group): square
        for corpus, groups in norms.squared_norms.items()
        for group, square in groups.items()
    }


def test_everything_measured_is_written_behind_its_step() -> None:
    norms = sample(leaf=leaf(branch=2, step=50))
    assert norms is not None
    assert (norms.branch, norms.step) == (2, 50)
    assert measured(norms) == SQUARES
    # Sorted by rank and stream; a stream's passes stay in their order.
    trunk = [each.corpora for each in norms.passes if each.stream == TRUNK.digest]
    assert trunk == [{"beta": 2}, {"alpha": 1, "beta": 1}]
    assert [each.rank for each in norms.passes] == [0, 0, 1, 1]
    following = sample()
    assert following is not None
    assert read_leaves(Ledger("r", [leaf(), following]).data) == (leaf(), following)


@given(
    st.dictionaries(
        st.sampled_from(sorted(SQUARES)), st.none() | st.sampled_from(UNMEASURED), max_size=4
    )
)
def test_a_group_is_measured_for_all_or_for_none(
    broken: dict[tuple[str, str], float | None],
) -> None:
    squares = {place: value for place, value in (SQUARES | broken).items() if value is not None}
    norms = sample(squares=squares)
    lost = {group for _, group in broken}
    kept = {place: value for place, value in SQUARES.items() if place[1] not in lost}
    assert (measured(norms) if norms else {}) == kept


def test_nothing_measured_is_no_leaf() -> None:
    assert sample(squares={}) is None


@pytest.mark.parametrize("square", [0.0, 1.0, math.nan])
@pytest.mark.parametrize("place", [("gamma", "embedding"), ("acme", "head"), ("zeta", "head")])
def test_a_gradient_where_none_is_permitted_stops_the_run(
    place: tuple[str, str], square: float
) -> None:
    with pytest.raises(Refused, match=f"{place[0]} in {place[1]}"):
        sample(squares=SQUARES | {place: square})
