"""The benchmark of the demo's reserves reads what a run's events say."""

from __future__ import annotations

from pathlib import Path

from benchmarks.demo_salts import flagged
from govray.governance.record.entropy_profile import MonitorDecision
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
        )
        events.append(tmp_path, events.Memorized(at="2026-11-11T00:00:00Z", decision=decision))
    assert flagged(tmp_path) == {"parts-list": 80, "other": 100}
