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

    Args:
        observed: The runs. Without row scores there is no point.
        half_widths: Of bands, beside those that a curve has anyway.

    Raises:
        Refused: As ``operating_curve.curve``.
    """
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
    """Print a curve, a line for each band; ``reads`` names the corpora that are not clean."""
    grid = table(
        "band",
        "clean corpora flagged",
        *(f"{corpus}, read {times:.1f} times" for corpus, times in reads.items()),
        right=("clean corpora flagged",),
    )
    for point in points:
        grid.row(
            f"±{point.half_width:g}" + (" chosen" if point.half_width == chosen else ""),
            f"{point.false_flags} of {point.clean} in {point.runs} runs",
            *(_until(point.until[corpus]) for corpus in reads),
        )
    line()
    line("What would have been flagged in other bands, after how many profiles of a corpus:")
    print_table(grid)


def _until(runs: Sequence[int | None]) -> str:
    return ", ".join("never" if each is None else str(each) for each in runs)
