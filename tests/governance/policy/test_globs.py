"""Globs: what they match, and that no pattern takes longer than its length times the text's."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.policy import globs

STARS = "*a" * 8 + "*b"
"""Eight stars and more, which match none of sixty letters."""

WORST = ("*" + "?a" * 120 + "*ab*", "a" * 1024)
"""The longest that a policy and a tensor's name may be."""


def by_table(pattern: str, text: str) -> bool:
    """The definition, a row of a table for each character of the pattern."""
    reached = [True] + [False] * len(text)
    for c in pattern:
        if c == "*":
            reached = [any(reached[: j + 1]) for j in range(len(reached))]
        else:
            reached = [False, *(reached[j] and c in ("?", x) for j, x in enumerate(text))]
    return reached[-1]


@given(st.text("ab*?.\n[", max_size=8), st.text("ab.\n[", max_size=9))
def test_a_glob_matches_what_its_definition_says(pattern: str, text: str) -> None:
    assert globs.matches(pattern, text) == by_table(pattern, text)


@pytest.mark.parametrize(("pattern", "text"), [(STARS, "a" * 60), WORST])
def test_many_stars_are_no_more_work_than_few(pattern: str, text: str) -> None:
    began = time.process_time()
    assert not globs.matches(pattern, text)
    assert time.process_time() - began < 1


def test_control_a_pattern_that_goes_back_takes_longer_and_longer() -> None:
    """What ``*`` as ``.*`` costs: the reason for pieces that are taken once."""

    def cost(letters: int) -> float:
        spent = []
        for _ in range(3):
            began = time.process_time()
            assert re.fullmatch(".*a.*a.*a.*a.*b", "a" * letters) is None
            spent.append(time.process_time() - began)
        return min(spent)

    cost(40)
    assert cost(80) > 8 * cost(40)
