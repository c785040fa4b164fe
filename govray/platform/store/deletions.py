"""Runs to be deleted in two steps: marked, then gone after a time. Their tombstones, and projects.

A mark removes nothing and is taken back by `restore`, until a removal begins. What may not go is
refused when it is marked, and again when it is due: it may have been registered meanwhile. What
stands in the run's folder is looked at by `govray.train.run_folder.removal`.

A project is deleted at once, when no run of it is there.

A tombstone stays, through a rebuild too, with the digests of what was there. The numbers and
decisions of a run whose folder is gone go with it; its row and those of its checkpoints stay.

Functions take a session and never commit. Times are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import isfinite

from sqlalchemy import delete
from sqlmodel import Session, col, or_, select

from govray.errors import Refused
from govray.governance.formats.document import format_time, parse_time
from govray.platform.store import tables
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.lineage import decode, encode
from govray.platform.store.project_settings import Retention
from govray.platform.store.queue_entries import ENDED
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import (
    CHECKPOINT,
    CheckpointState,
    ExperimentState,
    RunState,
    advance,
)
from govray.platform.store.tables import (
    AttestationRow,
    DeletionRow,
    ExperimentRow,
    ModelVersion,
    Origin,
    ProjectRow,
    QueueEntry,
    RunRow,
    SubjectRow,
)
from govray.platform.store.tenancy import DEFAULT

_RUNS = frozenset({RunState.RUNNING, RunState.STOPPING})
_SIGNED = "ATTESTED"
_ENDED = frozenset(RunState) - _RUNS - {RunState.INTERRUPTED}
_OVER = frozenset({ExperimentState.COMPLETED, ExperimentState.KILLED, ExperimentState.ERROR})
_SEARCHES = frozenset({ExperimentState.RUNNING, ExperimentState.STOPPING})
RETENTION = "govray retention"
"""The name that marks what a project's retention does not keep."""
SWEEP = "govray sweep"
"""Who removes what is due, in the audit log."""


def check_may_go(session: Session, run: RunRow, *, attestor: bool) -> None:
    """Return if nothing that the store knows keeps a run.

    Args:
        attestor: Whether one signs models here. Then a run that has ended waits for its decision.

    Raises:
        Refused: It runs or waits in the queue, or a registered version or an attestation needs it.
    """
    where = f"run {run.id}"
    entry = session.get(QueueEntry, run.experiment)
    replays = session.exec(select(RunRow).where(RunRow.replay_of == run.id)).all()
    for each in (run, *replays):
        if each.state in _RUNS:
            queued = entry is not None and each is run
            do = f"experiments stop {run.experiment}" if queued else f"runs stop {each.folder}"
            raise Refused(
                f"{each.id} is {each.state}", where=where, do=f"Stop it first: govray {do}"
            )
    experiment = session.get_one(ExperimentRow, run.experiment)
    if experiment.kind == "tune" and experiment.state in _SEARCHES:
        raise Refused(
            f"its search {experiment.id} is {experiment.state}",
            where=where,
            do=f"Stop it first: govray experiments stop {experiment.id}",
        )
    if entry is not None:
        _check_ended(entry, where)
    if (
        attestor
        and entry is not None
        and entry.state is ExperimentState.COMPLETED
        and entry.attested is None
    ):
        raise Refused(
            "the attestor has not decided about its model yet", where=where, do="Try again later"
        )
    for version, own in _versions(session, run.id):
        what = (
            "it is the run of a registered version" if own else "a registered version began with it"
        )
        raise Refused(
            f"{what}, {version.model} {version.version}",
            where=where,
            do="It stays as long as the registry has that version",
        )
    if run.replay_of is not None and attestations(session, run.replay_of):
        raise Refused(
            f"it is a replay of {run.replay_of}, whose attestation may rest on it",
            where=where,
            do="It stays as evidence",
        )


def attestations(session: Session, run: str) -> Sequence[AttestationRow]:
    """Those of a run's model."""
    return session.exec(
        select(AttestationRow).where(AttestationRow.run == run).order_by(col(AttestationRow.digest))
    ).all()


def _versions(session: Session, run: str) -> Sequence[tuple[ModelVersion, bool]]:
    """A version of the run, or one that went on from its state or began with its weights; and
    whether it is the run's own."""
    a, v, s, o = AttestationRow, ModelVersion, SubjectRow, Origin
    files = select(s.sha256).join(a, col(a.digest) == col(s.attestation)).where(a.run == run)
    began = select(o.attestation).where(or_(o.what == run, col(o.what).in_(files)))
    own = col(a.run) == run
    found = select(v, own).join(a, col(a.digest) == col(v.attestation))
    found = found.where(or_(own, col(a.digest).in_(began)))
    return session.exec(found.order_by(own.desc(), col(v.model), col(v.version)).limit(1)).all()


