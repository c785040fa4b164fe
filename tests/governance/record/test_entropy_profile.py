"""Entropy profiles: whose turn a probe is, one encoding, and what cannot be."""

from __future__ import annotations

from itertools import pairwise

import pytest

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, Measure, Side

SECTION = Monitoring(every=10, probe_rows=8, odds={"*": 2.0})


def side(rows: int = 8) -> Side:
    return Side(records=rows, entropy=1.5, surprise=-0.0)


def measure(corpus: str, top: tuple[int, ...] = (0, 0, 0, 1, 2, 5, 7, 7)) -> Measure:
    return Measure(
        corpus=corpus,
        layer="head",
        probe=side(),
        reserve=side(),
        top=top,
    )


def profile(step: int, *measures: Measure, branch: int = 0) -> EntropyProfile:
    ordered = tuple(sorted(measures, key=lambda each: each.place))
    return EntropyProfile(branch=branch, step=step, statistic="composite", measures=ordered)


def test_turns_share_the_probes_and_depend_on_the_name_alone() -> None:
    section = SECTION.model_copy(update={"turns": 3})
    for corpus in ("a", "b", "c", "d"):
        steps = [step for step in range(90) if section.in_turn(corpus, step)]
        assert len(steps) == 3
        assert {b - a for a, b in pairwise(steps)} == {30}
        assert all(section.due(step) for step in steps)


def test_a_profile_has_one_encoding() -> None:
    made = profile(9, measure("b"), measure("a"))
    assert EntropyProfile.from_json(canonical_json.parse_canonical(made.line)) == made
    assert b"-0" not in made.line
    value = made.to_json()
    value["measures"].reverse()
    with pytest.raises(Malformed, match="not sorted"):
        EntropyProfile.from_json(value)


def test_counts_that_no_ranking_has_are_no_profile() -> None:
    value = profile(9, measure("a")).to_json()
    for top in ([1, 1, 1, 2, 4, 3, 7, 7], [0, 0, 0, 1, 2, 5, 7]):
        value["measures"][0]["top"] = top
        with pytest.raises(Malformed, match="cannot be ones trained on"):
            EntropyProfile.from_json(value)
