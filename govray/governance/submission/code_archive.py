"""The working directory that a job got, kept as one zip named by its own digest.

``<storage>/code/<sha256>.zip`` lies beside the runs. Equal folders give equal bytes on every
machine: names are sorted, times are fixed, and nothing is compressed, for compressors differ. Of a
file's mode only whether it may be executed is kept.

Left out are:

* what `secret_files.LEFT_OUT` names: version control, ``runs`` at the top, the store, its secret;
* folders of virtual environments, which have a ``pyvenv.cfg``;
* the storage where it lies inside;
* what the ``.gitignore`` and ``.rayignore`` at the top say (`govray.storage.gitignore`).
  Those of inner folders are not read.

Invariants:

* An archive holds no link, and no secret that `secret_files` knows: a private key, ``.env``, or the
  secret of a corpus.
* Nothing is unpacked whose digest was not verified, nor anything outside the given folder.
* What is left out when a folder is packed is refused in an archive: hooks of ``.git`` would run.
* Sizes and counts are bounded on both ways.

Source: PKWARE APPNOTE 6.3.10.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from govray.errors import CouldNotCheck, Damaged, Malformed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.submission.secret_files import held_secret, left_out, never_received
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.gitignore import Ignored
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder
from govray.storage.zip_entry import zip_entry

CODE = "code"
"""Folder of the archives, beside the runs."""

LARGEST = 100 << 20
"""Bytes of all files together."""

MOST = 20_000
"""Files."""

_LONGEST = 1 << 10  # bytes of a name
_LONGEST_PART = 255  # bytes of a name between two slashes: what file systems hold
_OVERHEAD = 256 + 2 * _LONGEST  # bytes that a zip spends on a file, at most
_END = struct.Struct("<4s4H2LH")  # the record at the end of a zip (APPNOTE 4.3.16)
_ENTRY = struct.Struct("<4s6H3L5H2L")  # a file in its directory (APPNOTE 4.3.12)
_HEAD = 30  # bytes before a file's name where its content lies (APPNOTE 4.3.7)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IGNORES = (".gitignore", ".rayignore")


def archive_folder(folder: Path, storage: Place) -> str:
    """Archive a working directory beside the runs, once. Returns the archive's digest."""
    data = packed(folder, storage)
    digest = canonical_json.sha256(data)
    target = archive_place(storage, digest)
    if not (target.is_file() and canonical_json.sha256(target.read_bytes()) == digest):
        make_folder(target.parent)
        write_whole(target, data)
    else:
        renew(target)
    return digest


def renew(archive: Place) -> None:
    """Let an archive that is there count as just sent, as far as the storage lets one. No sweep
    removes one so young."""
    with suppress(OSError):
        if isinstance(archive, Path):
            os.utime(archive)
        else:
            archive.write_bytes(archive.read_bytes())


def check_digest(text: str) -> str:
    """Return ``text`` if it is a digest."""
    if not _DIGEST.fullmatch(text):
        raise UsageError(
            f"{text[:80]!r} is no digest", where="archive", do="Write sha256: and 64 hex digits"
        )
    return text


def archive_place(storage: Place, digest: str) -> Place:
    """Where the archive of a digest lies."""
    check_digest(digest)
    return storage / CODE / f"{digest.removeprefix('sha256:')}.zip"


