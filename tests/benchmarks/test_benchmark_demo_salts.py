"""The benchmark of the demo's reserves reads what a run's events say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.demo_salts import flagged, flagged_alone, watching_all
from govray.demo.deployment import own_policy
from govray.errors import UsageError
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitorDecision,
    Side,
)
from govray.train.run_folder import events


def test_it_reads_the_first_flag_of_each_corpus(tmp_path: Path) -> None:
    assert flagged(tmp_path) == {}
    for corpus, step in (("parts-list", 79), ("other", 99), ("parts-list", 119)):
        decision = MonitorDecision(
            step=step,
            corpus=corpus,
            action="flag",
            layers=("head",),
            evidence=("sha256:" + "0" * 64,),
            since=0,
            e=20.0,
        )
        events.append(tmp_path, events.Memorized(at="2026-11-11T00:00:00Z", decision=decision))
    assert flagged(tmp_path) == {"parts-list": 80, "other": 100}


def test_only_what_is_measured_differs_from_the_demo_s_policy() -> None:
    ours, demos = read_policy(watching_all(own_policy())), read_policy(own_policy())
    assert ours.memorization is not None
    assert demos.memorization is not None
    assert ours.memorization == demos.memorization.model_copy(update={"rules": None})
    assert ours.model_copy(update={"memorization": demos.memorization}) == demos
    with pytest.raises(UsageError, match="0 times"):
        watching_all(watching_all(own_policy()))


def test_a_corpus_alone_needs_less_evidence() -> None:
    section = read_policy(watching_all(own_policy())).memorization
    assert section is not None
    side = Side(rows=16, entropy=1.0)

    def profile(step: int, **e_values: float) -> EntropyProfile:
        measures = [
            Measure(
                corpus=corpus,
                layer="head",
                probe=side,
                reserve=side,
                deviation=2.0,
                p=0.5,
                permutations=9,
                e=e,
            )
            for corpus, e in sorted(e_values.items())
        ]
        return EntropyProfile(step=step, statistic="composite", measures=tuple(measures))

    profiles = [profile(19, a=90.0, b=1.0), profile(39, a=170.0, b=1.0)]
    # Twelve profiles in 250 steps: 240 are a flag at 1/fdr of 20.
    assert flagged_alone(section, "a", profiles[:1], 250) is None
    assert flagged_alone(section, "a", profiles, 250) == 40
    assert flagged_alone(section, "b", profiles, 250) is None
