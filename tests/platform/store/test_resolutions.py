"""A line of numbers in several resolutions: what each of them shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.platform.indexing import run_rows as module
from govray.platform.indexing.run_rows import COARSE, resolutions

LONG = 200_000


def walk(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return np.arange(count), np.cumsum(draw.normal(size=count))


def test_a_long_line_is_drawn_from_a_thousand_numbers_and_parts_from_as_many() -> None:
    steps, values = walk(LONG)
    found, halved = resolutions(steps, values)
    assert found.max() == halved == 8
    for r in range(6):
        shown = (found <= r) & (steps >= LONG - (LONG >> r))
        assert COARSE / 3 < shown.sum() <= 1.2 * COARSE
        assert shown[-1]
        for stretch in np.array_split(np.arange(LONG), 100)[-3:]:
            at = stretch[shown[stretch]]
            assert abs(values[at].max() - values[stretch].max()) < 60  # within a pixel's noise
    coarse = values[found == 0]
    assert (coarse.min(), coarse.max()) == (values.min(), values.max())
    assert found[0] == 0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 1.0, 2.0])), max_size=120))
def test_extremes_and_ends_are_in_the_coarsest(line: list[tuple[int, float]]) -> None:
    steps = np.cumsum([gap for gap, _ in line], dtype=np.int64)
    values = np.array([value for _, value in line])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COARSE", 8)
        found, _ = resolutions(steps, values)
    assert found.shape == steps.shape
    if line:
        coarse = values[found == 0]
        assert {values.min(), values.max()} <= {*coarse}
        assert found[0] == found[-1] == 0
        # Nothing beyond: two of each stretch, the first, and what the newest stretch has.
        assert len(coarse) <= max(8, 2 * 120)
