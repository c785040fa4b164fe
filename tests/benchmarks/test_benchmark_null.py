"""The simulation of corpora without effect: few are found, and a large effect is."""

from __future__ import annotations

import pytest

from benchmarks import null


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["equal", "length-dependent"])
def test_few_corpora_without_effect_have_a_small_p(shape: str) -> None:
    by_record, by_row = null.null(shape, 25)
    assert by_record <= 0.2
    assert 0 <= by_row <= 1


@pytest.mark.slow
def test_a_large_effect_is_found_and_none_is_not() -> None:
    [large] = null.runs(1, 4.0)
    [none] = null.runs(1, 0.0)
    assert large is not None
    assert none is None