def _check_ended(entry: QueueEntry, where: str) -> None:
    if entry.state not in ENDED:
        noun = "experiments" if entry.kind in RUN_KINDS else "task"
        raise Refused(
            f"its {noun.removesuffix('s')} {entry.id} is {entry.state}",
            where=where,
            do=f"Stop it first: govray {noun} stop {entry.id}",
        )


def mark(session: Session, run: RunRow, *, days: int, attested: bool, by: ChangedBy) -> DeletionRow:
    """Mark a run that may go. One that is marked stays as it is.

    Args:
        days: From now to its removal.
        attested: Whether a model lies in its folder, whatever the store knows.

    Raises:
        Refused: It is gone already.
    """
    known = session.get(DeletionRow, run.id)
    if known is not None and known.restored is not None:
        session.delete(known)
        session.flush()
    elif known is not None:
        if known.gone is not None:
            raise Refused(f"it was deleted on {known.gone}", where=f"run {run.id}")
        return known
    experiment = session.get_one(ExperimentRow, run.experiment)
    row = DeletionRow(
        run=run.id,
        experiment=experiment.id,
        project=experiment.project,
        storage=experiment.storage,
        folder=run.folder,
        at=by.at,
        user=by.user,
        gone_after=format_time(parse_time(by.at) + timedelta(days=days)),
        digests={},
    )
    describe(session, run, row, attested=attested)
    session.add(row)
    log(session, by, "run.delete", run.id, {"goneAfter": row.gone_after})
    return row


def retained(
    session: Session, storage: str, projects: Mapping[str, Retention], *, at: str
) -> list[RunRow]:
    """The runs on a storage that no rule of their project keeps, and that nobody marked or
    restored. They ended long enough ago, and are not of their experiment's best or latest.

    Args:
        projects: Name → its rules.
    """
    found: list[RunRow] = []
    marked = select(DeletionRow.run)
    for name, rules in projects.items():
        before = format_time(parse_time(at) - timedelta(days=rules.days))
        here = select(ExperimentRow).where(
            ExperimentRow.project == name, ExperimentRow.storage == storage
        )
        ended = col(ExperimentRow.state).in_(_OVER)
        for experiment in session.exec(here.where(ended).order_by(col(ExperimentRow.id))):
            t = RunRow
            of_it = select(t).where(t.experiment == experiment.id, col(t.replay_of).is_(None))
            runs = session.exec(of_it.order_by(col(t.started).desc(), col(t.id))).all()
            kept = {each.id for each in runs[: rules.latest]}
            kept |= {each.id for each in _by_result(experiment, runs)[: rules.best]}
            free = set(session.exec(select(t.id).where(col(t.id).not_in(marked))))
            found += [
                each
                for each in runs
                if each.state in _ENDED
                and each.finished is not None
                and each.finished <= before
                and each.id in free - kept
            ]
    return found


def _by_result(experiment: ExperimentRow, runs: Sequence[RunRow]) -> list[RunRow]:
    """Runs with a result, the best first: by their objective, and else by the training loss."""
    judged = any(each.objective is not None for each in runs)
    sections = [experiment.config.get(name) for name in ("search", "validation")]
    goals = [each.get("goal") for each in sections if isinstance(each, dict)]
    sign = -1 if judged and next(filter(None, goals), "min") == "max" else 1
    results = [(each.objective if judged else each.loss, each) for each in runs]
    numbers = [(sign * n, each) for n, each in results if n is not None and isfinite(n)]
    return [each for _, each in sorted(numbers, key=lambda pair: (pair[0], pair[1].id))]


def describe(session: Session, run: RunRow, row: DeletionRow, *, attested: bool) -> None:
    """Write what is there into the row, by digest."""
    c = tables.CheckpointRow
    there = c.state == CheckpointState.COMPLETED
    commits = session.exec(select(c).where(c.run == run.id, there).order_by(col(c.step))).all()
    signed = [each.digest for each in attestations(session, run.id)]
    entry = session.get(QueueEntry, row.experiment)
    row.attested = attested or bool(signed) or (entry is not None and entry.attested == _SIGNED)
    row.bytes = sum(each.bytes for each in commits)
    row.digests = {
        "attestations": signed,
        "checkpoints": [{"step": each.step, "digest": each.digest} for each in commits],
        "code": run.code,
        "manifest": run.manifest,
        "policy": run.policy,
    }


