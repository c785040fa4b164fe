"""Putting experiments into the queue and changing what is in it: for routes of ``/v1`` and forms.

A submission writes an entry of the store and nothing else. A reconciler, another process, runs
it. Entries of the audit log are the store's own.

`may_act` is the one place that decides who may do what to an experiment or task. Functions take a
session, and commit what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlmodel import Session, col, select

from govray import traces
from govray.errors import GovrayError, InfrastructureFailed
from govray.governance.submission.register_client import RegisterClient
from govray.governance.submission.register_forms import AcceptanceForm, Isolation
from govray.governance.submission.yaml_overrides import read_mapping, written
from govray.platform.service.acting import project_rules
from govray.platform.service.acting.experiment_check import (
    FILE,
    ExperimentFacts,
    facts,
    file_text,
    lacks_room,
    stated,
    with_room,
)
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.rights import may, may_change, projects
from govray.platform.service.identity.visit import Visit
from govray.platform.service.visible.visible_models import find_policy
from govray.platform.service.visible.visible_runs import experiments, find_experiment
from govray.platform.store import deletions, queue_entries, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.experiment_tags import check_tags, tags_of
from govray.platform.store.project_settings import ProjectSettings, Wanted, resolve, with_defaults
from govray.platform.store.run_owners import submission_facts
from govray.platform.store.tables import QueueEntry

Demand: TypeAlias = Literal["stop", "kill", "resume", "archive", "unarchive"]
Verb: TypeAlias = Literal["submit", "open"] | Demand

DEFAULT = "default"
"""The project of what names none."""


@dataclass(frozen=True, kw_only=True)
class SentExperiment:
    """An experiment as it is sent: a file or the fork of another.

    Attributes:
        fork_of: An experiment, in place of a file. What is None is as that has it.
        overrides: ``path=value``, as `govray.governance.submission.yaml_overrides` reads them.
        policy: Digest of the signed depth policy that the run has to have.
    """

    file: str | Mapping[str, Any] | None = None
    fork_of: str | None = None
    overrides: Sequence[str] = ()
    project: str | None = None
    pool: str | None = None
    priority: int | None = None
    tags: Sequence[str] = ()
    archive: str | None = None
    policy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An experiment to be, checked: what would be written."""

    text: str
    facts: ExperimentFacts
    project: str
    pool: str
    priority: int
    archive: str | None
    policy: str | None
    forked_from: str | None
    tags: Sequence[str]
    """If none are asked for."""


def may_act(
    visit: Visit,
    project: str,
    verb: Verb,
    *,
    owner: str | None = None,
    what: Literal["experiments", "tasks"] = "experiments",
) -> None:
    """Return if the caller may do this in ``project``. ``owner``: who submitted it; None: nobody
    has yet.

    Admins may do everything, engineers what concerns their own experiments.
    """
    caller = visit.caller
    row = visit.session.get(tables.ProjectRow, project)
    if not may(caller, "submit", row):
        raise Problem(
            403,
            "Not allowed",
            f"The role {caller.role} with this token cannot {verb} {what}"
            + (f" in the project {project}" if caller.bound else ""),
            "Use a token of an engineer or admin with the scope write",
        )
    if owner is not None and not may_change(caller, row, owner):
        raise Problem(
            403,
            "Not allowed",
            f"{owner} submitted it, and only {owner} or an admin can {verb} it",
        )


def offered(session: Session, caller: Caller) -> str:
    """The project that a form names at first. It is the default one, or the first by name where the
    caller may submit; empty without any."""
    p = tables.ProjectRow
    if may(caller, "submit", session.get(p, DEFAULT)):
        return DEFAULT
    here = projects(caller, "submit"), col(p.archived).is_(False)
    first = session.exec(select(p).where(*here).order_by(col(p.name)).limit(1)).first()
    return first.name if first is not None and may(caller, "submit", first) else ""


