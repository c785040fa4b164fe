"""The e-value: what enumeration gives, of mean 1 over all labels, and at most 1 within a band."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from govray.engine.memorization import permutation_e_value
from govray.engine.memorization.permutation_e_value import PERMUTATIONS, TILTS, e_values
from govray.engine.memorization.permutation_e_value import p_values as p_values_by_record
from govray.errors import UsageError

ends = st.floats(-2, 2)
rows = st.lists(
    st.integers(-5000, 5000).map(lambda n: n / 1000), min_size=3, max_size=9, unique=True
)


def normal(count: int, seed: int) -> Tensor:
    drawn = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


def of(ours: Tensor, theirs: Tensor, low: float = 0.0, high: float = 0.0) -> float:
    bounds = (torch.full((ours.shape[1],), end, dtype=torch.float64) for end in (low, high))
    return float(e_values(ours, theirs, *bounds)[0])


def enumerated(values: list[float], count: int) -> float:
    rows = torch.tensor(values, dtype=torch.float64)
    spread = rows.std() * (count * (len(rows) - count) / len(rows)) ** 0.5
    rows = (rows - rows.mean()) / spread
    found = 0.0
    for sign in (1, -1):
        for tilt in TILTS:
            of_set = [
                (sign * tilt * rows[list(chosen)].sum()).exp()
                for chosen in combinations(range(len(rows)), count)
            ]
            found += float(of_set[0] / torch.stack(of_set).mean())
    return found / (2 * len(TILTS))


@given(rows, st.data())
@settings(max_examples=60)
def test_the_recurrence_gives_what_enumeration_gives(
    values: list[float], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(values) - 1))
    made = torch.tensor(values, dtype=torch.float64)[:, None]
    assert of(made[:count], made[count:]) == pytest.approx(enumerated(values, count), rel=1e-6)


@given(rows, ends, ends, st.data())
@settings(max_examples=60)
def test_over_all_labels_its_mean_is_one_and_within_a_band_at_most(
    values: list[float], one: float, other: float, data: st.DataObject
) -> None:
    """So it is an e-value for whatever the values are: the labels alone are random."""
    count = data.draw(st.integers(1, len(values) - 1))
    made = torch.tensor(values, dtype=torch.float64)[:, None]
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    point, band = [], []
    for chosen in combinations(range(len(values)), count):
        ours = torch.zeros(len(values), dtype=torch.bool)
        ours[list(chosen)] = True
        point.append(of(made[ours], made[~ours]))
        band.append(of(made[ours], made[~ours], low, high))
    assert sum(point) / len(point) == pytest.approx(1, rel=1e-6)
    assert all(within <= alone * (1 + 1e-9) for within, alone in zip(band, point, strict=True))
    assert max(point) <= comb(len(values), count) * (1 + 1e-6)


def test_a_statistic_that_looks_at_the_labels_has_a_larger_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the direction is chosen after the fact."""

    def chosen_direction(ours: Tensor, theirs: Tensor, spread: Tensor) -> Tensor:
        return torch.maximum(above(ours, theirs, spread), above(-ours, -theirs, spread))

    above = permutation_e_value._above
    monkeypatch.setattr(permutation_e_value, "_above", chosen_direction)
    made = normal(8, 1)
    found = []
    for chosen in combinations(range(8), 4):
        ours = torch.zeros(8, dtype=torch.bool)
        ours[list(chosen)] = True
        found.append(of(made[ours], made[~ours]))
    assert sum(found) / len(found) > 1.3


def test_equal_values_are_no_evidence_and_an_empty_side_is_refused() -> None:
    flat = torch.full((5, 2), 0.1, dtype=torch.float64)
    assert of(flat, flat[:3]) == pytest.approx(1)
    assert of(flat, flat[:3], -1.0, 1.0) == 0
    tiny = 1e-200 * normal(9, 1)
    assert 0 < of(tiny[:4], tiny[4:]) < 100
    with pytest.raises(UsageError, match="both sides"):
        of(torch.zeros(0, 1).double(), flat[:, :1])


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
