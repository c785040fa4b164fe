"""Experiments, runs, and what their runs measured and decided.

They are for staff, and for who has a role in their project.

Suppliers and the public have no route here: a run's settings and numbers are its owner's. What a
corpus was used for, its supplier reads at the corpus.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import ConfigDict, Field
from sqlmodel import Session, col, func, select

from govray.governance.formats.document import Count, Timestamp
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import not_allowed
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import require
from govray.platform.service.identity.audit_log import Audit
from govray.platform.service.identity.caller import Role
from govray.platform.service.identity.pagination import (
    Listing,
    PageDep,
    answers,
    columns_of,
    filtered,
)
from govray.platform.service.identity.roles import may
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible import visible_runs
from govray.platform.service.visible.readers import RUN_READERS, reads_runs
from govray.platform.service.visible.visible_runs import find_experiment, find_run
from govray.platform.store import tables
from govray.platform.store.database import begin_writing
from govray.platform.store.experiment_tags import MOST_TAGS, TAG, replace_tags, tags_of
from govray.platform.store.states import CheckpointState, ExperimentState, RunState

router = APIRouter(tags=["experiments"], dependencies=[RUN_READERS])

Filter = Annotated[str | None, Query(max_length=200)]
Since = Annotated[Timestamp | None, Query(description="Those that started then or later.")]
Before = Annotated[Timestamp | None, Query(description="Those that started earlier.")]


class Experiment(Answer, tables.ExperimentColumns):  # type: ignore[misc]  # two configs
    """One experiment file, or one search, and what became of it."""


class Run(Answer, tables.RunColumns):  # type: ignore[misc]
    """One run."""


class Metric(Answer):
    """One number of one step."""

    group: str
    name: str
    step: int
    attempt: int
    value: float | None = Field(default=None, description="null: the number was not finite.")
    archived: bool = Field(description="A restart or rollback ran the step again.")
    at: str | None = None


class Decision(Answer):
    """A stop, restart, gate, flag, rollback or refusal."""

    source: str
    number: int
    kind: str
    at: str | None = None
    step: int | None = None
    corpus: str | None = None
    reason: str
    evidence: dict[str, Any]


class Checkpoint(Answer):
    """A commit of a run that is whole, or was."""

    step: int
    state: Literal["COMPLETED", "DELETED"]
    digest: str | None = None
    bytes: Count
    at: str | None = None


@router.get("/experiments")
def experiments(
    visit: VisitDep,
    page: PageDep,
    state: ExperimentState | None = None,
    project: Filter = None,
    user: Filter = None,
    name: Filter = None,
    tag: Annotated[
        str | None, Query(max_length=64, description="A tag that they have.", examples=["paper"])
    ] = None,
    since: Since = None,
    before: Before = None,
) -> Listing[Experiment]:
    """The experiments that you may read, the latest first."""
    row = tables.Experiment
    statement = select(*columns_of(row, Experiment)).where(visible_runs.experiments(visit.caller))
    if tag is not None:
        tagged = select(tables.ExperimentTag.experiment).where(tables.ExperimentTag.tag == tag)
        statement = statement.where(col(row.id).in_(tagged))
    statement = filtered(
        statement,
        *((row.state, state), (row.project, project), (row.user, user), (row.name, name)),
    )
    statement = started_between(statement, row.started, since, before)
    order = (row.started, row.id)
    return page.listing(visit.session, statement, order, answers(Experiment), descending=True)


def started_between(statement: Any, started: Any, since: str | None, before: str | None) -> Any:
    """The statement with the bounds that are given; times are texts that sort."""
    if since is not None:
        statement = statement.where(col(started) >= since)
    return statement if before is None else statement.where(col(started) < before)


def known_experiment(visit: VisitDep, experiment: str) -> tables.Experiment:
    return find_experiment(visit.session, visit.caller, experiment)


KnownExperiment = Annotated[tables.Experiment, Depends(known_experiment)]


@router.get("/experiments/{experiment}")
def experiment(known: KnownExperiment) -> Experiment:
    """One experiment."""
    return Experiment.model_validate(known)


@router.get("/runs")
def runs(
    visit: VisitDep,
    page: PageDep,
    experiment: Filter = None,
    state: RunState | None = None,
    policy: Filter = None,
    since: Since = None,
    before: Before = None,
) -> Listing[Run]:
    """The runs that you may read, the latest first."""
    row = tables.Run
    statement = filtered(
        select(*columns_of(row, Run)).where(visible_runs.runs(visit.caller)),
        *((row.experiment, experiment), (row.state, state), (row.policy, policy)),
    )
    statement = started_between(statement, row.started, since, before)
    order = (row.started, row.id)
    return page.listing(visit.session, statement, order, answers(Run), descending=True)


def known_run(visit: VisitDep, run: str) -> tables.Run:
    return find_run(visit.session, visit.caller, run)


KnownRun = Annotated[tables.Run, Depends(known_run)]


@router.get("/runs/{run}")
def run(known: KnownRun) -> Run:
    """One run."""
    return Run.model_validate(known)


@router.get("/runs/{run}/metrics")
def metrics(
    session: SessionDep,
    known: KnownRun,
    page: PageDep,
    group: Filter = None,
    name: Filter = None,
    archived: Annotated[
        bool, Query(description="Also what a restart or rollback superseded.")
    ] = False,
) -> Listing[Metric]:
    """What a run measured, by group, name and step."""
    statement, order = numbers(session, known.id, group, name, archived=archived)
    return page.listing(session, statement, order, answers(Metric))


def numbers(
    session: Session, run: str, group: str | None, name: str | None, *, archived: bool
) -> tuple[Any, tuple[Any, ...]]:
    """The numbers of a run by these filters, and the columns that tell two of them apart. With
    one that all have alike, the index could not go on at a step.

    Args:
        archived: Those that a restart superseded too.
    """
    m = tables.Metric
    if name is not None and group is None:
        group = _only_group(session, run, name)
    statement = filtered(
        select(*columns_of(m, Metric)).where(m.run == run),
        *((m.group, group), (m.name, name), (m.archived, None if archived else False)),
    )
    open_ = [column for column, given in ((m.group, group), (m.name, name)) if given is None]
    return statement, (*open_, m.step, m.attempt)


_MOST_GROUPS = 32


def _only_group(session: Session, run: str, name: str) -> str | None:
    """The group of all numbers of this name, if it is one of a few. The index has the group first.
    Without it a million numbers would be looked through for each page."""
    m = tables.Metric
    found: list[str] = []
    group: str | None = None
    for _ in range(_MOST_GROUPS):
        following = select(func.min(col(m.group))).where(m.run == run)
        if group is not None:
            following = following.where(col(m.group) > group)
        if (group := session.scalar(following)) is None:
            return found[0] if len(found) == 1 else None
        of_name = select(m.step).where(m.run == run, m.group == group, m.name == name)
        if session.scalar(of_name.limit(1)) is not None:
            found.append(group)
    return None


@router.get("/runs/{run}/decisions")
def decisions(
    session: SessionDep, known: KnownRun, page: PageDep, kind: Filter = None
) -> Listing[Decision]:
    """What was decided during a run, and why."""
    row = tables.Decision
    statement = filtered(select(row).where(row.run == known.id), (row.kind, kind))
    return page.listing(session, statement, (row.source, row.number), Decision.model_validate)


@router.get("/runs/{run}/checkpoints")
def checkpoints(session: SessionDep, known: KnownRun, page: PageDep) -> Listing[Checkpoint]:
    """A run's checkpoints. One that is being written, or failed, is not among them."""
    row = tables.Checkpoint
    whole = (CheckpointState.COMPLETED, CheckpointState.DELETED)
    statement = select(row).where(row.run == known.id, col(row.state).in_(whole))
    return page.listing(session, statement, (row.step,), Checkpoint.model_validate)