def prepare(visit: Visit, asked: SentExperiment) -> Ready:
    """What submitting ``asked`` would write; nothing is written.

    Raises:
        Problem: 403, the caller may not. 404, there is no such project, or experiment to fork.
            422, something that was sent is wrong.
        Refused: It is beyond a limit of the project.
    """
    session, caller = visit.session, visit.caller
    if (asked.file is None) == (asked.fork_of is None):
        raise not_valid("body.file", "Send either a file, or forkOf with an experiment")
    origin = forked(session, caller, asked.fork_of) if asked.fork_of else None
    given = origin.config if origin else asked.file
    assert given is not None  # one of both
    text = file_text(given, asked.overrides)

    def chosen(name: str, otherwise: Any) -> Any:
        value = getattr(asked, name)
        return getattr(origin, name, otherwise) if value is None else value

    config = read_mapping(text, name=FILE)
    project = _placed("project", asked, config, origin) or DEFAULT
    row, settings = project_rules.submitting(session, caller, project)
    merged = with_defaults(settings, config)
    pool = _placed("pool", asked, merged, origin)
    if lacks_room(merged):
        room = project_rules.search_room(session, settings, pool)
        merged = merged if room is None else with_room(merged, room)
    if merged != config:
        text = written(merged)
    found = facts(visit.request.app.state.check, text)
    policy = _known_policy(session, caller, settings, chosen("policy", None))
    wanted = Wanted(
        config=merged,
        slots=found.slots,
        pool=pool,
        priority=_placed("priority", asked, merged, origin),
        policy=policy.digest if policy else None,
        policy_name=policy.name if policy else None,
    )
    project_rules.check_not_archived(row)
    resolved = resolve(settings, wanted, project=project)
    archive = chosen("archive", None)
    project_rules.check_startable(
        session, resolved.pool, project, found.slots, brings_folder=archive is not None
    )
    ready = Ready(
        text=text,
        facts=found,
        project=project,
        pool=resolved.pool,
        priority=resolved.priority,
        archive=archive,
        policy=wanted.policy,
        forked_from=origin.id if origin else None,
        tags=_tags(session, found.labels, origin),
    )
    may_act(visit, ready.project, "submit")
    return ready


def _placed(
    name: str, asked: SentExperiment, config: Mapping[str, Any], origin: QueueEntry | None
) -> Any:
    """Project, pool or priority: what is asked for comes before what the file says. A fork has
    those of its origin, unless an override has changed what the file says."""
    wanted, found = getattr(asked, name), stated(config, name)
    if wanted is not None or origin is None:
        return found if wanted is None else wanted
    before = stated(read_mapping(origin.config, name=FILE), name)
    return getattr(origin, name) if found == before else found


def _tags(session: Session, labels: Sequence[str], origin: QueueEntry | None) -> Sequence[str]:
    """A fork has its origin's tags, unless an override has changed the file's labels."""
    if origin is None or [*labels] != read_mapping(origin.config, name=FILE).get("labels", []):
        return labels
    return tags_of(session, [origin.id]).get(origin.id, [])


def forked(session: Session, caller: Caller, id_: str) -> QueueEntry:
    """The experiment that is to be forked. Raises 404: the caller reads no such one; 422: it
    was started by hand."""
    row = find_experiment(session, caller, id_).entry
    if row is None:
        raise not_valid(
            "body.forkOf", f"{id_} was started by hand, and its file was not sent", "Send the file"
        )
    return row


def submit(visit: Visit, asked: SentExperiment) -> QueueEntry:
    """Put what is asked for into the queue.

    The attestor's register is told first. So what it has not, is not in the queue, and what is
    changed in the store later starts no job. What it has, and is not in the queue, starts none.

    Raises:
        Problem: As `prepare`. 503, the attestor's register does not answer.
    """
    session = visit.session
    register: RegisterClient | None = visit.request.app.state.register
    ready = prepare(visit, asked)
    try:
        tags = check_tags(asked.tags or ready.tags)
        row = traced(
            visit,
            queue_entries.draft,
            kind=ready.facts.kind,
            name=ready.facts.name,
            project=ready.project,
            config=ready.text,
            slots=ready.facts.slots,
            least=ready.facts.least,
            pool=ready.pool,
            priority=ready.priority,
            policy=ready.policy,
            archive=ready.archive,
            forked_from=ready.forked_from,
        )
    except GovrayError as error:
        raise not_valid(f"body.{'tags' if error.where == 'tags' else 'file'}", error.what) from None
    if register is not None:
        _register(session, register, row, ready.facts)
    queue_entries.put(session, row, tags, by=visit.by)
    session.commit()
    return row


