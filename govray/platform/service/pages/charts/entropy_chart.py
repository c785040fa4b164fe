"""A run's entropy profiles as charts: sure odds by step, the policy's tolerance, events. Pure.

Odds are ratios, so their axis is logarithmic; those below `LEAST` are drawn there.
One chart a corpus, one line a layer, alike on all charts, in the ledger's own numbers. A rollback's
branch is a line of its own, so that steps which were done again stand where they were done. The
corpora that something followed for come first, then those with the largest odds; `MOST_CHARTS` are
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.e_process import least_odds
from govray.governance.record.entropy_profile import EntropyProfile, Measure
from govray.governance.record.incidents import Findings

MOST_CHARTS = 6
MOST_LINES = 4

LEAST = 0.1
"""The smallest odds that a chart tells apart."""

LEFT, RIGHT, TOP, BOTTOM = 64, 700, 36, 246
STYLES = 8


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class LayerLine:
    """One layer. ``pieces`` are the points of each branch; ``marks`` stand for single points."""

    layer: str
    style: int
    pieces: tuple[str, ...]
    marks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """One corpus. Coordinates are of a view box of 720 by 286.

    Attributes:
        tolerances: Where odds are as large as the policy lets them be.
        numbers: Step, bound of the odds, and what was measured.
    """

    corpus: str
    first: int
    last: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    tolerances: tuple[Tick, ...]
    events: tuple[Tick, ...]
    lines: tuple[LayerLine, ...]
    numbers: tuple[tuple[int, float, Measure], ...]
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def charts(
    profiles: Sequence[EntropyProfile], section: Monitoring, findings: Findings | None
) -> tuple[Chart, ...]:
    """The charts of a run's profiles, in the order of the ledger."""
    corpora = {measure.corpus for profile in profiles for measure in profile.measures}
    decided = {each.corpus for each in findings.decisions} if findings else set()
    largest = {
        corpus: max(least_odds([m]) for p in profiles for m in p.of(corpus)) for corpus in corpora
    }
    chosen = sorted(corpora, key=lambda c: (c not in decided, -largest[c], c))[:MOST_CHARTS]
    styles: dict[str, int] = {}
    return tuple(_chart(corpus, profiles, section, findings, styles) for corpus in chosen)


def _chart(
    corpus: str,
    profiles: Sequence[EntropyProfile],
    section: Monitoring,
    findings: Findings | None,
    styles: dict[str, int],
) -> Chart:
    found = [
        (profile.branch, profile.step, least_odds([measure]), measure)
        for profile in profiles
        for measure in profile.of(corpus)
    ]
    last_of = {measure.layer: odds for _, _, odds, measure in found}
    layers = sorted(sorted(last_of, key=lambda layer: (-last_of[layer], layer))[:MOST_LINES])
    tolerances = {odds for layer in layers if (odds := section.tolerance(layer)) is not None}
    steps = [step for _, step, _, _ in found]
    first, last = min(steps), max(steps)
    values = [odds for _, _, odds, m in found if m.layer in layers] + [1.0, *tolerances]
    y_ticks = ticks(min(values), max(values))
    low, high = y_ticks[0], y_ticks[-1]

    def x(step: float) -> float:
        return round(LEFT + (step - first) / max(last - first, 1) * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        height = math.log(max(value, LEAST) / low) / math.log(high / low)
        return round(BOTTOM - height * (BOTTOM - TOP), 1)

    lines = []
    for layer in layers:
        branches: dict[int, list[tuple[float, float]]] = {}
        for branch, step, odds, measure in found:
            if measure.layer == layer:
                branches.setdefault(branch, []).append((x(step), y(odds)))
        lines.append(
            LayerLine(
                layer=layer,
                style=styles.setdefault(layer, len(styles) % STYLES + 1),
                pieces=tuple(" ".join(f"{a},{b}" for a, b in each) for each in branches.values()),
                marks=tuple(point for each in branches.values() for point in each),
            )
        )
    return Chart(
        corpus=corpus,
        first=first,
        last=last,
        x_ticks=tuple(Tick(x(step), f"{step:,}") for step in sorted({first, last})),
        y_ticks=tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
        tolerances=tuple(Tick(y(odds), f"tolerance {odds:g}") for odds in sorted(tolerances)),
        events=tuple(
            Tick(x(min(max(each.step, first), last)), each.action)
            for each in (findings.decisions if findings else ())
            if each.corpus == corpus
        ),
        lines=tuple(lines),
        numbers=tuple((step, odds, measure) for _, step, odds, measure in found),
    )


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Round odds from at or below ``low`` to above ``high``: 1, 2 and 5 of each power of ten.
    Over more than two decades, the powers alone."""
    first = math.floor(math.log10(max(low, LEAST)))
    last = math.floor(math.log10(high)) + 1
    marks = (1, 2, 5) if last - first <= 2 else (1,)
    every = [10.0**power * mark for power in range(first, last) for mark in marks]
    every = [round(each, 12) for each in (*every, 10.0**last)]
    start = max((n for n, each in enumerate(every) if each <= max(low, LEAST)), default=0)
    stop = next(n for n, each in enumerate(every) if each > high)
    return tuple(every[start : stop + 1])
