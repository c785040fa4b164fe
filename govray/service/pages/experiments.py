"""Pages of experiments and trials: states, curves, decisions, checkpoints. For their readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import func, select
from sqlmodel import Session, col

from govray.service import visibility
from govray.service.access import Caller, CallerDep
from govray.service.pages.downsampling import Point, downsample
from govray.service.pages.figures import bars, shades
from govray.service.pages.parallel_plot import parallel
from govray.service.pages.rendering import render
from govray.service.pages.shared_queries import linked_corpora
from govray.service.pagination import PageDep
from govray.service.problems import Problem
from govray.service.routes.experiments import KnownExperiment, KnownTrial
from govray.service.session import SessionDep
from govray.service.visibility import RUN_READERS, whole_attestations
from govray.store.figures import PngImage, newest, one
from govray.store.states import ExperimentState, TrialState
from govray.store.tables import Attestation, Checkpoint, Decision, Experiment, Metric, Trial

MOST_TRIALS = 500
MOST_DECISIONS = 200
MOST_POINTS = 1000
"""Of one curve."""
_ROWS_AT_ONCE = 10_000
LATEST = 6

_LIVE = {TrialState.ACTIVE, TrialState.STOPPING, TrialState.PAUSED}
_KINDS: dict[str, Any] = {
    "bad_kinds": {"refused", "refusal", "error", "failed", "rollback"},
    "warn_kinds": {"stop", "stopped", "gate", "gated", "flag", "flagged", "restart", "interrupted"},
}

router = APIRouter(dependencies=[RUN_READERS])


def latest(session: Session, caller: Caller) -> list[tuple[Experiment, int]]:
    """The newest experiments that the caller may read, each with the number of its trials."""
    statement = select(Experiment).where(visibility.experiments(caller))
    statement = statement.order_by(col(Experiment.started).desc()).limit(LATEST)
    return _counted(session, session.execute(statement).scalars().all())


def _counted(session: Session, rows: Sequence[Experiment]) -> list[tuple[Experiment, int]]:
    counted = session.execute(
        select(col(Trial.experiment), func.count())
        .where(col(Trial.experiment).in_([row.id for row in rows]))
        .group_by(col(Trial.experiment))
    )
    trials = {row[0]: row[1] for row in counted}
    return [(row, trials.get(row.id, 0)) for row in rows]


@router.get("/experiments")
def listing(
    request: Request,
    caller: CallerDep,
    session: SessionDep,
    page: PageDep,
    state: Annotated[str, Query(max_length=32)] = "",
) -> HTMLResponse:
    statement = select(Experiment).where(visibility.experiments(caller))
    if state in ExperimentState.__members__:
        statement = statement.where(col(Experiment.state) == ExperimentState(state))
    columns: list[Any] = [Experiment.started, Experiment.id]
    rows, after = page.rows(session, statement, columns, [str, str], descending=True)
    return render(
        request,
        caller,
        "experiments.html",
        experiments=_counted(session, rows),
        after=after,
        state=state,
        states=[each.value for each in ExperimentState],
    )


@router.get("/experiments/{experiment}")
def of_experiment(
    request: Request, known: KnownExperiment, caller: CallerDep, session: SessionDep
) -> HTMLResponse:
    experiment = known.id
    trials = (
        session.execute(
            select(Trial)
            .where(col(Trial.experiment) == experiment)
            .order_by(col(Trial.started), col(Trial.id))
            .limit(MOST_TRIALS)
        )
        .scalars()
        .all()
    )
    decisions = (
        session.execute(
            select(Decision)
            .join(Trial, col(Trial.id) == col(Decision.trial))
            .where(col(Trial.experiment) == experiment)
            .order_by(col(Decision.at), col(Decision.trial), col(Decision.number))
            .limit(MOST_DECISIONS)
        )
        .scalars()
        .all()
    )
    axes, result = parallel(trials) if len(trials) > 1 else (None, "")
    return render(
        request,
        caller,
        "experiment.html",
        experiment=known,
        trials=trials,
        names=_varied(trials),
        axes=axes,
        result=result,
        decisions=decisions,
        linked=_linked(session, caller, decisions),
        show_trial=True,
        **_KINDS,
    )


def _linked(session: Session, caller: Caller, decisions: Sequence[Decision]) -> frozenset[str]:
    return linked_corpora(session, caller, [each.corpus for each in decisions if each.corpus])


def _varied(trials: Sequence[Trial]) -> list[str]:
    """The hyperparameters in which the trials differ."""
    names = sorted({name for trial in trials for name in trial.hyperparameters})
    return [
        name
        for name in names
        if len({str(trial.hyperparameters.get(name)) for trial in trials}) > 1
    ][:8]


@dataclass(frozen=True)
class Curve:
    """The numbers of one name: a line for each group that reports it."""

    name: str
    title: str
    series: list[dict[str, Any]]


@dataclass(frozen=True)
class Summary:
    """A curve in words, for the table beside it."""

    group: str
    name: str
    first: float
    least: float
    last: float
    steps: int


@router.get("/trials/{trial}")
def of_trial(
    request: Request, known: KnownTrial, caller: CallerDep, session: SessionDep
) -> HTMLResponse:
    trial = known.id
    lines = _lines(session, trial)
    live = known.state in _LIVE
    decisions = (
        session.execute(
            select(Decision)
            .where(col(Decision.trial) == trial)
            .order_by(col(Decision.step), col(Decision.number))
            .limit(MOST_DECISIONS)
        )
        .scalars()
        .all()
    )
    checkpoints = session.execute(
        select(Checkpoint).where(col(Checkpoint.trial) == trial).order_by(col(Checkpoint.step))
    ).scalars()
    attested = session.execute(
        select(Attestation).where(col(Attestation.run) == trial, whole_attestations(caller))
    ).scalars()
    return render(
        request,
        caller,
        "trial.html",
        trial=known,
        experiment=session.get(Experiment, known.experiment),
        charts=_curves(lines),
        numbers=_summaries(lines),
        live=live,
        stream=f"/v1/trials/{trial}/metrics/stream" if live else None,
        decisions=decisions,
        linked=_linked(session, caller, decisions),
        replayed=known.replay_of is not None and _is_there(session, caller, known.replay_of),
        show_trial=False,
        checkpoints=checkpoints.all(),
        attestations=attested.all(),
        figures=newest(_folder(session, known)),
        bars=bars,
        shades=shades,
        **_KINDS,
    )


def _is_there(session: Session, caller: Caller, trial: str) -> bool:
    """Whether there is a page of a trial that this caller may open."""
    found = select(col(Trial.id)).where(col(Trial.id) == trial, visibility.trials(caller))
    return session.execute(found).first() is not None


@router.get("/trials/{trial}/figures/{file}")
def image(
    known: KnownTrial,
    session: SessionDep,
    file: Annotated[str, Path(pattern=r"^[0-9a-f]{16}-[0-9]{9}\.json$")],
) -> Response:
    """A picture that the run reported, as the PNG file that it is."""
    found = one(_folder(session, known), file)
    if found is None or not isinstance(found.figure, PngImage):
        raise Problem(404, "No such figure", "the run keeps no picture of this name")
    return Response(found.figure.data, media_type="image/png")


def _folder(session: Session, trial: Trial) -> str:
    """The run's folder, where it was when it was indexed."""
    storage = session.get_one(Experiment, trial.experiment).storage
    return f"{storage.rstrip('/')}/{trial.folder}"


