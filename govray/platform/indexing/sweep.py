"""Removing runs that are marked and due, one after the other, whatever killed the sweep before.

First the mark says that removal began, in the transaction that looked whether the run may go. Then
its folder is removed, which looks once more (`govray.train.run_folder.removal`). Then the mark
becomes a tombstone. A kill between any two leaves a mark whose removal began: the next sweep goes
on there. What may not go stays marked, with the reason, and is asked about again.

What the tasks of a deleted project kept goes, and what a search says of itself once none of its
runs is there. Both are looked for by each sweep anew, so a kill leaves nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.errors import GovrayError, Refused
from govray.platform.indexing.unnamed_archives import remove_folder, why
from govray.platform.store import deletions, tables
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.database import begin_writing
from govray.platform.store.tenancy import settings_by_project
from govray.platform.tasks.endpoint import FOLDER
from govray.platform.tasks.task_file import KINDS
from govray.storage.place import Place
from govray.train.inputs.run_listing import list_runs
from govray.train.inputs.run_record import recorded_digests
from govray.train.run_folder import removal


@dataclass
class Swept:
    """What one sweep did: the runs that it removed, and the others that were due, with why.
    ``left`` are the tasks and searches whose files are gone now."""

    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def sweep(engine: Engine, storage: Place, *, at: str, attestor: bool = False) -> Swept:
    """Remove what is due on a storage.
    ``attestor``: whether one signs models here, apart from the runs' folders."""
    done, storage = Swept(), storage.resolve()
    with Session(engine) as session:
        runs = deletions.due(session, str(storage), at=at)
    for run in runs:
        try:
            if _remove(engine, storage, run, at=at, attestor=attestor):
                done.removed.append(run)
        except (GovrayError, OSError) as error:
            done.kept[run] = why(error)
            _note(engine, run, why=done.kept[run])
    for below in _left(engine, storage):
        try:
            remove_folder(storage, below)
        except (GovrayError, OSError) as error:
            done.kept[below] = why(error)
            continue
        with Session(engine) as session:
            log(session, ChangedBy(user=deletions.SWEEP, at=at), "files.deleted", below, {})
            session.commit()
        done.left.append(below)
    return done


def _left(engine: Engine, storage: Place) -> list[str]:
    """Folders below a storage of tasks whose project is deleted, and of searches without a run."""
    d, e, q, p = tables.DeletionRow, tables.ExperimentRow, tables.QueueEntry, tables.ProjectRow
    gone = select(d.folder).join(e, col(e.id) == col(d.experiment)).where(e.kind == "tune")
    gone = gone.where(col(d.gone).is_not(None), d.storage == str(storage))
    over = select(q.id).join(p, col(p.name) == col(q.project))
    over = over.where(col(p.deleted).is_not(None), col(q.kind).in_(KINDS))
    with Session(engine) as session:
        tasks = {f"{FOLDER}/{each}" for each in session.exec(over)}
        searches = {str(Path(each).parent) for each in session.exec(gone)} - {"."}
    if not isinstance(storage, Path):  # where no run goes
        here = {each.name for each in (storage / FOLDER).iterdir()} if tasks else set()
        return sorted(below for below in tasks if Path(below).name in here)
    return sorted(
        below
        for below in tasks | searches
        if _there(storage, below) and (below in tasks or not list_runs(storage / below))
    )


def _there(storage: Path, below: str) -> bool:
    """Whether a folder is there, or what a kill left of it."""
    aside = (storage / below).with_name(f".{Path(below).name}.deleted")
    return os.path.lexists(storage / below) or os.path.lexists(aside)


def retain(engine: Engine, storage: Place, *, at: str, attestor: bool = False) -> list[str]:
    """Mark what no rule of its project's retention keeps; the runs. What may not go is left."""
    marked, storage = [], storage.resolve()
    with Session(engine) as session:
        begin_writing(session)
        settings = settings_by_project(session)
        rules = {name: each.retention for name, each in settings.items() if each.retention}
        for run in deletions.retained(session, str(storage), rules, at=at):
            project = session.get_one(tables.ExperimentRow, run.experiment).project
            try:
                deletions.check_may_go(session, run, attestor=attestor)
                removal.check_may_go(storage, run.folder)
                model = removal.has_model(storage, run.folder)
            except (GovrayError, OSError):
                continue
            deletions.mark(
                session,
                run,
                days=settings[project].delete_after_days,
                attested=model,
                by=ChangedBy(user=deletions.RETENTION, at=at),
            )
            marked.append(run.id)
        session.commit()
    return marked


def _remove(engine: Engine, storage: Place, run: str, *, at: str, attestor: bool) -> bool:
    with Session(engine) as session:
        begin_writing(session)
        row = session.get(tables.DeletionRow, run)
        if row is None or row.gone is not None or row.restored is not None:
            return False  # restored meanwhile, or another sweep was faster
        known = session.get(tables.RunRow, run)
        begins = row.begun is None
        # What a kill left before anything moved is looked at again: it may be attested by now.
        if begins or removal.stands(storage, row.folder):
            if known is None:
                raise Refused("the index does not know the run", where=run, do="Index its storage")
            deletions.check_may_go(session, known, attestor=attestor)
            removal.check_may_go(storage, row.folder)
            has_model = removal.has_model(storage, row.folder)
            if begins:
                deletions.describe(session, known, row, attested=has_model)
                with suppress(GovrayError, OSError):
                    recorded = recorded_digests(storage / row.folder)
                    row.digests = {**row.digests, "recorded": sorted(recorded)}
            row.attested |= has_model or bool(deletions.attestations(session, run))
            row.begun = row.begun or at
            session.add(row)
            session.commit()
        folder, keep = row.folder, row.attested
    try:
        removal.remove(storage, folder, keep=keep or removal.has_model(storage, folder))
    except Refused:
        if begins:  # a hold or a driver came in between, and all is there
            _note(engine, run, begun=None)
        raise
    with Session(engine) as session:
        begin_writing(session)
        row = session.get(tables.DeletionRow, run)
        if row is None or row.gone is not None:
            return False
        deletions.finish(session, row, at=at)
        session.commit()
    return True


def _note(engine: Engine, run: str, **values: str | None) -> None:
    """Change the mark of a run that is still there."""
    with Session(engine) as session:
        begin_writing(session)
        row = session.get(tables.DeletionRow, run)
        if row is not None and row.gone is None:
            session.add(row.sqlmodel_update(values))
            session.commit()
