"""A checkpoint with the governance that it carries, in another storage: ``govray checkpoint copy``.

The copy is the folder of a run that has this one commit. Its record and its revocation lists are
those that the commit carries, so the run's own folder need not be there any more. The packed rows
that the run reads, and its archived code, come along if they lie where the run's would.

Every byte of the commit and of what it carries is compared with its digest on the way. Nothing is
trusted for that: whoever goes on with the copy gives a trust root (`carried_inputs`).

Not copied are what belongs to the place: pins, holds, events, logs, locks and models. Neither are
corpora, tokenizers, weights that the run started from, or keys. No commit has them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.data.records_file import PREPARED, find_prepared
from govray.errors import CouldNotCheck, Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.submission.code_archive import archive_place
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.commit_reader import CommitFolder
from govray.train.checkpoint.object_store import ObjectStore
from govray.train.checkpoint.storage import RunFolder, folder_name, storage_of
from govray.train.checkpoint.whole_file import HashedFile
from govray.train.inputs.recorded_inputs import code_storage, prepared_folder
from govray.train.inputs.run_record import FILES, RECORD, SUMMARY, RunRecord, write_files
from govray.train.state.carried_governance import (
    RECORDED,
    STATE,
    CarriedGovernance,
    carried,
    refuse_other_record,
)
from govray.train.state.snapshot import latest

_RUN = re.compile(r"[^./\\\0][^/\\\0]*")
_WRITER = (0, 0)
"""Before every driver and attempt: those that resume the copy come later."""


@dataclass(frozen=True, kw_only=True)
class CopiedCheckpoint:
    """What was copied, and where to.

    Attributes:
        step: The first step that the commit does not hold.
        digest: Of the commit's manifest: that of the original.
        missing: What the run reads beside its commits that was not at hand, in words.
    """

    run: Place
    step: int
    digest: str
    size: int
    rows: tuple[Place, ...]
    missing: tuple[str, ...]


def copy_checkpoint(named: Place, storage: Place, *, rows: bool = True) -> CopiedCheckpoint:
    """Copy a checkpoint, with what it carries, to ``storage/<run id>``.

    On a disk the copy is there whole or not at all. Below a bucket its ``record/run.json`` comes
    last, and without it the copy is no run.

    Args:
        named: ``RUN/checkpoint_000000100``; or a run, or the place of its commits, for the newest.
        storage: A storage path: a folder or URL that holds runs.
        rows: Copy the packed rows too. Without them the copy is neither resumed nor attested.

    Raises:
        UsageError: There is no such checkpoint, or a run of that name in ``storage``; or the disk
            refuses.
        Refused: The record beside the original is not the one that the checkpoint carries.
    """
    committed, source = _found(named)
    found = carried(committed)
    record = found.record()
    if not _RUN.fullmatch(record.run_id):
        raise Malformed(f"{record.run_id!r} is no name of a run", where=str(committed.folder))
    run = storage.resolve() / record.run_id
    there = run / RECORD / SUMMARY if isinstance(run, BucketPath) else run
    if there.exists():
        raise UsageError("already exists", where=str(run), do="Name another storage path")
    summary = _summary(source, found)
    try:
        if isinstance(run, Path):
            with staged_folder(run) as staged:
                _fill(staged, committed, found, summary)
        else:
            _fill(run, committed, found, summary)
        copied, missing = _beside(source, record, storage.resolve(), rows=rows)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}",
            where=str(run),
            do="Check the space and the permissions there",
        ) from error
    state: Any = canonical_json.parse_canonical(committed.files[STATE])
    return CopiedCheckpoint(
        run=run,
        step=int(state["step"]),
        digest=committed.digest,
        size=committed.size + sum(entry.size for entry in found.objects.values()),
        rows=copied,
        missing=missing,
    )


def _found(named: Place) -> tuple[CommitFolder, Place]:
    if named.name.startswith("checkpoint_"):
        return _find_commit(named), named.parent
    newest = latest(named)
    if newest is None:
        raise UsageError(
            "there is no whole checkpoint here",
            where=str(named),
            do="Name a run, the URL of its commits, or RUN/checkpoint_000000100",
        )
    return commit_folder.open_commit(newest[0]), named


def _summary(source: Place, found: CarriedGovernance) -> bytes:
    """``run.json``: as the run's folder has it, for it knows the end; else as the commit does."""
    own = source / RECORD / SUMMARY
    if not own.is_file():
        return found.read(f"{RECORD}/{SUMMARY}")
    refuse_other_record(source, found)
    return own.read_bytes()