def check_goes_on(session: Session, experiment: str) -> None:
    """Return if no run of an experiment is marked or gone.

    Raises:
        Refused: One is. A job that went on would find no commit, or lose what it makes.
    """
    d = DeletionRow
    marked = select(d).where(d.experiment == experiment, col(d.restored).is_(None))
    for row in session.exec(marked.order_by(col(d.begun).is_(None), col(d.run)).limit(1)):
        gone = row.begun is not None
        raise Refused(
            f"its run {row.run} " + ("was deleted" if gone else "is marked to be deleted"),
            where=f"experiment {experiment}",
            do=f"Submit it again: govray train --fork {experiment}"
            if gone
            else f"Take the mark back first: govray experiments restore {experiment}",
        )


def restore(session: Session, run: str, *, by: ChangedBy) -> DeletionRow:
    """Take a mark back; its row stays, so no retention marks the run again.
    Raises `Refused`: nobody marked it, or removal began."""
    row = session.get(DeletionRow, run)
    where = f"run {run}"
    if row is None or row.restored is not None:
        raise Refused("it is not marked to be deleted", where=where)
    if row.begun is not None:
        raise Refused(
            f"its removal began at {row.begun}",
            where=where,
            do="Run it again from its experiment file",
        )
    row.restored, row.why = by.at, None
    session.add(row)
    log(session, by, "run.restore", run, {})
    return row


def project_runs(session: Session, project: ProjectRow) -> list[RunRow]:
    """The runs of a project that are still there, without replays, which lie in them.

    Raises:
        Refused: It is the default project, is gone, or an experiment or task of it has not ended.
    """
    where = f"project {project.name}"
    if project.name == DEFAULT:
        raise Refused("it takes what names no other, so it stays", where=where)
    if project.deleted is not None:
        raise Refused(f"it was deleted on {project.deleted}", where=where)
    q, e, t, d = QueueEntry, ExperimentRow, RunRow, DeletionRow
    for entry in session.exec(select(q).where(q.project == project.name).order_by(col(q.id))):
        _check_ended(entry, where)
    gone = select(d.run).where(col(d.gone).is_not(None))
    there = select(t).join(e, col(e.id) == col(t.experiment)).where(e.project == project.name)
    there = there.where(col(t.replay_of).is_(None), col(t.id).not_in(gone))
    return list(session.exec(there.order_by(col(t.id))))


def end_project(session: Session, project: ProjectRow, *, delete: bool, by: ChangedBy) -> None:
    """Archive a project, or ``delete`` it, of which no run is there. Its name stays taken, so
    nobody gets what it had."""
    project.archived = True
    if delete:
        project.deleted, project.description, project.settings = by.at, "", {}
    session.add(project)
    action = "project.deleted" if delete else "project.delete"
    log(session, by, action, f"project {project.name}", {})


def due(session: Session, storage: str, *, at: str) -> list[str]:
    """The runs on a storage that are to be removed now, or whose removal was killed."""
    d = DeletionRow
    return list(
        session.exec(
            select(d.run)
            .where(d.storage == storage, d.gone_after <= at)
            .where(col(d.gone).is_(None), col(d.restored).is_(None))
            .order_by(col(d.gone_after), col(d.run))
        )
    )


def finish(session: Session, row: DeletionRow, *, at: str) -> None:
    """Make of a mark a tombstone: what it names is off the storage."""
    row.gone, row.why = at, None
    session.add(row)
    t, c = RunRow, tables.CheckpointRow
    runs = [row.run]
    if not row.attested:
        runs += session.exec(select(t.id).where(t.replay_of == row.run))
        for kind in (tables.MetricRow, tables.DecisionRow):
            session.connection().execute(delete(kind).where(col(kind.run).in_(runs)))
    for commit in session.exec(select(c).where(col(c.run).in_(runs))):
        what = f"checkpoint of step {commit.step} of {commit.run}"
        if commit.state is CheckpointState.ACTIVE:
            commit.state = CheckpointState.ERROR  # nobody writes it any more
        commit.state = advance(CHECKPOINT, commit.state, CheckpointState.DELETED, what)
        session.add(commit)
    log(session, ChangedBy(user=SWEEP, at=at), "run.deleted", row.run, {"bytes": row.bytes})
    tell_lineages(session, [row])


def tell_lineages(session: Session, gone: Sequence[DeletionRow] | None = None) -> None:
    """Let the lineage of each attested model say when its run's checkpoints were deleted.
    ``gone``: of these; None: of all tombstones, after a rebuild."""
    if gone is None:
        gone = session.exec(select(DeletionRow).where(col(DeletionRow.gone).is_not(None))).all()
    for row in gone:
        for signed in attestations(session, row.run):
            document = decode(signed.lineage)
            run = document.run.model_copy(update={"deleted": row.gone})
            signed.lineage = encode(document.model_copy(update={"run": run}))
            session.add(signed)
