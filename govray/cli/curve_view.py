"""What `policy calibrate` shows of runs that kept row scores: their operating curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from govray.cli.output import line, print_table, table

if TYPE_CHECKING:
    from govray.cli.observed_run import CalibrationRun
    from govray.engine.memorization.operating_curve import Point


def curve_of(
    observed: Sequence[CalibrationRun], half_widths: Sequence[float]
) -> tuple[tuple[Point, ...], dict[str, float]]:
    """The operating curve of runs that kept row scores, and how often its corpora were read.
    ``observed``: the runs. Without row scores there is no point."""
    if not any(m.scores for run in observed for each in run.profiles for m in each.measures):
        return (), {}
    from govray.engine.memorization.operating_curve import HALF_WIDTHS, ObservedRun, curve

    runs = [
        ObservedRun(
            section=run.section, subjects=run.subjects, profiles=run.profiles, clean=run.clean
        )
        for run in observed
        if run.section is not None
    ]
    points = curve(runs, sorted({*HALF_WIDTHS, *half_widths}))
    reads = {
        corpus: max(run.reads.get(corpus, 0.0) for run in observed) for corpus in points[0].until
    }
    return points, reads


def show(points: Sequence[Point], reads: Mapping[str, float], chosen: float | None) -> None:
    """Print a curve, a column for each band; ``reads`` names the corpora that are not clean."""
    bands = [f"±{each.half_width:g}" for each in points]
    grid = table("corpus", "read", *bands, right=("read", *bands))
    grid.row(f"clean, of {points[0].clean}", "", *(str(each.false_flags) for each in points))
    shown = [c for c in reads if any(any(each.until[c]) for each in points)]
    for corpus in shown:
        told = (_until(each.until[corpus]) for each in points)
        grid.row(corpus, f"{reads[corpus]:.1f} times", *told)
    line()
    line("What other bands would have flagged, after how many profiles of each corpus and run:")
    print_table(grid)
    if rest := len(reads) - len(shown):
        line(f"No band flags the other {rest} corp{'us' if rest == 1 else 'ora'}.")
    if chosen is not None:
        line(f"Chosen: ±{chosen:g}")


def _until(runs: Sequence[int | None]) -> str:
    return ", ".join("never" if each is None else str(each) for each in runs)
