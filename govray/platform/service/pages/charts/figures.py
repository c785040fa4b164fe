"""How figures that a run reported are drawn: shades of a matrix, bars of a histogram. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from govray.train.run_folder.figures import ConfusionMatrix, Histogram

SHADES = 6
WIDTH, HEIGHT = 600.0, 160.0


@dataclass(frozen=True)
class HistogramBar:
    x: float
    y: float
    width: float
    height: float
    title: str


def bars(histogram: Histogram) -> list[HistogramBar]:
    """The bars, as wide as what lies between their edges, in a drawing of `WIDTH` by `HEIGHT`."""
    low, high = histogram.edges[0], histogram.edges[-1]
    most = max(histogram.counts) or 1
    drawn = []
    for count, left, right in zip(
        histogram.counts, histogram.edges, histogram.edges[1:], strict=False
    ):
        height = HEIGHT * count / most
        x, end = ((edge - low) / (high - low) * WIDTH for edge in (left, right))
        title = f"{left:.4g} to {right:.4g}: {count:,}"
        drawn.append(HistogramBar(x, HEIGHT - height, end - x, height, title))
    return drawn


def shades(matrix: ConfusionMatrix) -> list[list[int]]:
    """Of each cell, by its share of its row: 0 for none, up to `SHADES`."""
    found = []
    for row in matrix.counts:
        total = sum(row) or 1
        found.append([-(-count * SHADES // total) for count in row])
    return found
