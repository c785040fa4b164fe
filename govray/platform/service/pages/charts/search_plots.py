"""What the page of a search draws of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlmodel import Session, col

from govray.platform.store.tables import ExperimentRow, MetricRow, RunRow

DECADES = 1.5
"""Numbers that span more have a logarithmic axis."""

LEFT, RIGHT, TOP, BOTTOM = 80.0, 620.0, 30.0, 300.0


@dataclass(frozen=True)
class PlottedRun:
    """A point. ``name`` is its run's; ``kind`` its look: ``plain``, ``best`` or ``over``."""

    x: float
    y: float
    name: str
    title: str
    kind: str


@dataclass(frozen=True)
class Mark:
    """A number or word beside an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class ScatterPlot:
    """What the drawing needs. ``limit`` is the height of the limit's line, if it has one.
    ``left_out`` counts runs without one of the two values."""

    x_name: str
    y_name: str
    points: tuple[PlottedRun, ...]
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    limit: Mark | None
    left_out: int


@dataclass(frozen=True)
class RunPoint:
    """One run before it is placed; either value may be missing."""

    name: str
    x: object
    y: float | None


def scatter(
    x_name: str,
    y_name: str,
    runs: Sequence[RunPoint],
    *,
    best: str | None = None,
    limit: float | None = None,
) -> ScatterPlot | None:
    """The drawing; None where fewer than two runs have both values. ``best``: the name of the
    run that is marked. ``limit``: a height with a line across; runs above it are marked too."""
    placed = [each for each in runs if each.x is not None and each.y is not None]
    if len(placed) < 2:
        return None
    heights: list[object] = [each.y for each in placed]
    x_marks, xs = axis([each.x for each in placed])
    # The limit takes part in the scale, so that its line lies within the drawing.
    y_marks, ys = axis([*heights, limit] if limit is not None else heights)
    points = tuple(
        PlottedRun(
            _across(x or 0.0),
            _up(y or 0.0),
            each.name,
            f"{each.name}: {x_name} {_told(each.x)}, {y_name} {_told(each.y)}",
            _kind(each, best, limit),
        )
        for each, x, y in zip(placed, xs, ys, strict=False)
    )
    line = None
    if limit is not None and ys[-1] is not None:
        line = Mark(_up(ys[-1]), f"limit {limit:.4g}")
    return ScatterPlot(
        x_name,
        y_name,
        points,
        tuple(Mark(_across(share), text) for share, text in x_marks),
        tuple(Mark(_up(share), text) for share, text in y_marks),
        line,
        len(runs) - len(placed),
    )


def _kind(run: RunPoint, best: str | None, limit: float | None) -> str:
    if limit is not None and run.y is not None and run.y > limit:
        return "over"
    return "best" if run.name == best else "plain"


def _across(share: float) -> float:
    return round(LEFT + share * (RIGHT - LEFT), 1)


def _up(share: float) -> float:
    return round(BOTTOM - share * (BOTTOM - TOP), 1)


def _told(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def axis(column: Sequence[object]) -> tuple[list[tuple[float, str]], list[float | None]]:
    """Marks (share of the axis, text), and each value's share in [0, 1]; None where it has none."""
    present = [value for value in column if value is not None]
    if present and all(_number(value) for value in present):
        return _scale([None if v is None else float(v) for v in column])  # type: ignore[arg-type]
    texts = sorted({str(value) for value in present})
    shares = {text: i / max(len(texts) - 1, 1) for i, text in enumerate(texts)}
    marks = [(share, text[:18]) for text, share in shares.items()]
    return marks, [None if value is None else shares[str(value)] for value in column]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scale(column: Sequence[float | None]) -> tuple[list[tuple[float, str]], list[float | None]]:
    present = [value for value in column if value is not None]
    low, high = min(present), max(present)
    log = low > 0 and math.log10(high / low) > DECADES
    read = math.log10 if log else float
    start, span = read(low), (read(high) - read(low)) or 1.0
    marks = [(0.0, f"{low:.4g}")] + ([(1.0, f"{high:.4g}")] if high > low else [])
    return marks, [None if v is None else round((read(v) - start) / span, 4) for v in column]


_GROUP = "search"
_MEMORIZATION = "memorization"
"""How the index calls what a search's runs reported, and M among it."""


@dataclass(frozen=True)
class SearchPlots:
    """The drawings of one search. ``memorization``: M against the metric that the search compares.
    ``limit``: of M, if the search has one that is finite."""

    result: str
    names: tuple[str, ...]
    chosen: str
    against: ScatterPlot | None
    memorization: ScatterPlot | None
    limit: float | None


def search_plots(
    session: Session,
    experiment: ExperimentRow,
    runs: Sequence[RunRow],
    names: Sequence[str],
    x: str,
) -> SearchPlots:
    """The drawings of ``runs``. ``x``: the one to draw; the first of ``names`` if it is not
    among them."""
    objective = any(run.objective is not None for run in runs)
    result = "objective" if objective else "loss"
    values = {run.id: _finite(getattr(run, result)) for run in runs}
    known = {name: value for name, value in values.items() if value is not None}
    best = min(known, key=known.__getitem__) if known else None
    chosen = x if x in names else (names[0] if names else "")
    search = experiment.config.get("search")
    search = search if isinstance(search, Mapping) else {}
    limit = _limit(search)
    return SearchPlots(
        result=result,
        names=tuple(names),
        chosen=chosen,
        against=scatter(
            chosen,
            result,
            [RunPoint(t.id, t.hyperparameters.get(chosen), values[t.id]) for t in runs],
            best=best,
        )
        if chosen
        else None,
        memorization=_memorization(session, runs, str(search.get("metric", "loss")), limit),
        limit=limit,
    )


def _limit(search: Mapping[str, Any]) -> float | None:
    section = search.get("memorization")
    limit = section.get("tau") if isinstance(section, Mapping) else None
    # A search without a limit says ``.inf``.
    return float(limit) if isinstance(limit, int | float) and math.isfinite(limit) else None


def _memorization(
    session: Session, runs: Sequence[RunRow], metric: str, limit: float | None
) -> ScatterPlot | None:
    reported = _last(session, [run.id for run in runs], (metric, _MEMORIZATION))
    points = [
        RunPoint(
            run.id,
            reported.get((run.id, metric), _finite(run.loss)),
            reported.get((run.id, _MEMORIZATION)),
        )
        for run in runs
    ]
    return scatter(metric, "M", points, limit=limit)


def _last(
    session: Session, runs: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """(Run, name) → the last number that it reported to the search. One query."""
    m = MetricRow
    of = (
        *(col(m.run).in_(runs), col(m.group) == _GROUP, col(m.name).in_(names)),
        col(m.archived).is_(False),
    )
    newest = select(col(m.run), col(m.name), func.max(col(m.step))).where(*of)
    newest = newest.group_by(col(m.run), col(m.name))
    place = tuple_(col(m.run), col(m.name), col(m.step))
    rows = session.execute(
        select(col(m.run), col(m.name), col(m.value)).where(*of, place.in_(newest))
    )
    return {(row[0], row[1]): row[2] for row in rows if math.isfinite(row[2])}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