TAGGING: tuple[Role, ...] = ("admin", "engineer")
"""The roles that put tags on experiments, with a token of the scope ``write``."""

TAGGERS = Depends(require(*TAGGING, scope="write", bound=reads_runs))
"""What a route demands beside `check_tagging`."""


def may_tag(visit: Visit, experiment: tables.Experiment) -> bool:
    """Whether the caller may put tags on the experiment: who may submit in its project."""
    project = visit.session.get(tables.Project, experiment.project)
    return may(visit.caller, "submit", project, at=visit.at)


def check_tagging(visit: Visit, experiment: tables.Experiment) -> None:
    """Return if the caller may put tags on the experiment."""
    if not may_tag(visit, experiment):
        raise not_allowed(
            f"Your role in the project {experiment.project} puts no tags on its experiments",
            "Ask for the role engineer there, or use a token with the scope write",
        )


Tag = Annotated[str, Field(pattern=TAG)]


class ExperimentTags(Answer):
    """The tags of one experiment."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] = Field(
        description=f"All of them, at most {MOST_TAGS}. A tag is up to 64 letters, digits, . _ -."
    )


@router.get("/experiments/{experiment}/tags")
def tags(known: KnownExperiment, session: SessionDep) -> ExperimentTags:
    """The tags of an experiment, sorted."""
    return ExperimentTags(tags=tags_of(session, [known.id]).get(known.id, []))


@router.put("/experiments/{experiment}/tags", dependencies=[TAGGERS])
def put_tags(visit: VisitDep, given: ExperimentTags, known: KnownExperiment) -> ExperimentTags:
    """Replace the tags of an experiment. An empty list removes them."""
    check_tagging(visit, known)
    return ExperimentTags(tags=tag(visit.session, visit.audit, known.id, given.tags))


def tag(session: Session, audit: Audit, experiment: str, tags: list[str]) -> list[str]:
    """Replace an experiment's tags, with an entry in the audit log, and commit."""
    begin_writing(session)
    kept = replace_tags(session, experiment, tags)
    audit.write(session, "experiment.tag", experiment, {"tags": " ".join(kept)})
    session.commit()
    return kept