def _find_commit(named: Place) -> CommitFolder:
    """The commit that a user names as ``RUN/checkpoint_000000100``, wherever the run commits."""
    if isinstance(named, Path) and os.path.lexists(named):
        return commit_folder.open_commit(named)
    for _, folder in storage_of(named.parent).commits():
        if folder.name == named.name:
            return commit_folder.open_commit(folder)
    raise UsageError(
        "no such checkpoint",
        where=str(named),
        do="Name one as RUN/checkpoint_000000100; `govray checkpoint ls RUN --json` has the names",
    )


def _fill(run: Place, committed: CommitFolder, found: CarriedGovernance, summary: bytes) -> None:
    state: Any = canonical_json.parse_canonical(committed.files[STATE])
    step = int(state["step"])
    storage = RunFolder(run) if isinstance(run, Path) else ObjectStore(str(run))
    for name, data in found.contents():
        storage.write_object(name, data)
    folder = run / folder_name(step) if isinstance(run, Path) else storage.place(step, _WRITER)
    commit_folder.commit(folder, {name: _checked(committed, name) for name in committed.entries})
    for name in sorted(found.files.keys() - set(RECORDED)):
        make_folder((run / name).parent)
        write_whole(run / name, found.read(name))
    files = {name: found.read(path) for name, path in zip(FILES, RECORDED, strict=True)}
    write_files(run, files | {SUMMARY: summary})


def _checked(committed: CommitFolder, name: str) -> Iterator[bytes]:
    """The bytes of one file of a commit. What follows the last one has found them to be whole."""
    with ExitStack() as opened:
        file = HashedFile(committed, opened, name)
        yield from file.read_exactly(file.size)
        file.require_intact()


def _beside(
    source: Place, record: RunRecord, storage: Place, *, rows: bool
) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """Copy what lies beside a run. Returns the folders of rows, and what was not found."""
    copied: list[Place] = []
    missing: list[str] = []
    wanted: dict[str, Callable[[], Place]] = {
        "the packed rows": lambda: prepared_folder(source, record)
    }
    judged = (record.validation or {}).get("manifest")
    if judged is not None:
        wanted["the packed rows of the validation corpora"] = lambda: _validating(source, judged)
    for what, find in wanted.items():
        try:
            folder = find() if rows else None
        except CouldNotCheck:
            folder = None
        if folder is None:
            missing.append(what)
        else:
            copied.append(_copy_rows(folder, storage / PREPARED / folder.name))
    if (archive := record.code_archive) is not None:
        try:
            own = archive_place(code_storage(source, archive), archive)
            target = archive_place(storage, archive)
            if not target.is_file():
                make_folder(target.parent)
                write_whole(target, own.read_bytes())
        except FileNotFoundError:
            missing.append("the archived code")
    return tuple(copied), tuple(missing)


def _validating(source: Place, digest: str) -> Place:
    found = find_prepared(source, digest)
    if found is None:
        raise CouldNotCheck("not here", where=str(source))
    return found


def _copy_rows(source: Place, target: Place) -> Place:
    """Copy a prepared folder, its manifest last, unless it is there. Readers check its rows."""
    if (target / MANIFEST_FILE).is_file():
        return target
    if isinstance(target, Path):
        with staged_folder(target) as staged:
            for name in _names(source):
                path = staged / name
                path.parent.mkdir(parents=True, exist_ok=True)
                _copy_file(source / name, path)
    else:
        for name in sorted(_names(source), key=lambda name: (name == MANIFEST_FILE, name)):
            (target / name).write_bytes((source / name).read_bytes())
    return target


def _copy_file(source: Place, target: Path) -> None:
    if isinstance(source, Path):
        shutil.copyfile(source, target)
    else:
        target.write_bytes(source.read_bytes())


def _names(folder: Place) -> list[str]:
    """The files below a folder, without hidden ones: drafts, and what is being written."""
    if isinstance(folder, Path):
        found = [
            Path(above, name).relative_to(folder).as_posix()
            for above, _, names in os.walk(folder)
            for name in names
        ]
    else:
        found = [*folder.walk_files()]
    return [name for name in found if not any(part.startswith(".") for part in name.split("/"))]
