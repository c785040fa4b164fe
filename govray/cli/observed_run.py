"""Calibration runs, for `policy calibrate`: profiles, what policies say of corpora, curves.

Nothing is verified here: whoever calibrates reads runs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from govray.cli import user_files
from govray.cli.output import line, print_table, table
from govray.errors import Refused

if TYPE_CHECKING:
    from govray.governance.policy.memorization_section import Monitoring
    from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
    from govray.governance.record.operating_curve import Point


@dataclass(frozen=True, kw_only=True)
class CalibrationRun:
    """One run.

    Attributes:
        clean: Its public corpora among those asked for.
        section: Its policy's; None without a monitor.
        subjects: Corpus → what policy and routes say of it.
        reads: Corpus → how often the run read each of its rows, on average.
    """

    profiles: tuple[EntropyProfile, ...]
    clean: frozenset[str]
    section: Monitoring | None
    subjects: Mapping[str, MonitoredCorpus]
    reads: Mapping[str, float]


def read_observed(path: Path, patterns: list[str]) -> CalibrationRun:
    """Read an attested run, or its model folder."""
    from govray.governance.attestation import model_folder
    from govray.governance.attestation.model_attestation import Attestation
    from govray.governance.policy import globs
    from govray.governance.policy.corpus_routes import resolve_all
    from govray.governance.policy.depth_policy import Policy
    from govray.governance.record.incidents import subjects_of
    from govray.governance.record.ledger import Ledger
    from govray.governance.record.prepare_manifest import Manifest

    folder = path / "model" if (path / "model").is_dir() else path
    attestation = user_files.document(Attestation, folder / model_folder.ATTESTATION)
    policy = user_files.document(Policy, folder / model_folder.POLICY)
    manifest = user_files.document(Manifest, folder / model_folder.MANIFEST)
    data = model_folder.Bundle(folder).read(model_folder.LEDGER, limit=model_folder.MAX_LINES)
    ledger = Ledger.read(attestation.run.id, data)
    classes = {each.corpus: each.credential_class for each in attestation.corpora}
    steps, groups = attestation.plan.max_steps, attestation.base_groups
    routes = resolve_all({c: policy.decide(each) for c, each in classes.items()}, groups)
    rows: dict[str, int] = {}
    for leaf in ledger.steps:
        for corpus, use in leaf.corpora.items():
            rows[corpus] = rows.get(corpus, 0) + use.rows
    return CalibrationRun(
        profiles=tuple(ledger.profiles),
        clean=frozenset(
            corpus
            for corpus, each in classes.items()
            if each.sensitivity == "public"
            and any(globs.matches(pattern, corpus) for pattern in patterns)
        ),
        section=policy.memorization,
        subjects=subjects_of(
            policy,
            {each.corpus: each.rules for each in attestation.corpora},
            routes.until(steps),
            groups,
            manifest,
            steps,
        ),
        reads={c: rows[c] / held for c in rows if (held := manifest.train_rows(c))},
    )


def curve_of(
    observed: Sequence[CalibrationRun], odds: Sequence[float]
) -> tuple[tuple[Point, ...], dict[str, float]]:
    """The operating curve of these runs, and how often its corpora were read.

    Raises:
        Refused: No run has a profile.
    """
    from govray.governance.record.operating_curve import ODDS, ObservedRun, curve

    runs = [
        ObservedRun(
            section=run.section, subjects=run.subjects, profiles=run.profiles, clean=run.clean
        )
        for run in observed
        if run.section is not None and run.profiles
    ]
    if not runs:
        raise Refused(
            "the runs measured nothing",
            do="Run under a policy with a memorization section, and longer than its every",
        )
    points = curve(runs, sorted({*ODDS, *odds}))
    reads = {
        corpus: max(run.reads.get(corpus, 0.0) for run in observed) for corpus in points[0].until
    }
    return points, reads


def show(points: Sequence[Point], reads: Mapping[str, float]) -> None:
    """Print a curve, a column for each tolerance; ``reads`` names the corpora that are not
    clean."""
    odds = [f"{each.odds:g}" for each in points]
    grid = table("corpus", "read", *odds, right=("read", *odds))
    grid.row(f"clean, of {points[0].clean}", "", *(str(each.false_flags) for each in points))
    shown = [c for c in reads if any(any(each.until[c]) for each in points)]
    for corpus in shown:
        told = (_until(each.until[corpus]) for each in points)
        grid.row(corpus, f"{reads[corpus]:.1f} times", *told)
    line("What each tolerance would have flagged, after how many profiles of a corpus and run:")
    print_table(grid)
    if rest := len(reads) - len(shown):
        line(f"No tolerance flags the other {rest} corp{'us' if rest == 1 else 'ora'}.")


def _until(runs: Sequence[int | None]) -> str:
    return ", ".join("never" if each is None else str(each) for each in runs)
