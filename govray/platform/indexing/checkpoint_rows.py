"""A run's commits, as storage has them, and their rows.

A checkpoint is COMPLETED only while all its files are there in their sizes. One that is being
written is ACTIVE, or ERROR once nobody writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session, select

from govray.errors import GovrayError, InfrastructureFailed
from govray.platform.store import tables
from govray.platform.store.states import CHECKPOINT, CheckpointState, advance
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import CORRUPT, SUPERSEDED, storage_of

_STEP = re.compile(r"checkpoint_(\d{9})")

_ACTIVE, _COMPLETED = CheckpointState.ACTIVE, CheckpointState.COMPLETED
_ERROR, _DELETED = CheckpointState.ERROR, CheckpointState.DELETED


@dataclass(frozen=True, kw_only=True)
class Found:
    state: CheckpointState
    digest: str | None = None
    bytes: int = 0


def found_on_storage(run_folder: Place, *, writing: bool) -> dict[int, Found]:
    """Next step → what storage holds of the commit. ``writing``: whether a driver has the run: a
    partial commit may still become whole."""
    storage = storage_of(run_folder)
    found: dict[int, Found] = {}
    for name, (_, size) in storage.leftovers().items():
        match = _STEP.match(name)
        if match is None or name.endswith(SUPERSEDED):
            continue
        state = _ACTIVE if writing and not name.endswith(CORRUPT) else _ERROR
        found[int(match[1])] = Found(state=state, bytes=size)
    for step, folder in storage.commits():
        try:
            if commit_folder.committed_at(folder) is None:
                continue  # a leftover
            committed = commit_folder.open_commit(folder)
        except InfrastructureFailed:
            raise
        except GovrayError:
            found[step] = Found(state=_ERROR)
            continue
        found[step] = Found(state=_COMPLETED, digest=committed.digest, bytes=committed.size)
    return found


def put_checkpoints(
    session: Session,
    run: str,
    found: Mapping[int, Found],
    times: Mapping[tuple[int, str], str],
) -> None:
    """Make the rows of a run's commits equal what was found on its storage.

    Args:
        times: (Step, digest) → when it was committed, by what is newly read of the event log.
            Commits that it never told of have no time, because a file's is that of the last copy.
    """
    of_run = select(tables.CheckpointRow).where(tables.CheckpointRow.run == run)
    held = {row.step: row for row in session.exec(of_run)}
    for step in sorted(found.keys() | held.keys()):
        row = held.get(step) or tables.CheckpointRow(run=run, step=step, state=_ACTIVE)
        before = row.digest
        _settle(row, found.get(step))
        row.at = times.get((step, row.digest or ""), row.at if row.digest == before else None)
        session.add(row)


def _settle(row: tables.CheckpointRow, found: Found | None) -> None:
    what = f"checkpoint of step {row.step} of {row.run}"
    if found is None:  # one that was no commit yet, its writer cleared away
        gone = _ERROR if row.state in (_ACTIVE, _ERROR) else _DELETED
        row.state = advance(CHECKPOINT, row.state, gone, what)
        return
    if found.state is _COMPLETED:
        if row.state in (_ERROR, _DELETED) or row.digest not in (None, found.digest):
            row.state = _ACTIVE  # another commit in its place
        row.state = advance(CHECKPOINT, row.state, _COMPLETED, what)
        row.digest = found.digest
    elif row.state is _COMPLETED:
        row.state = advance(CHECKPOINT, row.state, _DELETED, what)  # it does not load any more
    elif row.state is _ACTIVE:
        row.state = advance(CHECKPOINT, row.state, found.state, what)
    row.bytes = found.bytes
