"""What follows from entropy profiles: the procedure, bands, probes in a row, and budgets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.policy.memorization_section import Band, Monitoring, RuleAction
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitorDecision,
    MonitoredCorpus,
    Side,
    decide,
    rejected,
)

SECTION = Monitoring(every=10, probe_rows=8, bands={"*": Band(low=-2, high=2)}, consecutive=2)


def side(rows: int = 8) -> Side:
    return Side(rows=rows, entropy=1.5, surprise=-0.0)


def measure(corpus: str, deviation: float, p: float = 0.001, layer: str = "head") -> Measure:
    return Measure(
        corpus=corpus,
        layer=layer,
        probe=side(),
        reserve=side(),
        deviation=deviation,
        p=p,
        permutations=999,
    )


def profile(step: int, *measures: Measure, branch: int = 0) -> EntropyProfile:
    ordered = tuple(sorted(measures, key=lambda each: each.place))
    return EntropyProfile(branch=branch, step=step, statistic="composite", measures=ordered)


def decided(
    rows: list[dict[str, tuple[float, float]]],
    actions: dict[str, str],
    *,
    domains: dict[str, str] | None = None,
    section: Monitoring = SECTION,
    **more: Any,
) -> tuple[MonitorDecision, ...]:
    """Decide on the last of probes at steps 9, 19, …: corpus → (deviation, p)."""
    profiles = [
        profile(10 * n + 9, *(measure(c, d, p) for c, (d, p) in row.items()))
        for n, row in enumerate(rows)
    ]
    subjects = {
        corpus: MonitoredCorpus(domain=(domains or {}).get(corpus, "trunk"), action=action)  # type: ignore[arg-type]
        for corpus, action in actions.items()
    }
    return decide(profiles[-1], profiles[:-1], section, subjects, **more)


HIGH, CALM = (5.0, 0.001), (0.1, 0.8)


def test_two_probes_in_a_row_flag_once_an_incident() -> None:
    actions = {"a": "flag"}
    assert decided([{"a": HIGH}], actions) == ()
    [flag] = decided([{"a": CALM}, {"a": HIGH}, {"a": HIGH}], actions)
    assert (flag.action, flag.corpus, flag.layers, flag.since) == ("flag", "a", ("head",), 10)
    assert len(flag.evidence) == 2
    assert decided([{"a": HIGH}] * 3, actions) == ()  # it goes on
    assert decided([{"a": HIGH}, {"a": CALM}, {"a": HIGH}], actions) == ()
    assert len(decided([{"a": HIGH}] * 3 + [{"a": CALM}] + [{"a": HIGH}] * 2, actions)) == 1


def test_a_probe_out_of_turn_neither_breaks_nor_makes_a_row() -> None:
    rows = [{"a": HIGH}, {"b": CALM}, {"a": HIGH}]
    assert len(decided(rows, {"a": "flag", "b": "flag"})) == 1
    assert decided([{"a": HIGH}, {"b": CALM}], {"a": "flag", "b": "flag"}) == ()


def test_a_deviation_outside_its_band_needs_evidence_and_evidence_needs_the_deviation() -> None:
    assert decided([{"a": (5.0, 0.4)}] * 2, {"a": "flag"}) == ()
    assert decided([{"a": (1.9, 0.001)}] * 2, {"a": "flag"}) == ()
    assert len(decided([{"a": (-5.0, 0.001)}] * 2, {"a": "flag"})) == 1  # two-sided


def test_the_layer_must_be_the_same_one() -> None:
    subjects = {"a": MonitoredCorpus(domain="trunk", action="flag")}
    one = profile(9, measure("a", 5.0, layer="block.0"), measure("a", 0.0, 0.9, "head"))
    two = profile(19, measure("a", 0.0, 0.9, "block.0"), measure("a", 5.0, layer="head"))
    assert decide(two, [one], SECTION, subjects) == ()
    [flag] = decide(profile(29, measure("a", 5.0)), [one, two], SECTION, subjects)
    assert flag.layers == ("head",)


def test_a_gated_corpus_is_left_alone_and_a_spent_budget_gates() -> None:
    rows = [{"a": HIGH}] * 2
    assert decided(rows, {"a": "gate"}, gated={"a"}) == ()
    section = SECTION.model_copy(update={"rollbacks": 1})
    [first] = decided(rows, {"a": "rollback"}, section=section)
    [second] = decided(rows, {"a": "rollback"}, section=section, rollbacks={"trunk": 1})
    assert (first.action, second.action) == ("rollback", "gate")


def test_one_domain_never_decides_for_another() -> None:
    """Many small p-values in an adapter's domain let a middling one of the trunk's fall, if they
    share an error budget: the negative control."""
    adapters = {f"adapter-{n}": HIGH for n in range(20)}
    rows = [{"trunk": (5.0, 0.045), "other": CALM, **adapters}] * 2
    actions = dict.fromkeys(rows[0], "flag")
    apart = {corpus: corpus for corpus in adapters}
    assert "trunk" not in {d.corpus for d in decided(rows, actions, domains=apart)}
    assert "trunk" in {d.corpus for d in decided(rows, actions)}  # all in one domain
    alone = [{c: row[c] for c in ("trunk", "other")} for row in rows]
    assert decided(alone, actions) == ()

    section = SECTION.model_copy(update={"rollbacks": 1})
    spent = {"adapter": 1}
    [own] = decided(
        [{"a": HIGH}] * 2, {"a": "rollback"}, section=section, rollbacks=spent, domains={"a": "t"}
    )
    assert own.action == "rollback"


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12), st.floats(0.01, 0.5))
def test_the_procedure_is_the_one_of_the_paper(p_values: list[float], level: float) -> None:
    ordered = sorted(p_values)
    largest = max(
        (k for k in range(1, len(ordered) + 1) if ordered[k - 1] <= k * level / len(ordered)),
        default=0,
    )
    assert sum(rejected(p_values, level)) >= largest
    limit = ordered[largest - 1] if largest else -1.0
    assert list(rejected(p_values, level)) == [p <= limit for p in p_values]


def test_turns_share_the_probes_and_depend_on_the_name_alone() -> None:
    section = SECTION.model_copy(update={"turns": 3})
    for corpus in ("a", "b", "c", "d"):
        steps = [step for step in range(90) if section.in_turn(corpus, step)]
        assert len(steps) == 3
        assert {b - a for a, b in pairwise(steps)} == {30}
        assert all(section.due(step) for step in steps)


def test_a_profile_has_one_encoding() -> None:
    made = profile(9, measure("b", -0.0), measure("a", 2.0))
    assert EntropyProfile.from_json(canonical_json.parse_canonical(made.line)) == made
    assert b"-0" not in made.line
    value = made.to_json()
    value["measures"].reverse()
    with pytest.raises(Malformed, match="not sorted"):
        EntropyProfile.from_json(value)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValidationError, match="permutations can say"):
        measure("a", 5.0, p=0.0001)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Measure.model_validate(measure("a", 5.0).model_copy(update={"e": -1.0}).model_dump())
    with pytest.raises(ValidationError, match="low is above high"):
        Band(low=1, high=0)
    with pytest.raises(ValidationError, match="budget"):
        Monitoring(
            every=1,
            probe_rows=2,
            bands={"*": Band(low=0, high=0)},
            actions={"r": RuleAction(action="rollback")},
        )
    for wrong in ({"action": "gate"}, {"action": "flag", "fallback": "nothing"}):
        with pytest.raises(ValidationError, match="fallback"):
            RuleAction(**wrong)  # type: ignore[arg-type]