def packed(folder: Path, storage: Place | None = None) -> bytes:
    """A working directory as the bytes of its archive.
    ``storage``: where runs lie; left out if it is inside.
    Raises ``Refused``: a file is a link or holds a secret, or it is too large."""
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder), do="Check working_dir")
    inside = storage.resolve() if isinstance(storage, Path) else None
    files = sorted(_files(folder, inside), key=lambda path: _name(path, folder))
    sizes = {path: path.stat().st_size for path in files}
    if len(files) > MOST or sum(sizes.values()) > LARGEST:
        largest = max(sizes, key=lambda path: sizes[path])
        raise Refused(
            f"the working directory has {len(files)} files of {sum(sizes.values()) >> 20} MiB; an "
            f"archive holds {MOST} files and {LARGEST >> 20} MiB",
            where=str(folder),
            do=f"Name in .rayignore what the job does not need, such as {largest}",
        )
    out, total = io.BytesIO(), 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            data = path.read_bytes()
            total += len(data)
            if (secret := held_secret(path.name, data)) is not None:
                raise Refused(
                    f"{secret} lies in the folder that the cluster is sent",
                    where=str(path),
                    do="Move it out of the folder, or name it in .rayignore; the job reads keys "
                    "and corpora where it runs, by absolute paths",
                )
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            archive.writestr(zip_entry(_name(path, folder), executable=executable), data)
    if total > LARGEST:
        raise Refused("the working directory grew while it was read", where=str(folder))
    return out.getvalue()


def open_archive(storage: Place, digest: str, into: Path) -> Path:
    """Unpack an archive whose digest holds. Returns ``into``, which appears whole.

    Args:
        into: A folder that is not there yet.

    Raises:
        CouldNotCheck: The archive is not there.
        Damaged: Its bytes are not those of the digest.
        Malformed: It is no archive of this kind: a path leads out, or a file is a link. Or there is
            too much of it.
    """
    if into.exists() or into.is_symlink():
        raise UsageError("the folder is there already", where=str(into), do="Name a new one")
    where = archive_place(storage, digest)
    data = _verified(where, digest)
    with staged_folder(into) as folder, _opened(io.BytesIO(data), str(where)) as archive:
        for info, content in _contents(archive, str(where)):
            target = folder / info.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o755 if info.external_attr >> 16 & stat.S_IXUSR else 0o644)
    return into


def check_archive(stream: BinaryIO, where: str) -> None:
    """Read an archive whole, as `open_archive` would; nothing is unpacked.
    Raises ``Malformed``, or ``Refused``: a file holds a secret."""
    with _opened(stream, where) as archive:
        for info, content in _contents(archive, where):
            if (secret := held_secret(PurePosixPath(info.filename).name, content)) is not None:
                raise Refused(
                    f"{info.filename!r}: {secret} is for nobody else",
                    where=where,
                    do="Archive the folder without it",
                )


def archived_names(data: bytes, where: str) -> frozenset[str]:
    """The names of an archive's files. Raises ``Malformed``: nothing here wrote it."""
    with _opened(io.BytesIO(data), where) as archive:
        return frozenset(info.filename for info in _checked(archive, where))


def largest_archive() -> int:
    """Bytes of the largest archive that `packed` writes."""
    return LARGEST + MOST * _OVERHEAD


def _verified(where: Place, digest: str) -> bytes:
    """The archive's bytes, which have the digest."""
    most = largest_archive()
    try:
        with where.open("rb") as stream:
            data = stream.read(most + 1)
    except FileNotFoundError:
        raise CouldNotCheck(
            "the archive of the working directory is not there",
            where=str(where),
            do="Restore it from where the runs were copied from",
        ) from None
    if len(data) > most or canonical_json.sha256(data) != digest:
        raise Damaged(
            f"the archive is not the recorded one, {digest}",
            where=str(where),
            do="Restore it from where the runs were copied from",
        )
    return data


def _opened(stream: BinaryIO, where: str) -> zipfile.ZipFile:
    _check_directory(stream, where)
    try:
        return zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise Malformed(f"it is no zip: {error}", where=where) from None