@dataclass(frozen=True)
class DrawnLine:
    """One metric of one group: how many steps measured it, and the points that are drawn."""

    steps: int
    points: list[Point]


Lines = Mapping[tuple[str, str], DrawnLine]


def _lines(session: Session, trial: str) -> Lines:
    """(Name, group) → the numbers of the attempts that count; at most `MOST_POINTS` are drawn."""
    rows = session.execute(
        select(col(Metric.group), col(Metric.name), col(Metric.step), col(Metric.value))
        .where(col(Metric.trial) == trial, col(Metric.archived).is_(False))
        .order_by(col(Metric.group), col(Metric.name), col(Metric.step))
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    found = {}
    for (group, name), measured in groupby(rows, key=lambda row: (row[0], row[1])):
        steps = count()
        finite = ((row[2], row[3]) for row in measured if math.isfinite(row[3]))
        points = downsample((point for point, _ in zip(finite, steps, strict=False)), MOST_POINTS)
        if points:
            found[name, group] = DrawnLine(next(steps), points)
    return found


def _curves(lines: Lines) -> list[Curve]:
    names = sorted({name for name, _ in lines}, key=lambda name: (name != "loss", name))
    return [
        Curve(
            name,
            name.replace("_", " ").capitalize(),
            [
                {"name": group, "points": line.points}
                for (each, group), line in sorted(lines.items(), key=lambda item: item[0])
                if each == name
            ],
        )
        for name in names[:12]
    ]


def _summaries(lines: Lines) -> list[Summary]:
    return [
        Summary(
            group=group,
            name=name,
            first=line.points[0][1],
            least=min(value for _, value in line.points),
            last=line.points[-1][1],
            steps=line.steps,
        )
        for (name, group), line in sorted(lines.items(), key=lambda item: item[0][::-1])
    ]
