"""The objects of a source: which files it has, in which format, and whether they stay as they are.

A source is a file or a folder, on a disk or below a URL of an object store. The format follows from
the suffixes, if all files agree. A folder of other files is a source of text files, one record
each. Tables beside other files, and files that are compressed or no text by their suffix, are asked
about. Hidden files and folders are left out.

A folder that the ``datasets`` library saved is recognised by its ``state.json`` or
``dataset_dict.json``. These name the Arrow files, so a missing one is noticed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from govray.data.corpus import disk_errors
from govray.data.sources.bucket_folder import Stamp, changed
from govray.errors import Malformed, UsageError
from govray.storage.storage_url import is_url

Format = Literal["files", "jsonl", "csv", "parquet", "arrow", "webdataset"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".tar": "webdataset",
    ".tgz": "webdataset",
}
COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}

_NO_TEXT = re.compile(
    r"\.(7z|avro|bin|br|bz2|db|docx?|epub|gz|h5|hdf5|jar|lz4?|lzma|mp3|mp4|np[yz]|odt|orc|pdf|pickle"
    r"|pkl|pptx?|pth?|rar|safetensors|sqlite|tbz2|txz|wav|whl|xlsx?|xz|zip|zst)$",
    re.IGNORECASE,
)
"""Names of files that are not read, and are no text as they are."""


class SourceFolder(Protocol):
    """Where objects lie: `DiskFolder` or `govray.data.sources.bucket_folder.BucketFolder`."""

    def where(self, name: str) -> str: ...

    def list(self) -> dict[str, Stamp]: ...

    def stamp(self, name: str) -> Stamp: ...

    def open(self, name: str, stamp: Stamp) -> pa.NativeFile: ...


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file of a source.

    Attributes:
        name: Its POSIX path below the source.
        stamp: What it was when the source was listed.
        split: The split that a saved ``datasets`` folder has it in.
    """

    name: str
    folder: SourceFolder = field(repr=False)
    stamp: Stamp
    split: str | None = None

    @property
    def where(self) -> str:
        """How errors name it."""
        return self.folder.where(self.name)

    @property
    def suffixes(self) -> list[str]:
        return Path(self.name.lower()).suffixes

    @property
    def compression(self) -> str | None:
        """The codec that the suffix names."""
        return COMPRESSIONS.get(self.suffixes[-1]) if self.suffixes else None

    def open(self) -> pa.NativeFile:
        return self.folder.open(self.name, self.stamp)

    def check_unchanged(self) -> None:
        """Compare a file with what it was when the source was listed.
        A bucket's objects are compared with every read instead, and once more at the end."""
        if isinstance(self.folder, DiskFolder) and self.folder.stamp(self.name) != self.stamp:
            raise changed(self.where)


@dataclass(frozen=True)
class RecordSource:
    """A source that was found.

    Attributes:
        objects: In the order in which they are read.
        left_out: Names of files that are not of the format.
    """

    source: str
    format: Format
    objects: tuple[SourceObject, ...]
    left_out: tuple[str, ...] = ()

    def check_unchanged(self) -> None:
        """List the source again and compare."""
        if find(self.source, self.format) != self:
            raise changed(self.source.partition("?")[0])


def find(source: str, format: Format | None = None) -> RecordSource:
    """The objects of ``source``.

    Args:
        source: Path of a file or a folder, or URL of an object or of what is below a prefix.
        format: What to read; by default what the suffixes say.
    """
    folder, name = _open(source)
    if name is not None:
        found = SourceObject(name, folder, folder.stamp(name))
        return RecordSource(source, format or _common_format(found.where, [name]), (found,))
    stamps = folder.list()
    if is_url(source) and not stamps:
        raise UsageError(
            "no objects are there",
            where=folder.where(""),
            do="Check bucket and prefix: upper and lower case differ, and * is no wildcard.",
        )
    if format in (None, "arrow") and (saved := tuple(_saved_datasets(folder, stamps))):
        return RecordSource(source, "arrow", saved)
    names = list(stamps)
    format = format or _common_format(folder.where(""), names)
    if format != "files":
        # A record's name begins so, and records are in order of their names.
        names.sort(key=lambda name: f"{name}#")
    kept = [name for name in names if format in ("files", _format_of(name), _as_json(name))]
    if names and not kept:
        raise UsageError(
            f"no file is of format {format}",
            where=folder.where(""),
            do="Check the folder and --format.",
        )
    objects = tuple(SourceObject(name, folder, stamps[name]) for name in kept)
    left_out = set(names) - set(kept)
    return RecordSource(source, format, objects, tuple(sorted(left_out)))


