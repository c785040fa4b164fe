"""What the page of a search draws of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select
from sqlmodel import Session, col

from govray.platform.service.pages.charts.scatter_plot import ScatterPlot, TrialPoint, scatter
from govray.platform.store.tables import Experiment, Metric, Trial

_GROUP = "search"
_MEMORIZATION = "memorization"
"""How the index calls what a search's trials reported, and M among it."""


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
    session: Session, experiment: Experiment, trials: Sequence[Trial], names: Sequence[str], x: str
) -> SearchPlots:
    """The drawings of ``trials``. ``x``: the one to draw; the first of ``names`` if it is none of
    them."""
    objective = any(trial.objective is not None for trial in trials)
    result = "objective" if objective else "loss"
    values = {trial.id: _finite(getattr(trial, result)) for trial in trials}
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
            [TrialPoint(t.id, t.hyperparameters.get(chosen), values[t.id]) for t in trials],
            best=best,
        )
        if chosen
        else None,
        memorization=_memorization(session, trials, str(search.get("metric", "loss")), limit),
        limit=limit,
    )


def _limit(search: Mapping[str, Any]) -> float | None:
    section = search.get("memorization")
    limit = section.get("tau") if isinstance(section, Mapping) else None
    # A search without a limit says ``.inf``.
    return float(limit) if isinstance(limit, int | float) and math.isfinite(limit) else None


def _memorization(
    session: Session, trials: Sequence[Trial], metric: str, limit: float | None
) -> ScatterPlot | None:
    reported = _last(session, [trial.id for trial in trials], (metric, _MEMORIZATION))
    points = [
        TrialPoint(
            trial.id,
            reported.get((trial.id, metric), _finite(trial.loss)),
            reported.get((trial.id, _MEMORIZATION)),
        )
        for trial in trials
    ]
    return scatter(metric, "M", points, limit=limit)


def _last(
    session: Session, trials: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """(Trial, name) → the last number that it reported to the search. One query."""
    of = (
        col(Metric.trial).in_(trials),
        col(Metric.group) == _GROUP,
        col(Metric.name).in_(names),
        col(Metric.archived).is_(False),
    )
    newest = (
        select(
            col(Metric.trial).label("trial"),
            col(Metric.name).label("name"),
            func.max(col(Metric.step)).label("step"),
        )
        .where(*of)
        .group_by(col(Metric.trial), col(Metric.name))
        .subquery()
    )
    rows = session.execute(
        select(col(Metric.trial), col(Metric.name), col(Metric.value))
        .join(
            newest,
            and_(
                newest.c.trial == col(Metric.trial),
                newest.c.name == col(Metric.name),
                newest.c.step == col(Metric.step),
            ),
        )
        .where(*of)
    )
    return {(row[0], row[1]): row[2] for row in rows if math.isfinite(row[2])}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
