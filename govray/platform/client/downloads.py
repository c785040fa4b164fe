"""Files of a model, a checkpoint or an attestation from a service, into a new folder of this disk.

The folder appears once all of it is there, and not before. Until then everything lies in a hidden
one beside it, ``.NAME.download``. A download that broke off goes on there. The bytes of a file
that have come stay in ``parts``, under a name made of the file's name and digest. A file gets its
own name once its bytes have that digest. So one that has become another on the service is begun
anew.

What a service says is not trusted: names stay inside the folder, and sizes and digests are checked.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from govray.errors import GovrayError, InfrastructureFailed, Malformed, Refused, UsageError
from govray.platform.client.connection import Changed, Connection, Told, segment
from govray.platform.wire.answers import AttestationItem, File, Files, Version
from govray.platform.wire.operations import Models, Runs
from govray.storage.atomic_file import make_folder, sync_folder
from govray.storage.staged_folder import sync_all

MOST_FILES = 10_000
TRIES = 5
"""Connections in a row that may break without a new byte."""
PAUSE_S = 1.0
"""Before the second of them; twice that before the third, and so on."""
_PIECE = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Downloaded:
    """What lies in ``folder`` now. ``whole``: whether these are all files that there are; an
    adapter that the caller has no right to is left out."""

    folder: Path
    files: tuple[File, ...]
    whole: bool


def download(
    connection: Connection,
    listing: str,
    into: Path,
    *,
    only: str = "",
    told: Told = lambda done, whole: None,
    check: Callable[[Path, bool], None] = lambda folder, whole: None,
) -> Downloaded:
    """Fetch the files of a ``listing``, which is an address of the service, to the new folder
    ``into``.

    Args:
        only: Of the listing, the files whose names begin so.
        told: Called with the bytes that are here, and with all.
        check: Called with the folder before it gets its name, and with whether it is whole.

    Raises:
        UsageError: ``into`` exists, another process fetches it, the disk refuses, or there is no
            such thing on the service.
        Refused: Bytes have another digest than the service stated, or ``check`` refuses.
        InfrastructureFailed: The connection broke again and again. The same call goes on.
    """
    if os.path.lexists(into):
        raise UsageError("already exists", where=str(into), do="Name a new folder")
    with _writing(into), _staged(into) as staged:
        for _ in range(TRIES):
            found = connection.ask("GET", listing, Files)
            files = tuple(each for each in found.items if each.name.startswith(only))
            _check(files, connection.server)
            try:
                _fetch(connection, listing, files, staged, told)
            except Changed:
                continue
            break
        else:
            raise InfrastructureFailed(
                "the files become others while they are fetched",
                where=connection.server,
                do="Try again when nothing writes to them",
            )
        complete = staged / "files"
        try:
            check(complete, found.whole)
        except Refused:
            shutil.rmtree(staged)
            raise
        sync_all(complete)
        os.rename(complete, into)
        sync_folder(into.parent)
        shutil.rmtree(staged)
    return Downloaded(into, files, found.whole)


class RunsWithFiles(Runs):
    """The operations on runs, and downloads of what they left."""

    def download_checkpoint(
        self, run: str, step: int, *, into: Path, told: Told = lambda done, whole: None
    ) -> Downloaded:
        """Fetch a checkpoint to the new folder ``into``, as `downloads.download`."""
        listing = f"/v1/runs/{segment(run)}/checkpoints/{step}/files"
        return download(self._client, listing, into, told=told)

    def download_evidence(
        self, run: str, *, into: Path, told: Told = lambda done, whole: None
    ) -> Downloaded:
        """Fetch what was signed of a run, as `downloads.download`: its model's ``governance/``.
        Raises `UsageError`: the run has no attestation that the caller may read."""
        path, refused = "/v1/attestations", None
        for each in self._client.pages(path, AttestationItem, query={"run": run}):
            listing = f"{path}/{each.digest}/files"
            try:
                return download(self._client, listing, into, only="governance/", told=told)
            except Refused as error:  # of the folder another attestation is in force
                refused = error
        raise refused or UsageError(
            f"no attestation of the run {run!r} is there that you may read",
            where=self._client.server,
            do="A run is attested when it has finished; see govray runs ls",
        )


class ModelsWithFiles(Models):
    """The registry, and downloads of its models."""

    def download(
        self,
        model: str,
        version: str | None = None,
        *,
        into: Path,
        told: Told = lambda done, whole: None,
        check: Callable[[Path, bool], None] = lambda folder, whole: None,
    ) -> tuple[Version, Downloaded]:
        """Fetch a version's files to the new folder ``into``, as `downloads.download`. Without a
        version it is the one in production. Raises `UsageError`: none is."""
        number = version or self.get(model).production
        if number is None:
            raise UsageError(
                "no version is in production",
                where=model,
                do=f"Name a version; see govray model versions {model}",
            )
        found = self.version(model, number)
        listing = f"/v1/attestations/{found.attestation}/files"
        return found, download(self._client, listing, into, told=told, check=check)


def _fetch(
    connection: Connection,
    listing: str,
    files: tuple[File, ...],
    staged: Path,
    told: Told,
) -> None:
    """Put the files below ``files`` of ``staged``, and nothing else. Raises `Changed`."""
    complete, parts = staged / "files", staged / "parts"
    complete.mkdir(exist_ok=True)
    parts.mkdir(exist_ok=True)
    wanted = {each.name: each for each in files}
    for path in [each for each in complete.rglob("*") if each.is_file()]:
        known = wanted.get(path.relative_to(complete).as_posix())
        if known is None or _sha256(path) != known.digest:
            path.unlink()
    used = {_part(each) for each in files}
    for path in parts.iterdir():
        if path.name not in used:
            path.unlink()
    whole, here = sum(int(each.bytes) for each in files), 0

    def behind(before: int) -> Callable[[int], None]:
        return lambda done: told(before + done, whole)

    for each in files:
        target, part = complete / each.name, parts / _part(each)
        if not target.is_file():
            address = f"{listing}/{quote(each.name)}"
            _fetch_one(connection, address, each, part, behind(here))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)
        here += int(each.bytes)
        told(here, whole)


def _fetch_one(
    connection: Connection,
    address: str,
    file: File,
    part: Path,
    told: Callable[[int], None],
) -> None:
    """Bring a file's bytes to ``part``, going on behind those that it has. Raises `Changed`."""
    size, failures = int(file.bytes), 0
    part.touch()
    while (have := part.stat().st_size) < size:
        try:
            _go_on(connection, address, file, part, told)
        except InfrastructureFailed as error:
            failures = 1 if part.stat().st_size > have else failures + 1
            if failures >= TRIES:
                raise InfrastructureFailed(
                    error.what,
                    where=error.where,
                    do=f"Say the same again: {file.name} goes on behind byte "
                    f"{part.stat().st_size:,} of {size:,}",
                ) from None
            time.sleep(PAUSE_S * 2 ** (failures - 1))
    if _sha256(part) != file.digest:
        part.unlink()
        raise Refused(
            f"{file.name} has other bytes than its digest {file.digest[:19]}… says",
            where=connection.server,
            do="Nothing of it was kept. Say the same again; if it fails again, tell who runs the "
            "service that the file is damaged",
        )


