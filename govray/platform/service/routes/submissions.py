"""Submitting experiments, and what is asked of a submission: stop, kill, resume, archive.

A submission is an entry of the queue. Nothing runs in this process: the reconciler of the cluster
takes the entries that wait. For staff to read, and for who has a role in the project. Engineers and
admins act, with a token of the scope ``write`` (`govray.platform.service.acting.acting.may_act`).
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query
from pydantic import ConfigDict, Field
from sqlalchemy import String, cast, func
from sqlmodel import select

from govray.governance.submission.submission import PRIORITY
from govray.governance.submission.yaml_overrides import LONGEST_OVERRIDE, MOST_OVERRIDES
from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Asked, Ready
from govray.platform.service.acting.experiment_check import LONGEST_FILE, NAME
from govray.platform.service.http.answer import Answer
from govray.platform.service.identity.pagination import Listing, PageDep, columns_of, filtered
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes import archives
from govray.platform.service.visible.readers import RUN_READERS, SUBMITTERS
from govray.platform.service.visible.visible_runs import find_submission, reads_file, submissions
from govray.platform.store import pools, tables
from govray.platform.store import submissions as queue
from govray.platform.store.experiment_tags import MOST_TAGS
from govray.platform.store.states import SubmissionState

router = APIRouter(tags=["submissions"], dependencies=[RUN_READERS])

DIGEST = "^sha256:[0-9a-f]{64}$"
ID = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_Tag = Annotated[str, Field(max_length=64)]
_Tags = Annotated[
    list[_Tag],
    Field(
        max_length=MOST_TAGS,
        description="Words to find it by: letters, digits and `. _ -`; the file's labels without.",
    ),
]
_Override = Annotated[str, Field(max_length=LONGEST_OVERRIDE)]
SubmissionId = Annotated[
    str, Path(pattern=ID, description="A submission's id.", examples=["s-20261124-090000-9f86d081"])
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,128}$",
        description="Of your choice, new for each submission. The same request with the same key "
        "answers the same submission, and makes no second one.",
    ),
]
Filter = Query(max_length=200)


class NewExperiment(Answer):
    """An experiment to run: a file, or the fork of a submission, and what to change in it."""

    model_config = ConfigDict(extra="forbid")

    file: (
        Annotated[str, Field(max_length=LONGEST_FILE)]
        | Annotated[dict[str, Any], Field(max_length=256)]
        | None
    ) = Field(
        default=None,
        description="The experiment file, as its text or as the object that it stands for. With a "
        "`search` section it is a search.",
    )
    fork_of: Annotated[str, Field(pattern=ID)] | None = Field(
        default=None,
        description="A submission, in the place of a file. What you leave out is as it has it.",
    )
    set: Annotated[list[_Override], Field(max_length=MOST_OVERRIDES)] = Field(
        default_factory=list,
        description="Overrides of the file: `optimizer.lr=0.001`; `+seed=18` adds what it lacks.",
    )
    project: Annotated[str, Field(pattern=NAME)] | None = Field(
        default=None,
        description="The project that it counts for; as the file says, or `default`.",
    )
    pool: Annotated[str, Field(pattern=NAME)] | None = Field(
        default=None,
        description="The pool of nodes to run in; as the file says, or `default`.",
    )
    priority: Annotated[int, Field(ge=-PRIORITY, le=PRIORITY)] | None = Field(
        default=None,
        description="Of a pool's queue the highest goes first; as the file says, or 0.",
    )
    tags: _Tags = Field(default_factory=list)
    archive: Annotated[str, Field(pattern=DIGEST)] | None = Field(
        default=None,
        description="Digest of a working directory on the cluster's storage; by default the "
        "cluster's own.",
    )
    policy: Annotated[str, Field(pattern=DIGEST)] | None = Field(
        default=None, description="Digest of the signed depth policy that you expect it to have."
    )


class SubmissionItem(Answer):
    """An entry of the queue, without its file."""

    id: str
    kind: str = Field(description="`train` or `tune`, or another task.")
    name: str
    project: str
    user: str
    state: SubmissionState
    pool: str
    priority: int
    slots: int = Field(description="Workers that it holds while it runs.")
    position: int | None = Field(
        default=None,
        description="Its place in its pool's queue by priority and time, from 1, while it waits. "
        "A pool that is shared by project may take another first.",
    )
    policy: str | None = Field(
        default=None, description="Digest of the depth policy that it has to have."
    )
    archive: str | None = Field(default=None, description="Digest of its working directory.")
    forked_from: str | None = Field(
        default=None, description="The submission that it is a fork of."
    )
    run: str | None = Field(default=None, description="The run or search that it became.")
    job: str | None = Field(default=None, description="The cluster's name of its last job.")
    attempt: int = Field(description="Jobs so far.")
    failures: int = Field(description="Jobs that failed since its last progress.")
    submitted: str
    started: str | None = None
    finished: str | None = None
    why: str | None = Field(default=None, description="Why it is in its state.")
    attested: str | None = Field(
        description="`ATTESTED` or `NOT_ATTESTED`, once an attestor has decided; else null."
    )
    not_attested: str | None = Field(description="Why its model was not signed; else null.")
    archived: bool
    tags: list[str]


class QueueEntry(SubmissionItem):
    """An entry of the queue."""

    config: str | None = Field(
        description="The experiment file, as it was sent or with its overrides. A task's file is "
        "for who submitted it, and for engineers and admins of its project; null for others."
    )


class PolicyKnown(Answer):
    """The policy at the place that the file names, as the latest run of this name read it."""

    name: str
    version: int
    digest: str


class ExperimentCheck(Answer):
    """What an experiment would take at most, and which policy applies, as far as can be said."""

    kind: str
    name: str
    project: str
    pool: str
    priority: int
    workers: int = Field(description="Of one run; of an elastic one the most.")
    slots: int = Field(description="Workers at once, of all runs together.")
    gpus: float = Field(description="Devices at once.")
    runs: int = Field(description="1 without a search.")
    steps: str | None = Field(
        default=None,
        description="Of all runs together, if none ends early; null: the run ends with its data.",
    )
    rows_per_step: float = Field(description="Of one run, one route stream a profile.")
    tokens: str | None = Field(default=None, description="Of all runs together; null for images.")
    worker_hours: float | None = Field(default=None, description="null: not known.")
    policy_place: str = Field(description="Where the file says that the policy lies.")
    policy: PolicyKnown | None = Field(
        default=None, description="null: no run of this name read it there."
    )
    unknown: list[str] = Field(description="What cannot be said yet, and why.")
    file: str = Field(description="The file with the overrides.")


class PoolItem(Answer):
    """A pool of the queue."""

    name: str
    slots: int = Field(description="Workers that it has room for.")
    labels: dict[str, str] = Field(description="Ray's labels of its nodes; none: all nodes.")
    folder: bool = Field(description="Whether a run that brings no working directory gets one.")


@router.post("/experiments", status_code=201, dependencies=[SUBMITTERS])
def submit_experiment(
    visit: VisitDep, new: Annotated[NewExperiment, Body()], key: Key = None
) -> QueueEntry:
    """Put an experiment into the queue. It is checked against the whole schema first.

    Errors of the file name the line and the field. Nothing runs yet: the entry waits until the
    cluster's reconciler has room for it.
    """
    state = visit.request.app.state
    archives.check_there(state.settings.storage, new.archive)
    row = acting.submit(visit, _asked(new, key))
    return answer(visit, row)


@router.post("/experiments:check", dependencies=[SUBMITTERS])
def check_experiment(visit: VisitDep, new: Annotated[NewExperiment, Body()]) -> ExperimentCheck:
    """Say what an experiment would take and which policy applies. Nothing is submitted.

    An archive that it names need not be there yet: it is sent when the experiment is submitted.
    """
    ready = acting.prepare(visit, _asked(new))
    return estimate(visit, ready)


@router.get("/submissions")
def list_submissions(
    visit: VisitDep,
    page: PageDep,
    state: Annotated[SubmissionState | None, Query(description="In this state.")] = None,
    project: Annotated[str | None, Filter] = None,
    user: Annotated[str | None, Filter] = None,
    name: Annotated[str | None, Filter] = None,
    pool: Annotated[str | None, Filter] = None,
    run: Annotated[
        str | None, Query(max_length=200, description="That became this run, or this search.")
    ] = None,
    tag: Annotated[str | None, Query(max_length=64, description="With this tag.")] = None,
    archived: Annotated[
        bool, Query(description="Those that were archived, in place of the others.")
    ] = False,
) -> Listing[SubmissionItem]:
    """What was submitted, the latest first, without the files."""
    s = tables.Submission
    statement = filtered(
        select(*columns_of(s, SubmissionItem)).where(submissions(visit.caller)),
        *((s.archived, archived), (s.state, state), (s.project, project), (s.user, user)),
        *((s.name, name), (s.pool, pool), (s.run, run)),
    )
    if tag is not None:
        # As JSON text, which both databases hold. LIKE would not tell upper from lower case.
        text, quoted = cast(s.tags, String), json.dumps(tag)
        statement = statement.where(func.replace(text, quoted, "") != text)
    order = (s.submitted, s.id)
    rows, following = page.rows(visit.session, statement, order, descending=True)
    waiting = [row.id for row in rows if row.state == SubmissionState.QUEUED]
    places = queue.places(visit.session, waiting)
    items = [SubmissionItem(**{**row._mapping, "position": places.get(row.id)}) for row in rows]
    return Listing(items=items, next=following)


@router.get("/pools")
def list_pools(visit: VisitDep) -> Listing[PoolItem]:
    """The pools of the queue; none where nobody has worked it off yet."""
    items = [PoolItem.model_validate(each) for each in pools.stated(visit.session)]
    return Listing(items=items, next=None)


@router.get("/submissions/{submission}")
def get_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """One submission, with its file, its place in the queue, and why it is in its state."""
    return answer(visit, find_submission(visit.session, visit.caller, submission))


@router.post("/submissions/{submission}:stop", dependencies=[SUBMITTERS])
def stop_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """Stop it after its current step and a commit; what waits leaves the queue."""
    return answer(visit, acting.ask(visit, submission, "stop"))


@router.post("/submissions/{submission}:kill", dependencies=[SUBMITTERS])
def kill_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """End it at once. Steps since its last checkpoint are lost."""
    return answer(visit, acting.ask(visit, submission, "kill"))


@router.post("/submissions/{submission}:resume", dependencies=[SUBMITTERS])
def resume_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """Put what was stopped, killed or failed back into the queue. It goes on from its commit."""
    return answer(visit, acting.ask(visit, submission, "resume"))


@router.post("/submissions/{submission}:archive", dependencies=[SUBMITTERS])
def archive_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """Take what has ended out of the list. Nothing is deleted."""
    return answer(visit, acting.ask(visit, submission, "archive"))


@router.post("/submissions/{submission}:unarchive", dependencies=[SUBMITTERS])
def unarchive_submission(visit: VisitDep, submission: SubmissionId) -> QueueEntry:
    """Put it back into the list."""
    return answer(visit, acting.ask(visit, submission, "unarchive"))


def answer(visit: Visit, row: tables.Submission) -> QueueEntry:
    """A submission as it is answered, with its place if it waits."""
    found = row.model_dump(include=set(QueueEntry.model_fields))
    found["position"] = queue.places(visit.session, [row.id]).get(row.id)
    if not reads_file(visit.session, visit.caller, row):
        found["config"] = None
    return QueueEntry(**found)


def estimate(visit: Visit, ready: Ready) -> ExperimentCheck:
    """What a checked experiment would take, and the policy as the store knows it."""
    facts = ready.facts
    known = acting.last_policy(visit.session, visit.caller, facts.name, facts.policy)
    unknown = list(facts.unknown)
    if known is None:
        unknown.append("the policy: no run of this name is indexed that read it at this place")
    same = ("kind", "name", "workers", "slots", "gpus", "rows_per_step")
    return ExperimentCheck(
        **{each: getattr(facts, each) for each in same},
        project=ready.project,
        pool=ready.pool,
        priority=ready.priority,
        runs=facts.trials,
        steps=None if facts.steps is None else str(facts.steps),
        tokens=None if facts.tokens is None else str(facts.tokens),
        policy_place=facts.policy,
        policy=PolicyKnown.model_validate(known) if known else None,
        unknown=unknown,
        file=ready.text,
    )


def _asked(new: NewExperiment, key: str | None = None) -> Asked:
    same = new.model_dump(exclude={"set", "tags"})
    return Asked(**same, overrides=tuple(new.set), tags=tuple(new.tags), key=key)
