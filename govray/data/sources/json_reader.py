"""Rows of JSON lines and of WebDataset tars: both without a schema, so each row is looked at.

Lines are parsed one by one, not by pyarrow's reader. That one guesses types from the first block.
It says neither which line is wrong nor that a key is there twice.
"""

from __future__ import annotations

import codecs
import json
import tarfile
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, BinaryIO, Self, cast

from govray.data.sources.columns import ColumnMapping, member, member_paths
from govray.data.sources.objects import SourceObject
from govray.data.tables.table_reader import Raw, open_stream, reading, text_stream

_MOST_PATHS = 10_000  # that are remembered
_JSON_OVERHEAD = 8
"""How many times its bytes a text may take as JSON: six for ``\\u0000``, and what is beside it."""


def lines(found: SourceObject, columns: ColumnMapping, limit: int) -> Iterator[Raw]:
    """Each line of JSON lines; a row's number is its line's. Empty lines are no rows."""
    most = limit * _JSON_OVERHEAD
    rows = _Rows(found, columns)
    with reading(found) as progress, text_stream(found) as stream:
        for row in count(1):
            line = stream.readline(most + 1)
            if row == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            elif not line:
                return
            if len(line) > most:
                yield row, f"the line has more than {most:,} bytes"
                while line and not line.endswith(b"\n"):
                    line = stream.readline(most)
            elif line.strip():
                yield row, rows.picked(line)
            progress[0] = row


def samples(found: SourceObject, columns: ColumnMapping, limit: int) -> Iterator[Raw]:
    """Each sample of a WebDataset tar: neighbours whose names agree up to the first dot.

    The text is the ``txt`` file, other attributes are members of the ``json`` file.

    Raises:
        Malformed: The rest cannot be read, the tar has no end, or something is behind it. Says
            after which sample.
    """
    rows = _Rows(found, columns)
    with reading(found) as progress:
        _check_tar_end(found)
        with open_stream(found) as stream:
            kept = _Kept(stream)
            # It reads, and does nothing else.
            read_only = cast(BinaryIO, kept)
            with tarfile.open(fileobj=read_only, mode="r|", tarinfo=_TarHeader) as tar:
                for row, files in enumerate(_samples(tar, limit), 1):
                    yield row, files if isinstance(files, str) else _sample(files, rows)
                    progress[0] = row
            kept.check_nothing_behind(tar.offset)


class _Kept:
    """A stream that keeps what it gave last, since ``tarfile`` reads beyond a tar's end mark."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._end = stream, 0
        self._last = self._before = b""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if data:
            self._before, self._last = self._last, data
        self._end += len(data)
        return data

    def check_nothing_behind(self, offset: int) -> None:
        """Read to the end, where the codec's own check is."""
        kept = self._before + self._last
        kept = kept[max(0, offset - (self._end - len(kept))) :]
        while kept:
            if kept.strip(b"\0"):
                raise tarfile.ReadError("something is behind the end mark, such as a second tar")
            kept = self._stream.read(1 << 20)


class _TarHeader(tarfile.TarInfo):
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


def _sample(files: Mapping[str, bytes], rows: _Rows) -> dict[str, Any] | str:
    picked = rows.picked(files.get("json", b"{}"))
    if isinstance(picked, str) or "txt" not in files:
        return picked
    return picked | {"text": files["txt"]}


class _Rows:
    """Picks attributes from the rows of one object."""

    def __init__(self, found: SourceObject, columns: ColumnMapping) -> None:
        self._where, self._columns, self._keys = found.where, columns, columns.keys()
        self._seeming: dict[str, str | None] = {}

    def picked(self, data: bytes) -> dict[str, Any] | str:
        """What a row states, or what is wrong with it."""
        try:
            value = _DECODER.decode(data.decode())
        except UnicodeDecodeError as error:
            return f"not UTF-8 at byte {error.start}"
        except (ValueError, RecursionError) as error:
            return f"not JSON ({error})"
        if not isinstance(value, dict):
            return "no JSON object"
        self._check(value)
        return {attribute: member(value, key) for attribute, key in self._keys.items()}

    def _check(self, value: dict[str, Any]) -> None:
        """Refuse a key that seems to state terms, where the row has none that are read."""
        for path in member_paths(value):
            attribute = self._seems(path)
            if attribute and member(value, self._keys[attribute]) is None:
                raise self._columns.overlooked(path, attribute, self._where)

    def _seems(self, path: str) -> str | None:
        if path not in self._seeming:
            if len(self._seeming) == _MOST_PATHS:
                self._seeming.clear()
            self._seeming[path] = self._columns.seeming(path)
        return self._seeming[path]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key is there twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _check_tar_end(found: SourceObject) -> None:
    """Demand the end mark: one that is cut between two files looks complete to ``tarfile``.
    A compressed one has an end of its own."""
    with found.open() as file:
        file.seek(max(0, found.stamp.size - tarfile.BLOCKSIZE))
        if not found.compression and file.read() != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("the end mark is missing")
