"""Curves of runs: what they measured, thinned to what a page draws, and the same in words.

A page reads the resolutions that it draws: of a whole line the coarsest, of a part of the run finer
ones (`govray.platform.indexing.run_rows`). No more numbers stay in memory than are drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count, groupby
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Query
from sqlalchemy import func, select
from sqlmodel import Session, col

from govray.platform.store.tables import MetricRow, RunRow

_STEP = "^[0-9]{0,9}$"
_WEIGHT = r"^(0(\.[0-9]{1,4})?)?$"


@dataclass(frozen=True)
class ChartView:
    """Both steps are included; None: from the first, or up to the last. ``smooth`` is in [0, 1)."""

    first: int | None = None
    last: int | None = None
    smooth: float = 0.0
    log: bool = False

    @property
    def part(self) -> bool:
        """Whether the page has the numbers of a range only."""
        return self.first is not None or self.last is not None


def _view(
    first: Annotated[
        str, Query(alias="from", pattern=_STEP, description="The first step that is drawn.")
    ] = "",
    last: Annotated[
        str, Query(alias="to", pattern=_STEP, description="The last step that is drawn.")
    ] = "",
    smooth: Annotated[
        str, Query(pattern=_WEIGHT, description="Weight of the moving average, below 1.")
    ] = "",
    log: Annotated[
        str, Query(pattern="^1?$", description="`1` for a logarithmic vertical axis.")
    ] = "",
) -> ChartView:
    ends = [int(each) if each else None for each in (first, last)]
    if None not in ends:
        ends.sort(key=lambda each: each or 0)
    return ChartView(ends[0], ends[1], float(smooth or 0), bool(log))


ViewDep = Annotated[ChartView, Depends(_view)]


Point: TypeAlias = tuple[int, float]
"""A step, and the number that was measured there."""


def downsample(points: Iterable[Point], most: int) -> list[Point]:
    """At most ``most`` of the points: the first, the last, and the extremes of every stretch.

    Args:
        points: By ascending step, values finite. Up to ``most`` of them stay as they are.
        most: At least 4.
    """
    if most < 4:
        raise ValueError("a curve needs 4 points: its ends and its extremes")
    ends: tuple[Point, ...] = ()
    buckets: list[tuple[Point, Point]] = []
    width, inside = 1, 1  # points of a full bucket, and of the newest
    for point in points:
        ends = (ends[0], point) if ends else (point,)
        if buckets and inside < width:
            buckets[-1] = _both(buckets[-1], (point, point))
            inside += 1
            continue
        buckets.append((point, point))
        inside = 1
        while (len(buckets) if width == 1 else 2 * len(buckets) + 2) > most:
            if len(buckets) % 2 == 0:
                inside += width
            buckets = [
                _both(buckets[at], buckets[at + 1]) if at + 1 < len(buckets) else buckets[at]
                for at in range(0, len(buckets), 2)
            ]
            width *= 2
    return sorted({*ends, *(point for bucket in buckets for point in bucket)})


def _both(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    """The lowest and the highest of two buckets, the earlier one of equals."""
    low = other[0] if other[0][1] < one[0][1] else one[0]
    high = other[1] if other[1][1] > one[1][1] else one[1]
    return low, high


MOST_POINTS = 1000
"""Of one curve."""
MOST_CHARTS = 12
MOST_LINES = 8
"""Of one chart, as static/chart.js."""
MOST_ROWS = 40
"""Of the table beside a chart."""
_AT_ONCE = {"yield_per": 10_000}  # rows


@dataclass(frozen=True)
class Curve:
    """The numbers of one name: a line for each group, or each run, that reports it."""

    name: str
    title: str
    series: list[dict[str, Any]]

    @property
    def table(self) -> tuple[list[str], list[tuple[int, list[float | None]]]]:
        """The lines' names, and their numbers at some of the steps that are drawn. They are at most
        `MOST_ROWS`, evenly among those that most lines have. The first and the last are there."""
        columns = [dict(each["points"]) for each in self.series]
        often = Counter(step for column in columns for step in column)
        most = max(often.values(), default=0)
        steps = sorted(step for step, lines in often.items() if lines == most)
        apart = max((len(steps) - 1) / (MOST_ROWS - 3), 1)
        places = (round(at * apart) for at in range(MOST_ROWS - 2))
        chosen = {min(often), max(often)} if often else set()
        chosen |= {steps[at] for at in places if at < len(steps)}
        rows = [(step, [column.get(step) for column in columns]) for step in sorted(chosen)]
        return [str(each["name"]) for each in self.series], rows


@dataclass(frozen=True)
class DrawnLine:
    """One metric of one group: the points that are drawn, of at least so many steps."""

    steps: int
    points: list[Point]
    finer: bool = False
    """Whether there are more steps, in finer resolutions."""

    @property
    def thinned(self) -> bool:
        """Whether there are more numbers than are drawn."""
        return self.finer or self.steps > len(self.points)

    @property
    def least(self) -> float:
        """The least number: extremes are always among the points that are drawn."""
        return min(value for _, value in self.points)


Lines = Mapping[tuple[str, str], DrawnLine]


def lines_of(
    session: Session, run: str, *, first: int | None = None, last: int | None = None
) -> Lines:
    """(Name, group) → the numbers of the attempts that count; at most `MOST_POINTS` are drawn.

    Args:
        first, last: The steps to read, both included; None: from the first, or up to the last.
    """
    places = col(MetricRow.group), col(MetricRow.name)
    found = _lines(session, [run], places, (), first, last)
    return {(name, group): line for (group, name), line in found}


def line_of_each(
    session: Session,
    runs: Collection[str],
    group: str,
    name: str,
    *,
    first: int | None = None,
    last: int | None = None,
) -> dict[str, DrawnLine]:
    """Run → its numbers of one name and group, of those that have any. One query.

    Args:
        first, last: As `lines_of` has them.
    """
    named = col(MetricRow.group) == group, col(MetricRow.name) == name
    found = _lines(session, runs, (col(MetricRow.run),), named, first, last)
    return {run: line for (run,), line in found}


def _finest(session: Session, runs: Collection[str], first: int | None, last: int | None) -> int:
    """The finest resolution that a part of a run is drawn from: one more for each halving."""
    steps = session.scalar(select(func.max(col(RunRow.step))).where(col(RunRow.id).in_(runs))) or 0
    begin, end = first or 0, steps if last is None else min(last, steps)
    part = max(end - begin, 0) + 1
    return max(0, math.ceil(math.log2(max(steps, 1) / part)))


def _lines(
    session: Session,
    runs: Collection[str],
    places: Sequence[Any],
    named: Sequence[Any],
    first: int | None,
    last: int | None,
) -> Iterator[tuple[tuple[str, ...], DrawnLine]]:
    """The lines that have finite numbers, with what tells one from the next.

    Args:
        runs: Whose.
        places: The columns that tell one line from the next.
        named: What besides says which lines.
    """
    # An IN of one run would keep the index from giving the order.
    whose = (
        col(MetricRow.run) == next(iter(runs)) if len(runs) == 1 else col(MetricRow.run).in_(runs)
    )
    where = [whose, *named, col(MetricRow.archived).is_(False)]
    where += [] if first is None else [col(MetricRow.step) >= first]
    where += [] if last is None else [col(MetricRow.step) <= last]
    resolution, finest = col(MetricRow.resolution), _finest(session, runs, first, last)
    finer = select(*places).where(*where, resolution == finest + 1).distinct()
    more = {tuple(row) for row in session.execute(finer)}
    numbers = select(*places, col(MetricRow.step), col(MetricRow.value)).where(*where)
    ordered = numbers.order_by(*places, col(MetricRow.step))
    # From each resolution in the order of the index.
    read = (
        session.execute(ordered.where(resolution == each), execution_options=_AT_ONCE)
        for each in range(finest + 1)
    )
    rows = merge(*read, key=lambda row: row[:-1])
    for place, measured in groupby(rows, key=lambda row: tuple(row[:-2])):
        line = _drawn((row[-2:] for row in measured), place in more)
        if line is not None:
            yield place, line


def _drawn(measured: Iterator[Point], finer: bool) -> DrawnLine | None:
    steps = count()
    finite = (point for point in measured if math.isfinite(point[1]))
    points = downsample((point for point, _ in zip(finite, steps, strict=False)), MOST_POINTS)
    return DrawnLine(next(steps), points, finer) if points else None


def names_of(session: Session, runs: Collection[str]) -> list[tuple[str, str]]:
    """(Group, name) of everything that any of the runs measured, sorted. One query."""
    rows = session.execute(
        select(col(MetricRow.group), col(MetricRow.name))
        .where(
            col(MetricRow.run).in_(runs),
            col(MetricRow.archived).is_(False),
            col(MetricRow.resolution) == 0,
        )
        .distinct()
    )
    return sorted((group, name) for group, name in rows)


def titled(name: str) -> str:
    return name.replace("_", " ").capitalize()


def curves(lines: Lines) -> list[Curve]:
    """A chart for each name, the loss first; at most `MOST_CHARTS`."""
    names = sorted({name for name, _ in lines}, key=lambda name: (name != "loss", name))
    return [
        Curve(
            name,
            titled(name),
            [
                {"name": group, "points": line.points}
                for (each, group), line in sorted(lines.items(), key=lambda item: item[0])
                if each == name
            ],
        )
        for name in names[:MOST_CHARTS]
    ]


def loss_curve(session: Session, runs: Sequence[RunRow]) -> Curve | None:
    """The loss of one run, also where it was validated; of several the training loss of those
    whose last one is least, at most `MOST_LINES`."""

    def last(run: RunRow) -> float:
        return run.loss if run.loss is not None and math.isfinite(run.loss) else math.inf

    ids = [run.id for run in sorted(runs, key=last)[:MOST_LINES]]
    if not ids:
        return None
    groups = ("training", "validation") if len(ids) == 1 else ("training",)
    lines = {group: line_of_each(session, ids, group, "loss") for group in groups}
    series = [
        {"name": run if len(ids) > 1 else group, "points": lines[group][run].points}
        for group in groups
        for run in ids
        if run in lines[group]
    ]
    return Curve("loss", "Loss", series) if series else None
