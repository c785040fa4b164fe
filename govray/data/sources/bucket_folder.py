"""The objects below a URL of an object store, as objects of a source.

Every response carries the e-tag of the object that it was read from. Each is compared with the
listing, so an object that is replaced meanwhile is noticed at the next request. Objects are read in
ranges; a range doubles while reading goes straight on, up to ``_MOST``. That bounds the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from govray.errors import InfrastructureFailed, UsageError
from govray.storage.bucket_path import BucketPath, ObjectReader, ObjectStat


class Stamp(NamedTuple):
    """An object's size and version.

    Attributes:
        version: Differs whenever the content does. Of a file: its time of change and inode. Of an
            object: its e-tag, or its time of change if the store gives none.
    """

    size: int
    version: str


def changed(where: str) -> UsageError:
    """The error of a source that does not stand still."""
    return UsageError(
        "changed while it was read",
        where=where,
        do="Read a copy, or wait until its writer is done.",
    )


_LEAST, _MOST = 1 << 16, 1 << 23
"""Bytes of the first and of the largest request."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "abfss": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


@dataclass(frozen=True)
class BucketFolder:
    """What lies below a URL; an object's name is its key below ``path``."""

    path: BucketPath

    def where(self, name: str) -> str:
        """How errors name an object."""
        shown = f"{self.path.bucket.partition('?')[0]}/{self.path.key}"
        return f"{shown}/{name}" if self.path.key else f"{shown}{name}"

    def list(self) -> dict[str, Stamp]:
        """Every object below, in order of names, without those that are hidden."""
        hidden = re.compile(r"(^|/)\.")
        with _reaching(self.where("")):
            found = self.path.walk_files()
        return {name: _stamp(stat) for name, stat in found.items() if not hidden.search(name)}

    def stamp(self, name: str) -> Stamp:
        """What an object is now. Raises ``FileNotFoundError`` if it or the bucket is gone."""
        with _reaching(self.where(name)):
            return _stamp((self.path / name).stat())

    def open(self, name: str, stamp: Stamp) -> pa.NativeFile:
        """An object's bytes. Reads raise what `Ranges` says."""
        return pa.PythonFile(Ranges(self, name, stamp), mode="r")

    def read(self, name: str, start: int, stop: int) -> tuple[memoryview, Stamp]:
        """A range of an object, and what the object was when it was read."""
        with _reaching(self.where(name)):
            data, stat = (self.path / name).read_part(start, stop)
            return data, _stamp(stat)


class Ranges(ObjectReader):
    """One object, read by ranges, each from the object that was listed.

    Raises, when it reads:
        UsageError: The object has changed or is gone.
        InfrastructureFailed: The store does not answer.
    """

    def __init__(self, folder: BucketFolder, name: str, stamp: Stamp) -> None:
        super().__init__(stamp.size)
        self._folder, self._name, self._stamp = folder, name, stamp
        self._start = 0
        self._held = memoryview(b"")
        self._next = _LEAST

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, or what is left of the object: pyarrow takes less for the end."""
        view, done = memoryview(buffer).cast("B"), 0
        while count := super().readinto(view[done:]):
            done += count
        return done

    def read_at(self, start: int, stop: int) -> memoryview:
        if not 0 <= start - self._start < len(self._held):
            self._fetch(stop - start)
        return self._held[start - self._start : stop - self._start]

    def _fetch(self, wanted: int) -> None:
        straight_on = self._position == self._start + len(self._held)
        self._next = min(2 * self._next, _MOST) if straight_on else _LEAST
        stop = min(self._position + max(wanted, self._next), self._stamp.size)
        self._held = memoryview(b"")
        try:
            piece, found = self._folder.read(self._name, self._position, stop)
        except FileNotFoundError:
            raise changed(self._folder.where(self._name)) from None
        except InfrastructureFailed as error:
            # A range behind the end of what is there now is refused.
            if self._folder.stamp(self._name) != self._stamp:
                raise changed(self._folder.where(self._name)) from None
            raise error
        if found != self._stamp:
            raise changed(self._folder.where(self._name))
        self._held, self._start = piece, self._position


def open_bucket(url: str) -> tuple[BucketFolder, str | None]:
    """The folder that a URL names; or the folder and the one object, if it names an object."""
    try:
        path = BucketPath.parse(url)
    except ValueError as error:
        raise UsageError(str(error), where="SRC", do="See docs/corpora.md.") from None
    below = BucketFolder(path)
    if not path.key or url.partition("?")[0].endswith("/"):
        return below, None
    folder = BucketFolder(path.parent)
    try:
        size = folder.stamp(path.name).size
    except FileNotFoundError:
        return below, None
    # A console's marker of a folder is an empty object.
    return (folder, path.name) if size or not below.list() else (below, None)


def _stamp(stat: ObjectStat) -> Stamp:
    tag = (stat.tag.e_tag or "").strip('"')  # Azure lists e-tags without their quotes
    return Stamp(stat.st_size, tag or str(stat.modified))


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    """Turn a store's errors into one that names the place. That an object is not there passes."""
    try:
        yield
    except OSError as error:
        what = str(error.strerror)
        if isinstance(error, PermissionError):
            variables = _CREDENTIALS[where.partition(":")[0]]
            do = f"Set {variables}, or run where a role gives them, with the right to read."
        elif what == "no such bucket":
            do = "Check its name, region and endpoint."
        elif isinstance(error, FileNotFoundError):
            raise
        elif "empty path segment" in what:
            what = f"a key below it has an empty name between two slashes: {what}"
            do = "Rename that object, or name a folder beside it."
        else:
            raise InfrastructureFailed(
                what,
                where=where,
                do="Check the network, region and endpoint, then run the command again.",
            ) from error
        raise UsageError(what, where=where, do=do) from error