def _check_directory(stream: BinaryIO, where: str) -> None:
    """Bound what `zipfile` reads before it checks anything: it holds the whole directory.

    A file may name millions of entries, whatever number it states. Files lie one behind another
    here, as `packed` writes them: none shares bytes, and no bytes are of no file.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END.size))
    tail = stream.read(_END.size)
    if len(tail) < _END.size or not tail.startswith(b"PK\5\6"):
        raise Malformed("it is no zip: it does not end as one", where=where)
    _, disk, first_disk, here, count, length, start, comment = _END.unpack(tail)
    if count > MOST:
        raise _too_much(where)
    whole = start + length + _END.size == size
    if not whole or disk or first_disk or comment or here != count:
        raise Malformed("it is no zip of one piece", where=where)
    stream.seek(start)
    left, behind = memoryview(stream.read(length)), 0
    for _ in range(count):
        if len(left) < _ENTRY.size or bytes(left[:4]) != b"PK\1\2":
            raise Malformed("it is no zip: its directory is not whole", where=where)
        fields = _ENTRY.unpack(left[: _ENTRY.size])
        stored, named, extra, remark, at = fields[8], *fields[10:13], fields[16]
        # A name with a zero could be taken for the record of a larger zip.
        name = bytes(left[_ENTRY.size : _ENTRY.size + named])
        if extra or remark or at != behind or b"\0" in name:
            raise Malformed("it is no archive that govray has written", where=where)
        behind += _HEAD + named + stored
        left = left[_ENTRY.size + named :]
    if len(left) or behind != start:
        raise Malformed("it holds bytes that are of no file", where=where)


def _contents(archive: zipfile.ZipFile, where: str) -> Iterator[tuple[zipfile.ZipInfo, bytes]]:
    """Each file with what it holds, once all of them are checked."""
    for info in _checked(archive, where):
        try:
            with archive.open(info) as stream:
                content = stream.read(info.file_size + 1)
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise Malformed(f"{info.filename!r} cannot be read: {error}", where=where) from None
        if len(content) != info.file_size:
            raise Malformed(f"{info.filename!r} is not of its size", where=where)
        yield info, content


def _too_much(where: str) -> Malformed:
    return Malformed(
        f"it holds more than {MOST} files or {LARGEST >> 20} MiB when it is unpacked", where=where
    )


def _checked(archive: zipfile.ZipFile, where: str) -> list[zipfile.ZipInfo]:
    """The archive's files, of which each is one that `packed` could have written."""
    infos = archive.infolist()
    if len(infos) > MOST or sum(info.file_size for info in infos) > LARGEST:
        raise _too_much(where)
    names = [info.filename for info in infos]
    if len({*names}) != len(names):
        raise Malformed("a name stands in it twice", where=where)
    above = {str(each) for name in names for each in PurePosixPath(name).parents}
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind != stat.S_IFREG or info.is_dir():
            raise Malformed(f"{info.filename!r} is a link or no file", where=where)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise Malformed(f"{info.filename!r} is compressed or encrypted", where=where)
        if not _safe(info.filename) or info.filename in above:
            raise Malformed(f"{info.filename!r} leads out of the folder", where=where)
        if never_received(info.filename):
            raise Malformed(f"{info.filename!r} belongs into no archive", where=where)
    return infos


def _safe(name: str) -> bool:
    """Whether a name stays below the folder that it is unpacked into, on every system."""
    parts = name.split("/")
    return (
        all(part not in ("", ".", "..") for part in parts)
        and all(len(part.encode("utf-8", "surrogatepass")) <= _LONGEST_PART for part in parts)
        and not any(mark in name for mark in "\\:\0")
        and len(name.encode("utf-8", "surrogatepass")) <= _LONGEST
    )


def _files(folder: Path, storage: Path | None) -> Iterator[Path]:
    """The files that belong into the archive; in any order."""
    ignored = Ignored.read([folder / name for name in _IGNORES])
    pending = [folder]
    while pending:
        above = pending.pop()
        if (above / "pyvenv.cfg").is_file():
            continue
        for entry in os.scandir(above):
            path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
            name = _name(path, folder)
            if left_out(name, is_folder) or ignored(name, is_folder):
                continue
            if is_folder:
                if path.resolve() != storage:
                    pending.append(path)
            elif entry.is_file(follow_symlinks=False) and _safe(name):
                yield path
            else:
                raise Refused(
                    "a working directory consists of files: this is a link, a device, or a name "
                    "that not every system can hold",
                    where=str(path),
                    do="Copy what a link names, or name it in .rayignore",
                )


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
