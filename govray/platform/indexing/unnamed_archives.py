"""Archives of working directories and prepared data that nothing names, removed from a storage.

Records of runs and replays name an archive, and so does an entry of the queue that may start a job.
What was sent or found again less than `YOUNG` ago may be about to be named, and stays. Records are
read on the storage itself, each of them: the index may lack one. Where one can't be read, or a run
of the index has none, nothing is removed.

Prepared data go if a run that was deleted read them, and no record names them, nor a project's
settings. What was prepared and never read stays. So does all of it while an experiment waits or
begins, for it may be about to read some.

Code that trains writes below the storage, so a link is neither followed nor removed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, col, or_, select

from govray.data.records_file import PREPARED
from govray.errors import GovrayError
from govray.governance.formats import canonical_json
from govray.governance.formats.document import parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.submission.code_archive import CODE
from govray.platform.indexing.run_claims import REPLAYS
from govray.platform.store import tables
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.database import begin_writing
from govray.platform.store.deletions import SWEEP
from govray.platform.store.queue_entries import ENDED
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.tenancy import settings_by_project
from govray.storage.place import Place
from govray.storage.regular_file import read_regular
from govray.train.inputs.run_record import RECORD, SUMMARY, recorded_digests
from govray.train.run_folder import removal

YOUNG = timedelta(days=7)
_NAME = re.compile(r"[0-9a-f]{64}\.zip")


@dataclass
class Unnamed:
    """What was removed, by digest: ``removed`` are archives, ``prepared`` the manifests of prepared
    data. ``stay``: a run whose record can't be read, so that all stay, or what can't be removed →
    why."""

    removed: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    stay: dict[str, str] = field(default_factory=dict)


def remove_unnamed(engine: Engine, storage: Place, *, at: str) -> Unnamed:
    """Remove the archives on a storage that nothing names. ``at``: now."""
    done, storage = Unnamed(), storage.resolve()
    before = parse_time(at) - YOUNG
    left = _left_data(storage, engine)
    with _archives(storage) as (listed, modified, unlink):
        if not left and not any(_old(modified, each, before) for each in listed):
            return done
        found = _recorded(storage, engine, done.stay)
        if done.stay:
            return done
        with Session(engine) as session:
            begin_writing(session)
            by = ChangedBy(user=SWEEP, at=at)
            found |= _queued(session)
            for digest, folder in left.items():
                if digest in found or _begins(session):
                    continue
                try:
                    remove_folder(storage, f"{PREPARED}/{folder.name}")
                except (GovrayError, OSError) as error:
                    done.stay[digest] = why(error)
                    continue
                log(session, by, "prepared.deleted", digest, {})
                done.prepared.append(digest)
            for each in listed:
                digest = f"sha256:{each.removesuffix('.zip')}"
                # Asked again: it may have been sent, or found, meanwhile.
                if digest in found or not _old(modified, each, before):
                    continue
                try:
                    unlink(each)
                except OSError as error:
                    done.stay[digest] = why(error)
                    continue
                log(session, by, "archive.deleted", digest, {})
                done.removed.append(digest)
            session.commit()
    return done


def _left_data(storage: Place, engine: Engine) -> dict[str, Place]:
    """Prepared data that runs read which were deleted: the digest of the manifest → the folder."""
    d, found = tables.DeletionRow, dict[str, Place]()
    gone = select(d.digests).where(col(d.gone).is_not(None), d.storage == str(storage))
    with Session(engine) as session:
        read = {each for row in session.exec(gone) for each in row.get("recorded", ())}
        for settings in settings_by_project(session).values():
            read -= {*(settings.manifests or ())}
    if isinstance(storage, Path):  # of a sweep that was killed
        for aside in (storage / PREPARED).glob(".*.deleted"):
            name = aside.name.removeprefix(".").removesuffix(".deleted")
            with suppress(GovrayError, OSError):
                removal.clear_aside(storage, f"{PREPARED}/{name}")
    paths: list[Any] = [*(storage / PREPARED).glob(f"[!.]*/{MANIFEST_FILE}")] if read else []
    for path in sorted(paths):
        with suppress(GovrayError, OSError):
            envelope = Envelope.parse(read_regular(path), where=str(path))
            if (digest := canonical_json.sha256(envelope.payload)) in read:
                found[digest] = path.parent
    return found


def _begins(session: Session) -> bool:
    """Whether an experiment has not ended of which the index knows no run."""
    q, t = tables.QueueEntry, tables.RunRow
    waits = select(q.id).where(col(q.state).not_in(ENDED), col(q.kind).in_(RUN_KINDS))
    known = select(t.experiment)
    return session.exec(waits.where(col(q.id).not_in(known)).limit(1)).first() is not None


def remove_folder(storage: Place, below: str) -> None:
    """The manifest of prepared data goes first, so that no part of them is read."""
    if isinstance(storage, Path):
        removal.remove(storage, below, keep=False)
        return
    for name in sorted((storage / below).walk_files(), key=lambda each: each != MANIFEST_FILE):
        (storage / below / name).unlink()


@contextmanager
def _archives(
    storage: Place,
) -> Iterator[tuple[list[str], Callable[[str], datetime], Callable[[str], None]]]:
    """The names of all archives, what tells when one was written, and what removes one."""
    if not isinstance(storage, Path):
        folder = storage / CODE
        names = [each for each in folder.walk_files() if _NAME.fullmatch(each)]
        yield names, lambda name: (folder / name).stat().modified, lambda n: (folder / n).unlink()
        return
    try:
        opened = os.open(storage / CODE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it is absent, or a link is in its place
        yield [], lambda name: datetime.max, lambda name: None
        return

    def status(name: str) -> os.stat_result:
        return os.stat(name, dir_fd=opened, follow_symlinks=False)

    try:
        names = [each for each in sorted(os.listdir(opened)) if _NAME.fullmatch(each)]
        yield (
            [each for each in names if stat.S_ISREG(status(each).st_mode)],
            lambda name: datetime.fromtimestamp(status(name).st_mtime, UTC),
            lambda name: os.unlink(name, dir_fd=opened),
        )
    finally:
        os.close(opened)


def _old(modified: Callable[[str], datetime], name: str, before: datetime) -> bool:
    try:
        return modified(name) < before
    except FileNotFoundError:
        return False  # another sweep was faster


def _recorded(storage: Place, engine: Engine, unread: dict[str, str]) -> set[str]:
    """The digests that runs on the storage name. ``unread`` gets what can't be read."""
    found: set[str] = set()
    read: set[str] = set()
    try:
        for name, folder in _runs(storage, 1):
            read.add(name)
            try:
                found |= recorded_digests(folder)
            except (GovrayError, OSError) as error:
                unread[name] = why(error)
    except OSError as error:  # a folder that nobody may look into could hold a run
        unread[Path(error.filename or str(storage)).name] = why(error)
    for name in _indexed(storage, engine) - read:
        unread.setdefault(name, "the index has it, and it has no record here")
    return found


