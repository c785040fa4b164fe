"""The permutation test: exact under the hypothesis, sensitive otherwise, and by record."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from govray.engine.memorization.permutation_e_value import PERMUTATIONS
from govray.engine.memorization.permutation_e_value import p_values as p_values_by_record


def p_values(
    probe: Tensor, reserve: Tensor, *key: object, permutations: int = PERMUTATIONS
) -> list[float]:
    """Each row a record of its own."""
    units = range(len(probe)), range(len(reserve))
    return p_values_by_record(probe, reserve, *units, *key, permutations=permutations)


finite = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(finite, min_size=1, max_size=12),
    st.lists(finite, min_size=1, max_size=12),
    st.integers(0, 5),
)
@settings(max_examples=60)
def test_p_is_one_of_the_possible_values_and_repeats(
    probe: list[float], reserve: list[float], key: int
) -> None:
    sides = torch.tensor(probe).double()[:, None], torch.tensor(reserve).double()[:, None]
    (p,) = p_values(*sides, key, permutations=99)
    assert round(p * 100) in range(1, 101)
    assert p * 100 == pytest.approx(round(p * 100))
    assert p_values(*sides, key, permutations=99) == [p]


def false_alarms(by_record: bool, lengths: tuple[int, int]) -> float:
    """Share of 200 pairs from one distribution with p of at most .05.

    A side is 32 rows drawn from records of unequal lengths, rows of a record being alike;
    the reserve is drawn from fewer.
    """
    alarms = 0
    for trial in range(200):
        sides, units = [], []
        generator = torch.Generator().manual_seed(trial)
        for records in lengths:
            rows = torch.randint(1, 8, (records,), generator=generator)
            index = torch.arange(records).repeat_interleave(rows)
            means = torch.randn(records, 1, generator=generator, dtype=torch.float64)
            picked = index[torch.randperm(len(index), generator=generator)[:32]]
            noise = torch.randn(len(picked), 1, generator=generator, dtype=torch.float64)
            sides.append(means[picked] + 0.3 * noise)
            units.append(picked.tolist() if by_record else range(len(picked)))
        alarms += p_values_by_record(*sides, *units, trial, permutations=199)[0] <= 0.05
    return alarms / 200


@pytest.mark.parametrize("lengths", [(200, 200), (200, 20), (12, 12)])
def test_few_false_alarms_when_records_are_relabelled(lengths: tuple[int, int]) -> None:
    assert false_alarms(True, lengths) <= 0.1


def test_many_when_rows_are() -> None:
    """The control."""
    assert false_alarms(False, (12, 12)) >= 0.2
