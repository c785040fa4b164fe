"""Decisions by the evidence of a whole run: e-BH, what only grows, and who decides for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.policy.memorization_section import Action, Monitoring
from govray.governance.record.e_process import (
    LEVEL,
    decide,
    effect,
    evidence,
    measurable,
    rejected,
)
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitorDecision,
    MonitoredCorpus,
    Side,
)
from govray.governance.record.rank_evidence import top_sizes

SECTION = Monitoring(every=10, probe_rows=32, odds={"*": 1.5})
K = 4
SIDE = Side(records=32, entropy=1.0)
EVEN = (0, 0, 1, 3, 8, 16, 24, 29)


class Said(Measure):
    """A measure whose evidence a test says."""

    value: float

    def e(self, odds: float) -> float:
        return self.value


def profile(step: int, e: Mapping[str, float | Mapping[str, float]]) -> EntropyProfile:
    """Corpus → e at its head, or by layer."""
    measures = [
        Said(corpus=corpus, layer=layer, probe=SIDE, reserve=SIDE, top=EVEN, value=value)
        for corpus, found in sorted(e.items())
        for layer, value in sorted(
            (found if isinstance(found, Mapping) else {"head": found}).items()
        )
    ]
    return EntropyProfile(step=step, statistic="composite", measures=tuple(measures))


def subjects(
    corpora: Sequence[str], action: Action = "flag", domains: Mapping[str, str] | None = None
) -> dict[str, MonitoredCorpus]:
    return {c: MonitoredCorpus((domains or {}).get(c, "trunk"), action, None, K) for c in corpora}


def decided(
    rows: Sequence[Mapping[str, float | Mapping[str, float]]],
    watched: Mapping[str, MonitoredCorpus] | None = None,
    *,
    section: Monitoring = SECTION,
    **more: Any,
) -> tuple[MonitorDecision, ...]:
    """What the last of the probes at steps 9, 19, … leads to."""
    profiles = [profile(10 * n + 9, row) for n, row in enumerate(rows)]
    watched = watched or subjects(sorted({corpus for row in rows for corpus in row}))
    return decide(profiles[-1], profiles[:-1], section, watched, **more)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(0.01, 0.5))
def test_the_procedure_is_the_one_of_the_paper(e_values: list[float], level: float) -> None:
    ordered = sorted(e_values, reverse=True)
    m = len(ordered)
    k = max((k for k in range(1, m + 1) if ordered[k - 1] * k * level >= m), default=0)
    limit = ordered[k - 1] if k else float("inf")
    assert list(rejected(e_values, level)) == [e >= limit for e in e_values]


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), min_size=1, max_size=8))
def test_what_is_rejected_stays_rejected(grown: list[tuple[float, float]]) -> None:
    before = rejected([e for e, _ in grown], 0.05)
    after = rejected([e + more for e, more in grown], 0.05)
    assert all(now for was, now in zip(before, after, strict=True) if was)


def test_evidence_adds_up_over_the_run_and_flags_once() -> None:
    # Alone, a corpus needs 1/fdr = 20 on average over its four profiles: 80 in all.
    assert decided([{"a": 79.0}]) == ()
    [flag] = decided([{"a": 80.0}])
    assert (flag.action, flag.layers, flag.e, flag.since) == ("flag", ("head",), 20.0, 0)
    assert len(decided([{"a": 40.0}, {"a": 40.0}])) == 1
    assert decided([{"a": 80.0}, {"a": 80.0}], flagged={"a"}) == ()
    assert decided([{"a": 80.0}, {"a": 80.0}], gated={"a"}) == ()


def test_a_corpus_is_decided_on_after_a_profile_of_its_own() -> None:
    watched = subjects(["a", "b"])
    # Alone a would need 160; with b fallen too, 80 are enough.
    assert decided([{"a": 100.0}], watched) == ()
    [only] = decided([{"a": 100.0}, {"b": 200.0}], watched)
    assert only.corpus == "b"
    assert [d.corpus for d in decided([{"a": 99.0}, {"b": 200.0}, {"a": 1.5}], watched)] == ["a"]


def test_one_domain_never_decides_for_another() -> None:
    """Strong evidence in adapters' domains lets a middling one of the trunk fall, if they share a
    procedure: the negative control."""
    adapters = {f"adapter-{n}": 1e6 for n in range(9)}
    row = {"trunk": 100.0, "other": 0.0, **adapters}
    apart = {corpus: corpus for corpus in adapters}
    assert "trunk" not in {d.corpus for d in decided([row], subjects([*row], domains=apart))}
    assert "trunk" in {d.corpus for d in decided([row])}
    assert decided([{c: row[c] for c in ("trunk", "other")}]) == ()


def test_a_corpus_of_few_records_is_unmeasurable_and_has_no_part() -> None:
    assert not measurable(SECTION, 100, 0)
    assert not measurable(SECTION, 100, 2)
    assert not measurable(SECTION, 6, 6)
    assert measurable(SECTION, 7, 7)
    assert not measurable(SECTION.model_copy(update={"fdr": 0.01}), 7, 7)
    assert not measurable(SECTION.model_copy(update={"rollbacks": 1}), 7, 7)
    assert not measurable(SECTION.model_copy(update={"odds": {"*": 4.0}}), 7, 7)
    assert not measurable(SECTION.model_copy(update={"probe_rows": 6}), 100, 100)
    watched = subjects(["a"]) | {"few": MonitoredCorpus("trunk", "flag")}
    assert len(decided([{"a": 80.0, "few": 5.0}], watched)) == 1
    assert "few" not in evidence([profile(9, {"few": 5.0})], SECTION, watched)


def measured(corpus: str, labels: Sequence[bool], *, tested: bool = True) -> Measure:
    """A measure of a ranking: whether each record was trained on, the best known first."""
    best, trained = np.cumsum(labels), sum(labels)
    return Measure(
        corpus=corpus,
        layer="head",
        probe=Side(records=trained, entropy=1.0),
        reserve=Side(records=len(labels) - trained, entropy=1.0),
        top=tuple(int(best[size - 1]) for size in top_sizes(len(labels))),
        tested=tested,
    )


def of(*measures: Measure, step: int = 9) -> EntropyProfile:
    ordered = tuple(sorted(measures, key=lambda each: each.place))
    return EntropyProfile(step=step, statistic="composite", measures=ordered)


KNOWN = [True] * 32 + [False] * 32


def test_m_is_of_each_corpus_s_newest_profile_and_of_what_can_be_known() -> None:
    watched = subjects(["a", "b"]) | {"few": MonitoredCorpus("trunk", "flag")}
    even = [True, False] * 32
    history = [of(measured("a", even), measured("few", KNOWN)), of(measured("b", KNOWN), step=19)]
    assert effect(history[:1], SECTION, watched, 19) == 0
    known = effect(history, SECTION, watched, 19)
    assert known > 2
    assert effect(history, SECTION, watched, 18) == 0
    later = [*history, of(measured("b", even), step=29)]
    assert effect(later, SECTION, watched, 29) == 0
    assert effect([of(measured("a", even[::-1]))], SECTION, watched, 9) == 0  # less known
    assert effect([of(measured("b", KNOWN, tested=False))], SECTION, watched, 9) == 0
    # A layer that decides nothing has no part.
    at_blocks = SECTION.model_copy(update={"odds": {"block.*": 1.5}})
    assert effect(history, at_blocks, watched, 19) == 0
    # With more corpora each bound has less of the level.
    assert effect(history, SECTION, subjects([*"abcdefgh"]), 19) < known


def test_m_of_trials_without_an_effect_is_rarely_above_0() -> None:
    """A hundred corpora, most of which have two records in reserve."""
    draw = np.random.default_rng(5)
    sizes = {f"c{n}": 40 if n < 10 else 2 for n in range(100)}
    watched = {
        corpus: MonitoredCorpus("trunk", "flag", None, K if measurable(SECTION, 32, held) else 0)
        for corpus, held in sizes.items()
    }
    assert sum(each.profiles > 0 for each in watched.values()) == 10
    above = 0
    for _ in range(200):
        rankings = {
            corpus: draw.permutation([True] * 32 + [False] * min(held, 32)).tolist()
            for corpus, held in sizes.items()
        }
        found = of(*(measured(corpus, ranking) for corpus, ranking in rankings.items()))
        above += effect([found], SECTION, watched, 9) > 0
    assert above <= 200 * LEVEL
