"""Pages of experiments and runs: states, curves, decisions, checkpoints, logs. For their readers.

The page of logs reads without a script; the script adds lines as they come. A line's colour is by
its words, which say the same to whoever sees none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import ColumnElement, func, select
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.governance.submission.submission import MOST_TAGS
from govray.platform.service.acting.acting import Demand
from govray.platform.service.http.edits import etag
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import PageDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.charts.curves import (
    MOST_LINES,
    MOST_POINTS,
    ViewDep,
    curves,
    lines_of,
    loss_curve,
)
from govray.platform.service.pages.charts.search_plots import search_plots
from govray.platform.service.pages.form_fields import deleting, form_of, then
from govray.platform.service.pages.new_experiment import may_start
from govray.platform.service.pages.queue import standing
from govray.platform.service.pages.rendering import render
from govray.platform.service.pages.shared_queries import linked_corpora, model_rows
from govray.platform.service.routes import deletions
from govray.platform.service.routes.experiments import (
    KnownExperiment,
    ask,
    check_tagging,
    experiments,
    known_experiment,
    listed,
    may_tag,
    tag,
)
from govray.platform.service.routes.logs import LARGEST, LONGEST_SEARCH, folder_of, part_of
from govray.platform.service.routes.runs import KnownRun, known_run
from govray.platform.service.visible import visible_runs
from govray.platform.service.visible.visible_models import whole_attestations
from govray.platform.service.visible.visible_runs import FoundExperiment, told_once
from govray.platform.store import run_logs
from govray.platform.store.experiment_tags import check_tags, tags_of
from govray.platform.store.queue_entries import ENDED, goes_on
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import (
    AttestationRow,
    CheckpointRow,
    DecisionRow,
    DeletionRow,
    ExperimentRow,
    RunRow,
)
from govray.platform.wire.answers import MOST_RUNS
from govray.train.run_folder.figures import ConfusionMatrix, Histogram, PngImage, newest, one

SHADES = 6
WIDTH, HEIGHT = 600.0, 160.0


def bars(histogram: Histogram) -> list[dict[str, Any]]:
    """The bars, as wide as what lies between their edges, in a drawing of `WIDTH` by `HEIGHT`."""
    low, high = histogram.edges[0], histogram.edges[-1]
    most = max(histogram.counts) or 1
    drawn = []
    for count, (left, right) in zip(histogram.counts, pairwise(histogram.edges), strict=False):
        height = HEIGHT * count / most
        x, end = ((edge - low) / (high - low) * WIDTH for edge in (left, right))
        title = f"{left:.4g} to {right:.4g}: {count:,}"
        place = {"x": x, "y": HEIGHT - height, "width": end - x, "height": height}
        drawn.append({**place, "title": title})
    return drawn


def shades(matrix: ConfusionMatrix) -> list[list[int]]:
    """Of each cell, by its share of its row: 0 for none, up to `SHADES`."""
    found = []
    for row in matrix.counts:
        total = sum(row) or 1
        found.append([-(-count * SHADES // total) for count in row])
    return found


MOST_DECISIONS = 200
LATEST = 6
MOST_COLUMNS = 8
"""Hyperparameters in the table of runs."""

_KINDS: dict[str, Any] = {
    "bad_kinds": {"refused", "refusal", "error", "failed", "rollback"},
    "warn_kinds": {
        "stop",
        "stopped",
        "gate",
        "gated",
        "flag",
        "flagged",
        "noticed",
        "restart",
        "interrupted",
    },
}

router = APIRouter(dependencies=[needs("view")])


def latest(visit: Visit) -> list[tuple[Any, int]]:
    """The newest experiments that the caller may read, each with the number of its runs."""
    e = listed(visit.caller)
    statement = select(e).order_by(e.c.submitted.desc(), e.c.id).limit(LATEST)
    return _counted(visit.session, visit.session.execute(statement).all())


def _counted(session: Session, rows: Sequence[Any]) -> list[tuple[Any, int]]:
    counted = session.execute(
        select(col(RunRow.experiment), func.count())
        .where(col(RunRow.experiment).in_([row.id for row in rows]))
        .group_by(col(RunRow.experiment))
    )
    runs = {row[0]: row[1] for row in counted}
    return [(row, runs.get(row.id, 0)) for row in rows]


@router.get("/experiments")
def listing(
    visit: VisitDep,
    page: PageDep,
    state: Annotated[str, Query(max_length=32)] = "",
    user: Annotated[str, Query(max_length=256)] = "",
    archived: Annotated[str, Query(max_length=8)] = "",
) -> HTMLResponse:
    wanted = ExperimentState.__members__.get(state)
    found = experiments(
        visit, page, wanted, sort="-submitted", user=user or None, archived=archived == "yes"
    )
    return render(
        visit,
        "experiments.html",
        experiments=_counted(visit.session, found.items),
        after=found.next,
        state=state,
        states=[each.value for each in ExperimentState],
        user=user,
        archived=archived == "yes",
        acts=may_start(visit.caller),
    )


@router.get("/experiments/{experiment}")
def of_experiment(
    visit: VisitDep,
    known: KnownExperiment,
    x: Annotated[str, Query(max_length=400)] = "",
    ask: Annotated[str, Query(max_length=16)] = "",
) -> HTMLResponse:
    return experiment_page(visit, known, x=x, ask=ask)


def experiment_page(
    visit: Visit,
    known: FoundExperiment,
    *,
    x: str = "",
    ask: str = "",
    tags_given: str | None = None,
    tags_wrong: str = "",
) -> HTMLResponse:
    """The page of an experiment. ``tags_given``: what the form of tags has; None: the tags that
    there are. ``tags_wrong``: why that was refused, so that the answer is a 422."""
    experiment = known.id
    own = col(RunRow.experiment) == experiment
    runs = visit.session.scalars(
        select(RunRow).where(own).order_by(col(RunRow.started), col(RunRow.id)).limit(MOST_RUNS)
    ).all()
    decisions = _decisions(visit.session, own)
    trained = [run for run in runs if run.replay_of is None]
    names = varied(runs)
    tags = tags_of(visit.session, [experiment]).get(experiment, [])
    return render(
        visit,
        "experiment.html",
        status=422 if tags_wrong else 200,
        experiment=known,
        **(standing(visit, known.entry, ask) if known.entry else {"entry": None}),
        deletion=deletions.mark_of(visit, experiment),
        deletes=bool(runs) and known.state in ENDED and deletions.may_delete(visit, experiment),
        asked=ask,
        tags=tags,
        shown=etag(tags),
        tags_open=may_tag(visit, known),
        tags_given=" ".join(tags) if tags_given is None else tags_given,
        tags_wrong=tags_wrong,
        most_tags=MOST_TAGS,
        models=model_rows(visit, col(AttestationRow.run).in_(select(col(RunRow.id)).where(own)))[0],
        running=known.state not in ENDED,
        chart=loss_curve(visit.session, trained),
        trained=trained,
        most_lines=MOST_LINES,
        tail=_tail(visit.session, trained),
        level=level,
        runs=runs,
        names=names[:MOST_COLUMNS],
        plots=search_plots(visit.session, known.indexed, runs, names, x)
        if known.indexed and len(runs) > 1
        else None,
        decisions=decisions,
        linked=_linked(visit, decisions),
        show_run=True,
        **_KINDS,
    )


def _decisions(session: Session, whose: ColumnElement[bool]) -> Sequence[DecisionRow]:
    """``whose``: a condition on `RunRow`."""
    d = DecisionRow
    statement = select(d).join(RunRow, col(RunRow.id) == col(d.run)).where(whose, told_once())
    statement = statement.order_by(col(d.step), col(d.run), col(d.number), col(d.source))
    return session.scalars(statement.limit(MOST_DECISIONS)).all()


def _linked(visit: Visit, decisions: Sequence[DecisionRow]) -> frozenset[str]:
    return linked_corpora(visit, [each.corpus for each in decisions if each.corpus])


def varied(runs: Sequence[RunRow]) -> list[str]:
    names = sorted({name for run in runs for name in run.hyperparameters})
    return [name for name in names if len({str(run.hyperparameters.get(name)) for run in runs}) > 1]


@router.get("/runs/{run}")
def of_run(
    visit: VisitDep,
    known: KnownRun,
    view: ViewDep,
    ask: Annotated[str, Query(max_length=16)] = "",
) -> HTMLResponse:
    run = known.id
    deletes = deletions.may_delete(visit, known.experiment)
    lines = lines_of(visit.session, run, first=view.first, last=view.last)
    live = goes_on(visit.session, known)
    decisions = _decisions(visit.session, col(RunRow.id) == run)
    checkpoints = visit.session.scalars(
        select(CheckpointRow).where(col(CheckpointRow.run) == run).order_by(col(CheckpointRow.step))
    )
    own, readable = col(RunRow.id) == known.replay_of, visible_runs.runs(visit.caller)
    replayed = select(col(RunRow.id)).where(own, readable)
    attested = visit.session.scalars(
        select(AttestationRow).where(
            col(AttestationRow.run) == run, whole_attestations(visit.caller)
        )
    )
    return render(
        visit,
        "run.html",
        run=known,
        experiment=visit.session.get(ExperimentRow, known.experiment),
        view=view,
        charts=curves(lines),
        thinned=any(line.thinned for line in lines.values()),
        most=MOST_POINTS,
        lines=sorted(lines.items(), key=lambda item: item[0][::-1]),
        live=live,
        deletion=visit.session.get(DeletionRow, run),
        deletes=deletes and not live,
        asked=ask,
        stream=f"/v1/runs/{run}/metrics/stream" if live else None,
        decisions=decisions,
        linked=_linked(visit, decisions),
        replayed=visit.session.execute(replayed).first() is not None,
        show_run=False,
        checkpoints=checkpoints.all(),
        attestations=attested.all(),
        models=model_rows(visit, col(AttestationRow.run) == run)[0],
        running=live,
        figures=newest(folder_of(visit.session, known)),
        bars=bars,
        shades=shades,
        **_KINDS,
    )


deleting(router, "/runs/{run}", known_run, deletions.delete_run, deletions.restore_run)
deleting(
    router,
    "/experiments/{experiment}",
    known_experiment,
    deletions.delete_experiment,
    deletions.restore_experiment,
)


@router.get("/runs/{run}/figures/{file}")
def image(
    known: KnownRun,
    session: SessionDep,
    file: Annotated[str, Path(pattern=r"^[0-9a-f]{16}-[0-9]{9}\.json$")],
) -> Response:
    """A picture that the run reported, as the PNG file that it is."""
    found = one(folder_of(session, known), file)
    if found is None or not isinstance(found.figure, PngImage):
        raise Problem(404, "No such figure", "the run keeps no picture of this name")
    return Response(found.figure.data, media_type="image/png")


_LONGEST = 2000
"""Characters of the field: more than the tags that an experiment may have."""


async def _given(request: Request) -> str:
    return (await form_of(request)).get("tags", "")[:_LONGEST]


@router.post("/experiments/{experiment}/tags", dependencies=[needs("submit")])
def save(
    visit: VisitDep, known: KnownExperiment, given: Annotated[str, Depends(_given)]
) -> Response:
    """Replace the tags, and show the experiment again."""
    check_tagging(visit, known)
    try:
        tag(visit, known, check_tags(given.split()))
    except UsageError as error:
        return experiment_page(visit, known, tags_given=given, tags_wrong=f"{error.what}.")
    return then(f"/experiments/{quote(known.id, safe='')}")


@router.post("/experiments/{experiment}/{verb}", dependencies=[needs("submit"), Depends(form_of)])
def act(visit: VisitDep, known: KnownExperiment, verb: Demand) -> Response:
    ask(visit, known, verb)
    return then(f"/experiments/{quote(known.id, safe='')}")


LINES = 500
TAIL = 20
"""Lines of a log on the page of an experiment."""

# As `level` in static/logs.js.
_BAD = re.compile(r"\b(error|exception|traceback|fatal|critical|failed|killed)\b", re.I)
_BAD_NAME = re.compile(r"[a-z]Error\b")
_WARN = re.compile(r"\bwarn(ing)?\b", re.I)
_WARN_NAME = re.compile(r"[a-z]Warning\b")


def level(text: str) -> str:
    """The class of a line by its words; empty for most."""
    if _BAD.search(text) or _BAD_NAME.search(text):
        return "bad"
    return "warn" if _WARN.search(text) or _WARN_NAME.search(text) else ""


def _newest(kept: Sequence[run_logs.KeptLog]) -> str:
    """The log of rank 0 in the last attempt, or else the first; empty if none is kept."""
    of_rank = [each.name for each in kept if "rank-0-" in each.name]
    return of_rank[-1] if of_rank else kept[0].name if kept else ""


def _tail(session: Session, runs: Sequence[RunRow]) -> dict[str, Any] | None:
    """The last lines of what the newest of the runs printed."""
    if not runs:
        return None
    folder = folder_of(session, runs[-1])
    name = _newest(run_logs.listed(folder))
    part = run_logs.read(folder, name, start=None, most=TAIL)
    return {"run": runs[-1].id, "name": name, "lines": part.lines if part else ()}


@router.get("/runs/{run}/logs")
def logs_of_run(
    visit: VisitDep,
    known: KnownRun,
    name: Annotated[str, Query(max_length=64)] = "",
    search: Annotated[str, Query(max_length=LONGEST_SEARCH)] = "",
    start: Annotated[int | None, Query(alias="from", ge=0, le=LARGEST)] = None,
) -> HTMLResponse:
    kept = run_logs.listed(folder_of(visit.session, known))
    name = name or _newest(kept)
    part = (
        part_of(visit.session, known, name, search=search, start=start, lines=LINES)
        if name
        else None
    )
    live = goes_on(visit.session, known) and part is not None and not search and start is None
    return render(
        visit,
        "logs.html",
        run=known,
        kept=kept,
        log=name,
        search=search,
        part=part,
        level=level,
        from_end=start is None and not search,
        stream=f"/v1/runs/{known.id}/logs/{name}/stream?from={part.next}"
        if live and part
        else None,
    )
