"""All methods get the same rows, and the ranks equally many."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases import ALL_CASES, CASES, EVERYTHING, UPPER_HALF, Shape, share_rows
from benchmarks.workload import Workload
from govray.errors import UsageError

TINY = Shape(blocks=2, width=8, tokens=4, rows=8, vocabulary=11)


def test_default_shares_by_hand() -> None:
    assert share_rows(CASES["mix_50_30_20"], 32) == {
        "everything": 16,
        "upper_half": 10,
        "removable": 6,
    }
    assert share_rows(CASES["upper_90"], 32) == {"everything": 3, "upper_half": 29}


@given(case=st.sampled_from(sorted(CASES)), total=st.integers(10, 5000))
def test_shares_add_up_and_are_off_by_less_than_a_row(case: str, total: int) -> None:
    counts = share_rows(CASES[case], total)
    assert sum(counts.values()) == total
    for profile, share in CASES[case].items():
        assert abs(counts[profile] - share * total) < 1


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        share_rows(CASES["upper_90"], 4)


@given(case=st.sampled_from(sorted(ALL_CASES)), world=st.integers(2, 5), step=st.integers(0, 100))
def test_rows_are_dealt_evenly_and_completely(case: str, world: int, step: int) -> None:
    ranks = [Workload(case, TINY, rank, world) for rank in range(world)]
    batches = [workload.batch(step) for workload in ranks]
    assert {len(batch.tokens) for batch in batches} == {TINY.rows}
    assert sum(ranks[0].counts(step).values()) == TINY.rows * world
    for profile, count in ranks[0].counts(step).items():
        held = sorted(place for batch in batches for place in batch.positions[profile])
        assert held == list(range(count))
        sizes = [len(batch.positions[profile]) for batch in batches]
        assert max(sizes) - min(sizes) <= 1
        for batch in batches:
            assert len(batch.rows(profile)["tokens"]) == len(batch.positions[profile])


def test_a_step_has_the_same_rows_whoever_deals_them() -> None:
    alone = Workload("allow_all", Shape(**{**vars(TINY), "rows": 16}), 0, 1).batch(3)
    two = [Workload("allow_all", TINY, rank, 2).batch(3) for rank in (0, 1)]
    together = torch.stack([batch.tokens for batch in two], dim=1).flatten(0, 1)
    assert torch.equal(alone.tokens, together)
    assert not torch.equal(alone.tokens, Workload("allow_all", TINY, 0, 1).batch(4).tokens)


def test_targets_count_every_row_of_the_profiles_that_permit_a_group() -> None:
    workload = Workload("upper_50", TINY, 0, 2)
    assert workload.row_counts == {EVERYTHING: 8, UPPER_HALF: 8}
    assert workload.group_targets == {
        "embedding": 32,
        "block.0": 32,
        "block.1": 64,
        "final_norm": 64,
        "head": 64,
    }


def test_adapters_take_turns() -> None:
    workload = Workload("adapters_100", TINY, 0, 2)
    assert len(workload.adapters) == 100
    due = [profile for step in range(25) for profile in workload.counts(step)]
    assert due.count(EVERYTHING) == 25
    assert all(due.count(f"removable_{number}") == 2 for number in range(100))  # 25 · 8 rows


def test_two_models_of_a_workload_are_equal() -> None:
    workload = Workload("allow_all", TINY, 0, 2)
    first, second = workload.build_model(), workload.build_model()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