def _go_on(
    connection: Connection,
    address: str,
    file: File,
    part: Path,
    told: Callable[[int], None],
) -> None:
    size, start = int(file.bytes), part.stat().st_size
    with (
        connection.open_file(address, start=start, tag=file.digest) as opened,
        part.open("r+b") as sink,
    ):
        sink.truncate(opened.start)
        at = sink.seek(opened.start)
        while at < size and (piece := opened.read(min(_PIECE, size - at))):
            sink.write(piece)
            at += len(piece)
            told(at)
        sink.flush()
        os.fsync(sink.fileno())
    if at < size:
        raise InfrastructureFailed("the connection ended in a file", where=connection.server)


def _check(files: tuple[File, ...], server: str) -> None:
    """Refuse names that leave the folder, and what is no digest."""
    names = {each.name for each in files}
    for each in files:
        parts = each.name.split("/")
        plain = all(part not in ("", ".", "..") for part in parts) and each.name.isprintable()
        above = any("/".join(parts[:end]) in names for end in range(1, len(parts)))
        known = _DIGEST.fullmatch(each.digest)
        if not plain or above or "\\" in each.name or len(each.name) > 1024 or not known:
            raise Malformed(f"the file {each.name[:80]!r} is not written here", where=server)
    if not 0 < len(names) == len(files) <= MOST_FILES:
        raise Malformed(f"it lists {len(files)} files, {len(names)} by name", where=server)


def _part(file: File) -> str:
    return hashlib.sha256(f"{file.name}\0{file.digest}".encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def _staged(into: Path) -> Iterator[Path]:
    """The hidden folder, for one process at a time; it stays if it is not deleted."""
    staged = into.with_name(f".{into.name}.download")
    make_folder(staged, mode=0o700)
    held = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise UsageError(
            "another process fetches this folder", where=str(into), do="Wait until it has ended"
        ) from None
    try:
        yield staged
    finally:
        with suppress(OSError):
            staged.rmdir()  # nothing has come
        os.close(held)


@contextmanager
def _writing(into: Path) -> Iterator[None]:
    try:
        yield
    except GovrayError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}",
            where=str(into),
            do="Check the space and the permissions there, then say the same again",
        ) from None
