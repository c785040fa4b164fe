"""The bound on ε: the theorem's numbers, its error rate by simulation, and what it refuses."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from govray.governance.attestation.privacy_audit import (
    PrivacyAudit,
    PrivacyLevel,
    epsilon_bound,
    p_value,
    privacy_audit,
)

LEVEL = PrivacyLevel(confidence=0.95, delta=1e-5)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "printed"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_the_bound_is_the_one_that_the_paper_prints(m, r, v, delta, printed):
    found = epsilon_bound(m, r, v, delta=delta, confidence=0.95)
    assert found == pytest.approx(printed, abs=1e-3)  # Appendix D and Section 7


@given(st.integers(8, 1000), st.sampled_from([0.9, 0.95, 0.99]))
@settings(max_examples=25)
def test_with_all_guesses_right_the_bound_is_the_closed_form(m, confidence):
    q = (1 - confidence) ** (1 / m)
    expected = max(0.0, math.log(q / (1 - q)))
    assert epsilon_bound(m, m, m, delta=0, confidence=confidence) == pytest.approx(
        expected, abs=1e-8
    )


def test_random_guesses_show_nothing_as_often_as_the_confidence_says():
    """The error is at most 5 % over runs; four numbers of guesses at 5 % each would make more."""
    draw, runs, m = random.Random(0), 1000, 64
    shown = careless = 0
    for _ in range(runs):
        coins = [draw.random() < 0.5 for _ in range(m)]
        found = privacy_audit([draw.random() for _ in range(m)], coins, LEVEL)
        shown += found.epsilon > 0
        careless += any(
            p_value(m, each.guesses, each.correct, epsilon=0, delta=LEVEL.delta) < 0.05
            for each in found.tried
        )
    assert shown / runs <= 0.05
    assert careless / runs > 0.05  # the control


def test_a_bound_that_the_counts_do_not_give_is_refused():
    coins = [index % 2 == 0 for index in range(32)]
    found = privacy_audit([float(not coin) for coin in coins], coins, LEVEL)
    stated = found.to_json()
    assert PrivacyAudit.from_json(json.loads(json.dumps(stated))) == found
    first, *rest = found.tried
    for changes in (
        {"epsilon": found.epsilon + 1},
        {"tried": (first.model_copy(update={"epsilon": first.epsilon + 1e-3}), *rest)},
        {"tried": tuple(rest)},
        {"included": 33},
        {"tried": (first.model_copy(update={"correct": 33}), *rest)},
        {"canaries": 2},
    ):
        with pytest.raises(ValidationError):
            PrivacyAudit.model_validate(dict(found) | changes)
