"""The objects of a source: which files it has, in which format, and whether they stay as they are.

A source is a file or a folder. The format follows from the suffixes, if all files agree. A folder
of other files is a source of text files, one record each. Hidden files and folders are left out,
and links to folders are not followed.

A folder that the ``datasets`` library saved is recognised by its ``state.json`` or
``dataset_dict.json``. These name the Arrow files, so a missing one is noticed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from govray.data.corpus import disk_errors
from govray.errors import Malformed, UsageError

Format = Literal["files", "jsonl", "csv", "parquet", "arrow", "webdataset"]

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "webdataset",
    ".tgz": "webdataset",
}
COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}

# Of no use as text: a folder that mixes them with other files has to be asked about.
_BINARY = {"parquet", "arrow", "webdataset"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file of a source.

    Attributes:
        name: Its POSIX path below the source.
        path: Where it is.
        stamp: Size in bytes, time of the last change and inode, when the source was listed.
        split: The split that a saved ``datasets`` folder has it in.
    """

    name: str
    path: Path
    stamp: tuple[int, int, int]
    split: str | None = None

    @property
    def compression(self) -> str | None:
        """The codec that the suffix names."""
        return COMPRESSIONS.get(self.path.suffix.lower())

    def check_unchanged(self) -> None:
        """Compare the file with what it was when the source was listed.

        Raises:
            UsageError: It has changed, or cannot be looked at.
        """
        with disk_errors(self.path):
            if _stamp(self.path) != self.stamp:
                raise changed(self.path)


@dataclass(frozen=True)
class RecordSource:
    """A source that was found.

    Attributes:
        source: What the user named.
        format: Of all its objects.
        objects: In the order in which they are read.
        left_out: Names of files that are not of the format.
    """

    source: str
    format: Format
    objects: tuple[SourceObject, ...]
    left_out: tuple[str, ...] = ()

    def check_unchanged(self) -> None:
        """List the source again and compare.

        Raises:
            UsageError: A file was added, removed or changed.
        """
        if find(self.source, self.format) != self:
            raise changed(Path(self.source))


def find(source: str, format: Format | None = None) -> RecordSource:
    """The objects of ``source``.

    Args:
        source: Path of a file or a folder.
        format: What to read; by default what the suffixes say.

    Raises:
        UsageError: No such path, a URL, nothing to read, or a folder whose files disagree.
        Malformed: A saved ``datasets`` folder lacks a file.
    """
    if _SCHEME.match(source):
        raise UsageError(
            "sources are read from paths only, not from URLs",
            where=source,
            do="Copy or mount the data, then name the folder.",
        )
    path = Path(source)
    if path.is_file():
        with disk_errors(path):
            found = SourceObject(path.name, path, _stamp(path))
        return RecordSource(source, format or _format_of(path.name) or "files", (found,))
    if not path.is_dir():
        raise UsageError("no such file or folder", where=source, do="Check the path.")
    if format in (None, "arrow") and (saved := tuple(_saved_datasets(path))):
        return RecordSource(source, "arrow", saved)
    with disk_errors(path):
        names = list(_names_below(path))
    format = format or _common_format(source, names)
    if format != "files":
        # A record's name begins so, and records are in order of their names.
        names.sort(key=lambda name: f"{name}#")
    kept = [name for name in names if format in ("files", _format_of(name), _as_json(name))]
    if names and not kept:
        raise UsageError(
            f"no file is of format {format}", where=source, do="Check the folder and --format."
        )
    with disk_errors(path):
        objects = tuple(SourceObject(name, path / name, _stamp(path / name)) for name in kept)
    left_out = set(names) - set(kept)
    return RecordSource(source, format, objects, tuple(sorted(left_out)))


def changed(path: Path) -> UsageError:
    """The error of a source that does not stand still."""
    return UsageError(
        "changed while it was read",
        where=str(path),
        do="Read a copy, or wait until its writer is done.",
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _format_of(name: str) -> Format | None:
    stem, suffix = os.path.splitext(name.lower())
    if suffix in (".gz", ".zst"):
        suffix = os.path.splitext(stem)[1]
    return SUFFIXES.get(suffix)


def _as_json(name: str) -> Format | None:
    """``.json`` is often JSON lines, and often not: it is so only where the user says so."""
    return "jsonl" if re.search(r"\.json(\.gz|\.zst)?$", name.lower()) else None


def _names_below(folder: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    names: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [f for f in folders if not f.startswith(".")]
        paths = (Path(parent, f) for f in files if not f.startswith("."))
        names += [p.relative_to(folder).as_posix() for p in paths if p.is_file()]
    yield from sorted(names)


def _common_format(source: str, names: list[str]) -> Format:
    formats = {_format_of(name) for name in names}
    if len(formats) == 1 and (only := formats.pop()):
        return only
    if binary := sorted(each for each in formats if each in _BINARY):
        raise UsageError(
            f"the folder holds {' and '.join(binary)} files beside others",
            where=source,
            do=f"Say which to read: --format {binary[0]}, or --format files for all as they are.",
        )
    return "files"


def _saved_datasets(folder: Path, split: str | None = None) -> Iterator[SourceObject]:
    """The Arrow files of a folder that ``datasets`` saved, or none if it is no such folder."""
    prefix = f"{split}/" if split else ""
    if (splits := folder / "dataset_dict.json").is_file():
        for each in sorted(_member(splits, "splits", str), key=lambda name: f"{name}/"):
            yield from _saved_datasets(folder / each, each)
    elif (state := folder / "state.json").is_file():
        files = [each.get("filename") for each in _member(state, "_data_files", dict)]
        for name in sorted(files, key=lambda name: f"{name}#"):
            path = folder / str(name)
            if path.parent != folder or not path.is_file():
                raise Malformed(
                    f"names {str(name)!r}, which is not beside it",
                    where=str(state),
                    do="Save or copy the dataset again.",
                )
            with disk_errors(path):
                yield SourceObject(f"{prefix}{name}", path, _stamp(path), split)
    elif split:
        raise Malformed("no state.json", where=str(folder), do="Save or copy the dataset again.")


def _member(path: Path, name: str, kind: type) -> list[Any]:
    """The list of ``kind`` that a file of ``datasets`` has under a name."""
    with disk_errors(path):
        data = path.read_bytes()
    try:
        value = json.loads(data)[name]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
        raise Malformed(f"no list {name!r}", where=str(path), do="Save or copy the dataset again.")
    return value
