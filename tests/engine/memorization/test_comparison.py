"""Measures of one corpus: what is known shows at its layer, and what is not does not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.memorization.comparison import measures
from govray.engine.memorization.probe_sharing import most_rows, own_probe_rows
from govray.engine.memorization.scores import RowScores
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Statistic
from govray.governance.record.entropy_profile import Measure
from tests.support.table import each_row

LAYERS = ("block.0", "block.1", "head")
STATISTICS: tuple[Statistic, ...] = ("entropy", "surprise", "min_k", "composite")


def drawn(rows: int, seed: int) -> RowScores:
    table = torch.randn(rows, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return RowScores.of_table(LAYERS, table)


def known_at_the_head(scores: RowScores, shift: float) -> RowScores:
    at = torch.tensor([[0.0], [0.0], [shift]], dtype=torch.float64)
    return RowScores(LAYERS, scores.entropy - at, scores.surprise - at, scores.min_k + at)


def measured(
    probe: RowScores, reserve: RowScores, statistic: Statistic = "composite", key: int = 0
) -> dict[str, Measure]:
    found = measures(
        "notes",
        probe,
        reserve,
        probe_units=[f"p{row}" for row in range(len(probe))],
        reserve_units=[f"r{row}" for row in range(len(reserve))],
        statistic=statistic,
        key=(key, 100),
    )
    assert [each.layer for each in found] == sorted(LAYERS)
    return {each.layer: each for each in found}


@each_row("statistic", STATISTICS)
def test_a_layer_that_knows_the_rows_shows_it_and_the_others_do_not(statistic: Statistic) -> None:
    found = measured(known_at_the_head(drawn(32, 1), 3.0), drawn(32, 2), statistic)
    assert found["head"].e(1.5) > 1e6
    for layer in ("block.0", "block.1"):
        assert found[layer].e(1.0) < 20
    less = measured(known_at_the_head(drawn(32, 1), -3.0), drawn(32, 2), statistic)
    assert less["head"].e(1.5) < 1


def test_ties_are_broken_without_regard_to_the_side() -> None:
    flat = RowScores(LAYERS, *(torch.zeros(3, 64, dtype=torch.float64) for _ in range(3)))
    halves = [measured(flat[:48], flat[48:], "entropy", key=key)["head"].top[5] for key in range(9)]
    assert len(set(halves)) > 1  # the key decides
    assert 16 < min(halves) <= max(halves) < 32  # by side, all of the best half would be trained


def test_rows_far_out_count_as_one_record_each() -> None:
    known, reserve = known_at_the_head(drawn(32, 1), 3.0), drawn(32, 2)
    garbage = known_at_the_head(drawn(1, 3), -1e6)
    with_garbage = RowScores.of_table(LAYERS, torch.cat([known.table()[:31], garbage.table()]))
    assert measured(with_garbage, reserve, "min_k")["head"].e(1.5) > 1e4


def test_a_record_counts_once_by_the_mean_of_its_rows() -> None:
    known = known_at_the_head(drawn(32, 1), 3.0)
    made = {"reserve_units": list(range(32, 64)), "statistic": "min_k", "key": (0,)}
    pairs = [row // 2 for row in range(32)]
    found = measures("notes", known, drawn(32, 2), probe_units=pairs, **made)[-1]
    means = RowScores.of_table(LAYERS, known.table().view(16, 2, -1).mean(1))
    assert found == measures("notes", means, drawn(32, 2), probe_units=range(16), **made)[-1]
    assert found.probe.records == 16


def test_records_drawn_by_their_length_are_no_evidence() -> None:
    known = known_at_the_head(drawn(32, 1), 3.0)
    made = {"probe_units": range(32), "reserve_units": range(32, 64), "key": (0,)}
    found = measures("notes", known, drawn(32, 2), statistic="min_k", tested=False, **made)[-1]
    assert found.e(1.5) == 1


def test_a_record_on_both_sides_and_an_empty_side_are_refused() -> None:
    both = {"statistic": "entropy", "key": (0,)}
    with pytest.raises(UsageError, match="record a is among"):
        measures("notes", drawn(1, 1), drawn(1, 2), probe_units=["a"], reserve_units=["a"], **both)
    with pytest.raises(UsageError, match="reserve rows"):
        measures("notes", drawn(1, 1), drawn(0, 2), probe_units=["a"], reserve_units=[], **both)


@given(st.integers(0, 200), st.integers(1, 17))
def test_ranks_share_a_probe(rows: int, world: int) -> None:
    parts = [own_probe_rows(rows, rank, world) for rank in range(world)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) == most_rows(rows, world)
