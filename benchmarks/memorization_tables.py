"""What the memorization benchmark prints for people; the JSON line has the same figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.memorization_ranking import GROUP
from benchmarks.memorization_run import MEMORIZED, Outcome

MOST_COLUMNS = 6
"""Numbers of reads that a table shows; where rows are read as it comes there are too many."""


def monitor_table(
    report: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    targets: Mapping[str, tuple[str, float]],
) -> str:
    """The built-in model's figures, those with a target first."""
    lines = [f"{'':<42}{'measured':>10}   target"]
    for name, (direction, limit) in targets.items():
        said = "met" if report["met"][name] else "MISSED"
        lines.append(f"{name:<42}{_shown(report[name]):>10}   {direction} {limit}: {said}")
    others = [
        "auroc_representation_entropy",
        "auroc_min_k",
        "auroc_surprise",
        "auroc_natural_16_predictive_entropy",
        "auroc_natural_16_representation_entropy",
        "caught",
    ]
    lines += [f"{name:<42}{_shown(report[name]):>10}" for name in others]
    by_seed = map(_shown, report["auroc_predictive_entropy_by_seed"])
    lines.append(f"auroc_predictive_entropy of each seed: {', '.join(by_seed)}")
    lines.append(
        f"{report['memorized']} canaries of at least {MEMORIZED:g} bits; means of {GROUP} "
        f"docstrings; {report['clean_corpora']} clean corpora; the cost is of a profile every "
        f"{report['every']} steps, {report['probe_rows']} rows a side"
    )
    lines.append(
        "plantings   median exposure, bits   median entropy, nats   AUROC against never planted"
    )
    for repeats, bits in report["exposure_by_repeats"].items():
        nats = report["entropy_by_repeats"][repeats]
        auroc = _shown(report["auroc_by_repeats"].get(repeats))
        lines.append(f"{repeats:>9}   {bits:>21.1f}   {nats:>20.2f}   {auroc:>27}")
    lines.append(f"ten equally likely digits have an entropy of {math.log(10):.2f} nats")
    lines += ["", "baselines, over the same rows", *_ranking_lines(report["baselines"])]
    lines += ["", *_decision_lines(report["decision"])]
    flagged = sorted({name for each in outcomes for name in each.decided.false_flags})
    if flagged:
        lines.append(f"flagged, but clean: {', '.join(flagged)}")
    return "\n".join(lines)


def families_table(report: Mapping[str, Any], licences: Mapping[str, str]) -> str:
    """The rankings of each family and kind, below the packages that the prose is of."""
    lines = ["", "prose is of " + ", ".join(f"{n} ({each})" for n, each in licences.items())]
    for family, kinds in report["families"].items():
        for kind, methods in kinds.items():
            lines += ["", f"{family}, {kind}", *_ranking_lines(methods)]
    lines.append(f"auroc_other_family {_shown(report['auroc_other_family'])}")
    return "\n".join(lines)


def pretrained_table(found: Mapping[str, Any]) -> str:
    """The rankings of the pretrained model, or why there are none."""
    if "missing" in found:
        return f"\npretrained: left out, {found['missing']} is not installed"
    return "\n".join(
        ["", f"pretrained, of {found['package']}", *_ranking_lines(found["baselines"])]
    )


def _ranking_lines(rankings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    counts = [*rankings["composite"]["auroc_by_reads"]]
    few = counts if len(counts) <= MOST_COLUMNS else []
    head = f"{'AUROC':<18}{'single':>8}{f'of {GROUP}':>8}{'TPR .1%':>9}"
    lines = [head + "".join(f"{f'{count} reads':>10}" for count in few)]
    for name, each in rankings.items():
        own = [each["auroc"], each["auroc_of_means"], each["true_positive_rate"]]
        shown = f"{name:<18}" + "".join(
            f"{_shown(value):>{size}}" for value, size in zip(own, (8, 8, 9), strict=True)
        )
        lines.append(shown + "".join(f"{_shown(each['auroc_by_reads'][n]):>10}" for n in few))
    return lines


def _decision_lines(found: Mapping[str, Any]) -> list[str]:
    until = "-" if found["profiles_until"] is None else str(found["profiles_until"])
    return [
        f"caught in {found['caught']:.2f} of {found['runs']} runs, after {until} profiles (median) "
        f"of {found['profiles']}; {found['false_flags_per_run']:.2f} false flags a run"
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
