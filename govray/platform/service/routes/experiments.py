"""Experiments: submitting them, what is asked of one (stop, kill, resume, archive), and their tags.

One that was submitted is an entry of the queue, and once it runs its runs are in the index. Both
have its id. Nothing runs in this process: the reconciler of the cluster takes the entries that
wait. One that somebody started by hand is in the index alone.

For staff to read, and for who has a role in the project. Engineers and admins act, with a token of
the scope ``write`` (`govray.platform.service.acting.acting.may_act`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Depends, Query, Response
from pydantic import ConfigDict, Field
from sqlalchemy import String, cast, literal, null, union_all
from sqlmodel import col, select

from govray.governance.formats.document import Digest
from govray.governance.submission.submission import MOST_TAGS, PRIORITY, WORD
from govray.governance.submission.yaml_overrides import LONGEST_OVERRIDE, MOST_OVERRIDES
from govray.platform.service.acting import acting
from govray.platform.service.acting.acting import Demand, Ready, SentExperiment
from govray.platform.service.acting.experiment_check import LONGEST_FILE
from govray.platform.service.http import edits
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import not_allowed, refused
from govray.platform.service.http.statuses import header, refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.pagination import Listing, PageDep, filtered, sorting
from govray.platform.service.identity.repeats import OnceDep
from govray.platform.service.identity.rights import may
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes import archives
from govray.platform.service.routes.runs import Before, Filter, Since, started_between
from govray.platform.service.visible import visible_runs
from govray.platform.service.visible.visible_runs import FoundExperiment, find_experiment
from govray.platform.store import pools, queue_entries, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.experiment_tags import replace_tags, tags_of
from govray.platform.store.leases import standstill
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import ExperimentState
from govray.platform.wire.answers import (
    MOST_RUNS,
    Experiment,
    ExperimentCheck,
    ExperimentItem,
    PolicyKnown,
)

router = APIRouter(tags=["experiments"], dependencies=[needs("view")])

Asks = TypeVar("Asks")
"""What something is asked of."""

_Tag = Annotated[str, Field(max_length=64)]
_Tags = Annotated[
    list[_Tag],
    Field(
        max_length=MOST_TAGS,
        description="Words to find it by: letters, digits and `. _ -`. Left out: the file's "
        "labels, and of a fork its origin's.",
    ),
]
_Override = Annotated[str, Field(max_length=LONGEST_OVERRIDE)]


class Submitted(Answer):
    """What an experiment or a task is sent with."""

    model_config = ConfigDict(extra="forbid")

    project: Annotated[str, Field(pattern=WORD)] | None = Field(
        default=None,
        description="The project that it counts for; as the file says, or `default`.",
    )
    pool: Annotated[str, Field(pattern=WORD)] | None = Field(
        default=None,
        description="The pool of nodes to run in; as the file or the project says, or `default`.",
    )
    priority: Annotated[int, Field(ge=-PRIORITY, le=PRIORITY)] | None = Field(
        default=None,
        description="Of a pool's queue the highest goes first; as the file or the project says, "
        "or 0.",
    )
    archive: Digest | None = Field(
        default=None,
        description="Digest of a working directory on the cluster's storage; by default the "
        "cluster's own.",
    )


class NewExperiment(Submitted):
    """An experiment to run: a file, or the fork of another, and what to change in it."""

    file: (
        Annotated[str, Field(max_length=LONGEST_FILE)]
        | Annotated[dict[str, Any], Field(max_length=256)]
        | None
    ) = Field(
        default=None,
        description="The experiment file, as its text or as the object that it stands for. With a "
        "`search` section it is a search.",
    )
    fork_of: Annotated[str, Field(pattern=WORD)] | None = Field(
        default=None,
        description="An experiment, in the place of a file. What you leave out is as it has it.",
    )
    set: Annotated[list[_Override], Field(max_length=MOST_OVERRIDES)] = Field(
        default_factory=list,
        description="Overrides of the file: `optimizer.lr=0.001`; `+seed=18` adds what it lacks.",
    )
    tags: _Tags = Field(default_factory=list)
    policy: Digest | None = Field(
        default=None, description="Digest of the signed depth policy that you expect it to have."
    )


_ORDERS = ("submitted", "name", "project", "user", "state")
_OF_QUEUE = tuple(each for each in ExperimentItem.model_fields if each not in ("tags", "position"))


class PoolItem(Answer):
    """A pool of the queue."""

    name: str
    slots: int = Field(description="Workers that it has room for.")
    labels: dict[str, str] = Field(description="Ray's labels of its nodes; none: all nodes.")
    folder: bool = Field(description="Whether a run that brings no working directory gets one.")


@router.post(
    "/experiments",
    status_code=201,
    dependencies=[needs("submit")],
    responses=refusing(404) | {201: {"headers": header("Location")}},
)
def submit_experiment(
    visit: OnceDep, new: Annotated[NewExperiment, Body()], response: Response
) -> Experiment:
    """Submit an experiment. It is checked against the whole schema first.

    Errors of the file name the line and the field. Nothing runs yet: it waits until the cluster's
    reconciler has room for it.
    """
    row = submitted(visit, _asked(new))
    response.headers["Location"] = f"/v1/experiments/{row.id}"
    return answer(visit, find_experiment(visit.session, visit.caller, row.id))


def submitted(visit: Visit, asked: SentExperiment) -> tables.QueueEntry:
    """The entry of what is submitted, whose archive has what starts it. For the route and a form.
    Raises as `acting.submit` and `archives.check_there`."""
    if asked.archive is not None:
        archives.check_there(visit, asked.archive, acting.prepare(visit, asked).facts.kind)
    return acting.submit(visit, asked)


@router.post("/experiments:check", dependencies=[needs("submit")], responses=refusing(404, 409))
def check_experiment(visit: VisitDep, new: Annotated[NewExperiment, Body()]) -> ExperimentCheck:
    """Say what an experiment would take and which policy applies. Nothing is submitted.

    An archive that it names need not be there yet: it is sent when the experiment is submitted.
    """
    ready = acting.prepare(visit, _asked(new))
    return estimate(visit, ready)


@router.get("/experiments")
def experiments(
    visit: VisitDep,
    page: PageDep,
    state: Annotated[ExperimentState | None, Query(description="In this state.")] = None,
    project: Filter = None,
    user: Filter = None,
    name: Filter = None,
    pool: Filter = None,
    tag: Annotated[
        str | None, Query(max_length=64, description="With this tag.", examples=["paper"])
    ] = None,
    archived: Annotated[
        bool, Query(description="Those that were archived, in place of the others.")
    ] = False,
    since: Since = None,
    before: Before = None,
    sort: Annotated[str, sorting(*_ORDERS)] = "-submitted",
) -> Listing[ExperimentItem]:
    """The experiments that you may read, the latest first, without their files and runs."""
    e, down = listed(visit.caller), sort.startswith("-")
    key = cast(e.c[sort.removeprefix("-")], String).label("sorted_by")
    statement = filtered(
        select(e, key),
        *((e.c.archived, archived), (e.c.state, state), (e.c.project, project)),
        *((e.c.user, user), (e.c.name, name), (e.c.pool, pool)),
    )
    if tag is not None:
        tagged = select(tables.ExperimentTag.experiment).where(tables.ExperimentTag.tag == tag)
        statement = statement.where(e.c.id.in_(tagged))
    statement = started_between(statement, e.c.submitted, since, before)
    rows, following = page.rows(visit.session, statement, (key, e.c.id), descending=down)
    places = queue_entries.places(visit.session, [row.id for row in rows])
    tags = tags_of(visit.session, [row.id for row in rows])
    still = standstill(visit.session, at=visit.at)
    items = [
        ExperimentItem(
            **{**row._mapping, "why": queue_entries.why(row, still)},
            position=places.get(row.id),
            tags=tags.get(row.id, []),
        )
        for row in rows
    ]
    return Listing(items=items, next=following)


def listed(caller: Caller) -> Any:
    """The experiments that the caller may read: a row each, of the queue and of the index."""
    q, e = tables.QueueEntry, tables.ExperimentRow
    other: dict[str, Any] = {"submitted": col(e.started), "archived": literal(False)}
    by_hand = [
        other.get(name, getattr(e, name, null())).label(name)  # what the queue alone says
        for name in _OF_QUEUE
    ]
    return union_all(
        select(*(col(getattr(q, name)) for name in _OF_QUEUE)).where(
            col(q.kind).in_(RUN_KINDS),
            visible_runs.entries(caller),
            visible_runs.in_a_project(q.project),
        ),
        select(*by_hand).where(
            col(e.id).not_in(select(col(q.id))),
            visible_runs.experiments(caller),
            visible_runs.in_a_project(e.project),
        ),
    ).subquery()


@router.get("/pools")
def list_pools(visit: VisitDep) -> Listing[PoolItem]:
    """The pools of the queue; none where nobody has worked it off yet."""
    items = [PoolItem.model_validate(each) for each in pools.stated(visit.session)]
    return Listing(items=items, next=None)


def known_experiment(visit: VisitDep, experiment: str) -> FoundExperiment:
    return find_experiment(visit.session, visit.caller, experiment)


KnownExperiment = Annotated[FoundExperiment, Depends(known_experiment)]


@router.get("/experiments/{experiment}", responses=edits.ETAG)
def experiment(visit: VisitDep, known: KnownExperiment, response: Response) -> Experiment:
    """One experiment, with its file, its runs, its place in the queue, and why it is in its
    state. The ETag is of its tags."""
    found = answer(visit, known)
    edits.tell(response, found.tags)
    return found


VERBS: dict[Demand, str] = {
    "stop": "Stop it after its current step and a commit. What waits leaves the queue.",
    "kill": "End it at once. Steps since its last checkpoint are lost.",
    "resume": "Put what was stopped, killed or failed back into the queue, to go on from its "
    "commit.",
    "archive": "Take what has ended out of the list. Nothing is deleted.",
    "unarchive": "Put it back into the list.",
}
"""What is asked of an experiment or a task → what it does."""


def verbs(
    router: APIRouter,
    path: str,
    find: Callable[..., Asks],
    act: Callable[[Visit, Asks, Demand], Answer],
    answered: type[Answer],
    always: Demand | None = None,
) -> None:
    """Let ``router`` take what is asked of what ``find``, a dependency, finds at ``path``.
    ``always``: what every state allows."""

    found = Depends(find)

    def add(verb: Demand, says: str) -> None:
        @router.post(
            f"{path}:{verb}",
            name=verb,
            description=says,
            operation_id=f"{router.tags[0]}_{verb}",
            dependencies=[needs("submit")],
            response_model=answered,
            responses=None if verb == always else refusing(409),
        )
        def asked(visit: VisitDep, known: Any = found) -> Any:
            return act(visit, known, verb)

    for verb, says in VERBS.items():
        add(verb, says)


def _act(visit: Visit, known: FoundExperiment, verb: Demand) -> Experiment:
    ask(visit, known, verb)
    return answer(visit, known)


verbs(router, "/experiments/{experiment}", known_experiment, _act, Experiment)


def ask(visit: Visit, known: FoundExperiment, verb: Demand) -> None:
    """Ask this of an experiment. Raises `Refused`: its state does not allow it. 409: no queue
    knows it."""
    if known.entry is None:
        raise refused(
            f"{known.id} was started by hand, and no queue can {verb} it",
            f"Where its folder lies, say govray runs {verb} FOLDER",
        )
    acting.ask(visit, known.entry, verb)


def answer(visit: Visit, known: FoundExperiment) -> Experiment:
    """An experiment as it is answered: what the queue says of it, and what the index does."""
    session, entry, indexed, t = visit.session, known.entry, known.indexed, tables.RunRow
    given = dict.fromkeys(_OF_QUEUE) | {"archived": False}
    if (row := entry or indexed) is not None:
        given |= {"submitted": row.started} | row.model_dump(include={*_OF_QUEUE})
        given["why"] = queue_entries.why(row, standstill(session, at=visit.at))
    runs = select(col(t.id)).where(col(t.experiment) == known.id, col(t.replay_of).is_(None))
    return Experiment(
        **given,
        position=queue_entries.places(session, [known.id]).get(known.id),
        tags=tags_of(session, [known.id]).get(known.id, []),
        file=entry.config if entry else None,
        config=indexed.config if indexed else None,
        description=indexed.description if indexed else "",
        notes=indexed.notes if indexed else "",
        storage=indexed.storage if indexed else None,
        runs=session.exec(runs.order_by(col(t.started), col(t.id)).limit(MOST_RUNS)).all(),
    )


def may_tag(visit: Visit, experiment: FoundExperiment) -> bool:
    """Whether the caller may put tags on the experiment: who may submit in its project."""
    project = visit.session.get(tables.ProjectRow, experiment.project)
    return may(visit.caller, "submit", project)


def check_tagging(visit: Visit, experiment: FoundExperiment) -> None:
    """Return if the caller may put tags on the experiment."""
    if not may_tag(visit, experiment):
        raise not_allowed(
            f"Your role in the project {experiment.project} puts no tags on its experiments",
            "Ask for the role engineer there, or use a token with the scope write",
        )


Tag = Annotated[str, Field(pattern=WORD)]


class ExperimentTags(Answer):
    """The tags of one experiment."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] = Field(
        description=f"All of them, at most {MOST_TAGS}. A tag is up to 64 letters, digits, . _ -."
    )


@router.put("/experiments/{experiment}/tags", dependencies=[needs("submit"), edits.IF_MATCH])
def put_tags(visit: VisitDep, given: ExperimentTags, known: KnownExperiment) -> ExperimentTags:
    """Replace the tags of an experiment. An empty list removes them."""
    return ExperimentTags(tags=tag(visit, known, given.tags))


def tag(visit: Visit, experiment: FoundExperiment, tags: list[str]) -> list[str]:
    """Replace an experiment's tags, with an entry in the audit log, and commit."""
    check_tagging(visit, experiment)
    session, id_ = visit.session, experiment.id
    begin_writing(session)
    edits.check_unchanged(visit.request, tags_of(session, [id_]).get(id_, []))
    kept = replace_tags(session, id_, tags)
    visit.audit.write(session, "experiment.tag", id_, {"tags": " ".join(kept)})
    session.commit()
    return kept


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


def _asked(new: NewExperiment) -> SentExperiment:
    same = new.model_dump(exclude={"set", "tags"})
    return SentExperiment(**same, overrides=tuple(new.set), tags=tuple(new.tags))