def why(error: GovrayError | OSError) -> str:
    """Not where: a path of this machine is not for who reads a mark."""
    told = error.what if isinstance(error, GovrayError) else error.strerror
    return told or type(error).__name__


def _runs(above: Place, deeper: int, below: str = "") -> Iterator[tuple[str, Place]]:
    """Folders with the record of a run: those here, of searches here, and of their replays. Each
    with its place below the storage."""
    for each in above.iterdir():
        if each.name.startswith(".") or not each.is_dir():
            continue
        name = below + each.name
        if (each / RECORD / SUMMARY).exists():
            yield name, each
            if (each / REPLAYS).is_dir():
                yield from _runs(each / REPLAYS, 0, f"{name}/{REPLAYS}/")
        elif deeper:
            yield from _runs(each, deeper - 1, f"{name}/")


def _indexed(storage: Place, engine: Engine) -> set[str]:
    """The folders that runs of the index have on the storage, but for those that were removed."""
    t, e, d = tables.RunRow, tables.ExperimentRow, tables.DeletionRow
    gone = select(d.run).where(col(d.begun).is_not(None), col(d.attested).is_(False))
    there = select(t.folder).join(e, col(e.id) == col(t.experiment))
    there = there.where(e.storage == str(storage), col(t.id).not_in(gone))
    there = there.where(or_(col(t.replay_of).is_(None), col(t.replay_of).not_in(gone)))
    with Session(engine) as session:
        return set(session.exec(there))


def _queued(session: Session) -> set[str]:
    """The archives of entries of the queue, but for those that ended and whose runs were deleted,
    all of them or with their project."""
    q, d, p = tables.QueueEntry, tables.DeletionRow, tables.ProjectRow
    gone = select(d.experiment).where(col(d.gone).is_not(None))
    left = select(d.experiment).where(col(d.gone).is_(None))
    projects = select(p.name).where(col(p.deleted).is_not(None))
    deleted = or_(
        col(q.id).in_(gone) & col(q.id).not_in(left),
        col(q.project).in_(projects),
    )
    kept = select(q.archive).where(or_(col(q.state).not_in(ENDED), ~deleted))
    return {each for each in session.exec(kept) if each is not None}