def traced(visit: Visit, make: Callable[..., QueueEntry], **columns: Any) -> QueueEntry:
    """The entry that ``make`` makes, whose trace begins with this request."""
    with traces.span("submission") as span:
        row = make(visit.session, by=visit.by, trace=span.traceparent, **columns)
        span.set(**{f"govray_{queue_entries.noun(row)}": row.id, "govray_kind": row.kind})
    return row


def _register(
    session: Session, register: RegisterClient, row: QueueEntry, facts: ExperimentFacts
) -> None:
    """Tell the attestor's register what is accepted, and how far apart its pool keeps runs."""
    pool = session.get(tables.PoolRow, row.pool)
    isolation: Isolation = pool.isolation if pool else "sharedCluster"
    project = session.get(tables.ProjectRow, row.project)
    manifests = project_rules.settings_of(project).manifests if project else None
    form = AcceptanceForm(
        **dict(submission_facts(row, isolation)),
        manifests=manifests or (),
        pretrained=facts.pretrained,
        own_code=facts.own_code,
    )
    try:
        register.accept(form)
    except InfrastructureFailed as error:
        raise Problem(
            503,
            "The attestor does not answer",
            "What is submitted is registered with the attestor first, which does not answer",
            "Nothing was submitted. Try again, or ask the operator to look at the attestor",
            headers={"Retry-After": "5"},
        ) from error


def ask(visit: Visit, row: QueueEntry, verb: Demand) -> None:
    """Stop, kill, resume, archive or unarchive an entry, as the caller asks for. Raises
    `Refused`: in its state that means nothing, its project is archived, or a run of it deleted."""
    session = visit.session
    begin_writing(session)
    session.refresh(row)
    may_act(visit, row.project, verb, owner=row.user)
    if verb == "resume":
        project_rules.check_not_archived(session.get(tables.ProjectRow, row.project))
        deletions.check_goes_on(session, row.id)
    if verb in ("archive", "unarchive"):
        queue_entries.archive(session, row, verb == "archive", by=visit.by)
    else:
        queue_entries.ask(session, row, verb, by=visit.by)
    session.commit()


LOOKED_AT = 20


def last_policy(session: Session, caller: Caller, name: str, place: str) -> tables.PolicyRow | None:
    """The policy that the latest run of this name read at ``place``; None if none is known.

    Of runs that the caller may read.

    Of the latest `LOOKED_AT` runs of the name: their experiments say the place, and they
    the digest.
    """
    e, t = tables.ExperimentRow, tables.RunRow
    found = session.execute(
        select(col(e.config), col(t.policy))
        .join(t, col(t.experiment) == col(e.id))
        .where(col(e.name) == name, col(t.policy).is_not(None), experiments(caller))
        .order_by(col(t.started).desc(), col(t.id))
        .limit(LOOKED_AT)
    )
    for config, digest in found:
        governance = config.get("governance") if isinstance(config, dict) else None
        if isinstance(governance, dict) and governance.get("policy") == place:
            return session.get(tables.PolicyRow, digest)
    return None


def _known_policy(
    session: Session, caller: Caller, settings: ProjectSettings, digest: str | None
) -> tables.PolicyRow | None:
    if digest is None:
        return None
    known = session.get(tables.PolicyRow, digest)
    if known is not None and digest in (settings.depth_policies or ()):
        return known
    try:
        return find_policy(session, caller, digest)
    except Problem:
        raise not_valid(
            "body.policy", "The store knows no policy of this digest", "See /v1/policies"
        ) from None