def _open(source: str) -> tuple[SourceFolder, str | None]:
    """The folder that a source is; or the folder and the file, if it is a file."""
    if is_url(source):
        from govray.data.sources.bucket_folder import open_bucket  # who reads paths loads no client

        return open_bucket(source)
    path = Path(source)
    if path.is_file():
        return DiskFolder(path.parent), path.name
    if not path.is_dir():
        raise UsageError("no such file or folder", where=source, do="Check the path.")
    return DiskFolder(path), None


def _format_of(name: str) -> Format | None:
    stem, suffix = os.path.splitext(name.lower())
    if suffix in (".gz", ".zst"):
        suffix = os.path.splitext(stem)[1]
    return SUFFIXES.get(suffix)


def _as_json(name: str) -> Format | None:
    """``.json`` is often JSON lines, and often not: it is so only where the user says so."""
    return "jsonl" if re.search(r"\.json(\.gz|\.zst)?$", name.lower()) else None


def _common_format(source: str, names: list[str]) -> Format:
    formats = {_format_of(name) for name in names}
    if len(formats) == 1 and (only := formats.pop()):
        return only
    if tables := sorted(each for each in formats if each):
        other = next(name for name in names if _format_of(name) != tables[0])
        raise UsageError(
            f"the folder holds {' and '.join(tables)} files beside others, such as {other}",
            where=source,
            do=f"Say which to read: --format {tables[0]}, or --format files for all as they are.",
        )
    if unread := [name for name in names if _NO_TEXT.search(name)]:
        raise UsageError(
            f"{unread[0]} is no text, and of no format that is read",
            where=source,
            do="Unpack or convert it, or take all files as they are with --format files.",
        )
    return "files"


def _saved_datasets(
    folder: SourceFolder, stamps: Mapping[str, Stamp], split: str | None = None
) -> Iterator[SourceObject]:
    """The Arrow files of a folder that ``datasets`` saved, or none if it is no such folder."""
    below = f"{split}/" if split else ""
    if (splits := f"{below}dataset_dict.json") in stamps:
        named = _member(folder, splits, stamps, "splits", str)
        for each in sorted(named, key=lambda name: f"{name}/"):
            yield from _saved_datasets(folder, stamps, below + each)
    elif (state := f"{below}state.json") in stamps:
        files = _member(folder, state, stamps, "_data_files", dict)
        for name in sorted((str(each.get("filename")) for each in files), key=lambda n: f"{n}#"):
            if "/" in name or below + name not in stamps:
                raise Malformed(
                    f"names {name!r}, which is not beside it",
                    where=folder.where(state),
                    do="Save or copy the dataset again.",
                )
            yield SourceObject(below + name, folder, stamps[below + name], split)
    elif split:
        raise Malformed(
            "no state.json", where=folder.where(split), do="Save or copy the dataset again."
        )


def _member(
    folder: SourceFolder, file: str, stamps: Mapping[str, Stamp], name: str, kind: type
) -> list[Any]:
    """The list of ``kind`` that a file of ``datasets`` has under a name."""
    with disk_errors(folder.where(file)), folder.open(file, stamps[file]) as stream:
        data = stream.read()
    try:
        value = json.loads(data)[name]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
        raise Malformed(
            f"no list {name!r}", where=folder.where(file), do="Save or copy the dataset again."
        )
    return value


@dataclass(frozen=True)
class DiskFolder:
    """A folder; an object's name is its POSIX path below it. Links to folders are not followed."""

    path: Path

    def where(self, name: str) -> str:
        """How errors name an object."""
        return str(self.path / name)

    def list(self) -> dict[str, Stamp]:
        """Every file below the folder, in order, without hidden files and folders."""

        def fail(error: OSError) -> None:
            raise error

        names: list[str] = []
        with disk_errors(self.path):
            for parent, folders, files in os.walk(self.path, onerror=fail):
                folders[:] = [f for f in folders if not f.startswith(".")]
                paths = (Path(parent, f) for f in files if not f.startswith("."))
                names += [p.relative_to(self.path).as_posix() for p in paths if p.is_file()]
        for name in names:
            _check_name(name, self.where(name))
        return {name: self.stamp(name) for name in sorted(names)}

    def stamp(self, name: str) -> Stamp:
        with disk_errors(self.path / name):
            status = (self.path / name).stat()
        return Stamp(status.st_size, f"{status.st_mtime_ns} {status.st_ino}")

    def open(self, name: str, stamp: Stamp) -> pa.NativeFile:
        return pa.OSFile(str(self.path / name))


def _check_name(name: str, where: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the file's name is not UTF-8", where=repr(where), do="Rename the file."
        ) from None
