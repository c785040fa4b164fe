"""Rows of JSON lines and of WebDataset tars: both without a schema, so each row is looked at.

Lines are parsed one by one, not by pyarrow's reader. That one guesses types from the first block.
It says neither which line is wrong nor that a key is there twice.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Self

from govray.data.sources.columns import member
from govray.data.sources.objects import SourceObject
from govray.data.sources.table_reader import Raw, open_stream, reading, text_stream

_JSON_OVERHEAD = 8
"""How many times its bytes a text may take as JSON: six for ``\\u0000``, and what is beside it."""


def lines(found: SourceObject, keys: Mapping[str, str], limit: int) -> Iterator[Raw]:
    """Each line of JSON lines; a row's number is its line's. Empty lines are no rows.

    Args:
        found: The object.
        keys: Attribute → key, with dots for members.
        limit: Bytes of the largest record.

    Raises:
        Malformed: The rest cannot be read. Says after which line.
    """
    most = limit * _JSON_OVERHEAD
    with reading(found) as progress, text_stream(found) as stream:
        for row in count(1):
            line = stream.readline(most + 1)
            if not line:
                return
            if len(line) > most:
                yield row, f"the line has more than {most:,} bytes"
                while line and not line.endswith(b"\n"):
                    line = stream.readline(most)
            elif line.strip():
                yield row, _picked(line, keys)
            progress[0] = row


def samples(found: SourceObject, keys: Mapping[str, str], limit: int) -> Iterator[Raw]:
    """Each sample of a WebDataset tar: neighbours whose names agree up to the first dot.

    The text is the ``txt`` file, other attributes are members of the ``json`` file.

    Raises:
        Malformed: The rest cannot be read, or the tar has no end. Says after which sample.
    """
    with reading(found) as progress:
        _check_tar_end(found)
        with open_stream(found) as stream:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:
                for row, files in enumerate(_samples(tar, limit), 1):
                    yield row, files if isinstance(files, str) else _sample(files, keys)
                    progress[0] = row
            while stream.read(1 << 20):  # the codec's own check is behind the last byte
                pass


class _Header(tarfile.TarInfo):
    """A header of a tar, one that extends the next header among them.

    ``tarfile`` reads such an extension whole, and the header behind it by recursion. So the size
    of one and the length of a chain are bounded here, before that.
    """

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except RecursionError:
            raise _TarError("too many headers extend one file's") from None

    def _proc_member(self, tarfile: tarfile.TarFile) -> Any:
        # Every Python calls this before it reads the extension; newer ones pass `frombuf` by.
        if self.type in _EXTENSIONS and self.size > _LONGEST_EXTENSION:
            raise _TarError(f"a header of {self.size:,} bytes extends a file's")
        return super()._proc_member(tarfile)  # type: ignore[misc]


_TarError = tarfile.TarError
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_LONGEST_EXTENSION = 1 << 20
"""Bytes: of a name with its attributes, some hundred."""


def _samples(tar: tarfile.TarFile, limit: int) -> Iterator[dict[str, bytes] | str]:
    """The files of each sample by what follows the first dot, or what is wrong with one."""
    current: str | None = None
    files: dict[str, bytes] | str = {}
    for entry in tar:
        if entry.isdir():
            continue
        folder, slash, base = entry.name.rpartition("/")
        key, _, kind = base.partition(".")
        if folder + slash + key != current:
            if current is not None:
                yield files
            current, files = folder + slash + key, {}
        file = tar.extractfile(entry) if entry.isreg() else None
        if isinstance(files, str):
            continue
        if file is None or kind.lower() in files:
            files = f"{entry.name!r} is no plain file, or there twice"
        elif kind.lower() in ("txt", "json") and entry.size > limit:
            files = f"{entry.name!r} has {entry.size:,} bytes, the limit is {limit:,}"
        elif kind.lower() in ("txt", "json"):
            files[kind.lower()] = file.read()
    if current is not None:
        yield files


def _sample(files: Mapping[str, bytes], keys: Mapping[str, str]) -> dict[str, Any] | str:
    picked = _picked(files.get("json", b"{}"), keys)
    if isinstance(picked, str) or "txt" not in files:
        return picked
    return picked | {"text": files["txt"]}


def _picked(data: bytes, keys: Mapping[str, str]) -> dict[str, Any] | str:
    try:
        value = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not JSON ({error})"
    if not isinstance(value, dict):
        return "no JSON object"
    return {attribute: member(value, key) for attribute, key in keys.items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is there twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _check_tar_end(found: SourceObject) -> None:
    """Demand the end mark: one that is cut between two files looks complete to ``tarfile``.

    A compressed one has an end of its own.
    """
    with found.open() as file:
        file.seek(max(0, found.stamp.size - tarfile.BLOCKSIZE))
        if not found.compression and file.read() != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("the end mark is missing")
