"""Measures of one corpus: what deviates is found at its layer, and what does not is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.memorization.deviation import measures, reserve_spread
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
    probe: RowScores, reserve: RowScores, statistic: Statistic = "composite"
) -> dict[str, Measure]:
    found = measures(
        "notes",
        probe,
        reserve,
        probe_units=[f"p{row}" for row in range(len(probe))],
        reserve_units=[f"r{row}" for row in range(len(reserve))],
        statistic=statistic,
        key=(0, 100),
    )
    assert [each.layer for each in found] == sorted(LAYERS)
    return {each.layer: each for each in found}


@each_row("statistic", STATISTICS)
def test_a_layer_that_knows_the_rows_deviates_and_the_others_do_not(statistic: Statistic) -> None:
    found = measured(known_at_the_head(drawn(32, 1), 3.0), drawn(32, 2), statistic)
    assert found["head"].p == 1 / 2000
    assert found["head"].deviation > 1.5
    for layer in ("block.0", "block.1"):
        assert found[layer].p > 0.01
        assert abs(found[layer].deviation) < 1


def test_a_clean_corpus_of_four_reserve_rows_has_no_deviation_of_hundreds() -> None:
    worst = 0.0
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(36, generator=generator, dtype=torch.float64)
        ours, theirs = rows[:32], rows[32:]
        worst = max(
            worst, float((ours.mean() - theirs.mean()).abs() / reserve_spread(ours, theirs))
        )
    assert worst < 4


def test_e_values_are_of_bands_and_need_one_row_of_each_record() -> None:
    known = known_at_the_head(drawn(32, 1), 3.0)
    given = {"probe_units": list(range(32)), "reserve_units": list(range(32, 64))}
    made = {"statistic": "composite", "key": (0,), "bands": {"head": (-1.0, 1.0)}}
    found = {m.layer: m.e for m in measures("notes", known, drawn(32, 2), **given, **made)}
    assert found["block.0"] is found["block.1"] is None
    assert found["head"] is not None
    assert found["head"] > 1e6
    wide = measures("notes", known, drawn(32, 2), **given, **made | {"bands": {"head": (-9, 9)}})
    assert wide[-1].e < 1
    untested = measures("notes", known, drawn(32, 2), **given, **made, tested=False)
    assert untested[-1].e == 1
    twice = given | {"probe_units": [0, *range(31)]}
    with pytest.raises(UsageError, match="one row of each record"):
        measures("notes", known, drawn(32, 2), **twice, **made)


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
