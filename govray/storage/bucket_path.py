"""A path below a bucket, with those of pathlib's methods that folders of govray's need.

Errors are those that a disk would raise, so code that reads a folder reads either. An object store
has no folders: a path is one if there is an object below it.

`BucketPath.swap` is the store's own lock: it writes only over the version that was read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from govray.storage.bucket import Replaced, bucket_store, reaching
from govray.storage.storage_url import check_url

_RANGE = 1 << 22
"""Bytes of one request of a reader that takes few at a time."""
_MOST = 1 << 25
"""Bytes of the largest request of a reader: a broken connection loses at most these."""
_PART = 1 << 24
"""Bytes of each part of an object that is sent piece by piece."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What tells one version of an object from the next, as the store gives it."""

    e_tag: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says of an object."""

    st_size: int
    tag: Tag
    modified: datetime


@dataclass(frozen=True, order=True)
class BucketPath:
    """Immutable, hashable, pickled without credentials.

    Attributes:
        bucket: ``scheme://bucket``, with the URL's options behind a ``?``.
        key: Below it, without slashes at its ends; empty for the bucket itself.
    """

    bucket: str
    key: str

    @classmethod
    def parse(cls, url: str) -> BucketPath:
        """The path that a URL names."""
        parts = urlsplit(check_url(url))
        mark = "?" if parts.query else ""
        bucket = f"{parts.scheme}://{parts.netloc}{mark}{parts.query}"
        return cls(bucket, parts.path.strip("/"))

    def __str__(self) -> str:
        base, mark, options = self.bucket.partition("?")
        return f"{base}/{self.key}{mark}{options}"

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        """The path above; the bucket is above itself."""
        return BucketPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def parents(self) -> tuple[BucketPath, ...]:
        """All above, the nearest first."""
        parts = self.key.split("/")
        above = ("/".join(parts[:count]) for count in range(len(parts) - 1, -1, -1))
        return tuple(BucketPath(self.bucket, key) for key in above)

    def with_name(self, name: str) -> BucketPath:
        """A path beside this one."""
        return self.parent / name

    def resolve(self) -> BucketPath:
        """Itself: a URL is whole, and a store has no links."""
        return self

    def relative_to(self, other: BucketPath) -> str:
        """The part below ``other``, with slashes; empty if it is the same."""
        if self == other:
            return ""
        head = f"{other.key}/" if other.key else ""
        if self.bucket != other.bucket or not self.key.startswith(head):
            raise ValueError(f"{self} is not below {other}")
        return self.key[len(head) :]

    def stat(self) -> ObjectStat:
        """Raises ``FileNotFoundError`` where there is no object."""
        import obstore

        with reaching(str(self)):
            return _stat(obstore.head(self._store, self.key))

    def exists(self) -> bool:
        """Whether there is an object here, or one below."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object here."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is an object below."""
        with reaching(str(self)):
            for page in self._store.list(f"{self.key}/" if self.key else None, chunk_size=1):
                return len(page) > 0
        return False

    def is_symlink(self) -> bool:
        """A store has no links."""
        return False

    def iterdir(self) -> Iterator[BucketPath]:
        """What lies directly below, in the order of names."""
        import obstore

        with reaching(str(self)):
            found = obstore.list_with_delimiter(self._store, f"{self.key}/" if self.key else None)
        keys = {*found["common_prefixes"], *(meta["path"] for meta in found["objects"])}
        for key in sorted(keys - {self.key}):
            yield BucketPath(self.bucket, key.strip("/"))

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """What lies below and fits; ``*`` does not cross a slash, and ``**`` is not known."""
        first, _, rest = pattern.partition("/")
        if not any(mark in first for mark in "*?["):
            found = self / first
            if rest:
                yield from found.glob(rest)
            elif found.exists():
                yield found
            return
        for each in self.iterdir():
            if fnmatchcase(each.name, first):
                if rest:
                    yield from each.glob(rest)
                else:
                    yield each

    def walk_files(self, *, most: int | None = None) -> dict[str, ObjectStat]:
        """Every object below, by its name below this path, in order.
        Markers that consoles and other tools store as folders are no objects.
        ``most``: list no more objects than these, the first in the store's order."""
        head = f"{self.key}/" if self.key else ""
        with reaching(str(self)):
            listed = (meta for page in self._store.list(head or None) for meta in page)
            found = {meta["path"][len(head) :]: _stat(meta) for meta in islice(listed, most)}
        folders = {name[:at] for name in found for at in range(len(name)) if name[at] == "/"}
        return {
            name: stat
            for name, stat in sorted(found.items())
            if name and (stat.st_size or name not in folders)
        }

    def read_bytes(self) -> bytes:
        """The whole object."""
        return self.read_stamped()[0]

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole object, decoded."""
        return self.read_bytes().decode(encoding)

    def read_stamped(self) -> tuple[bytes, Tag]:
        """The whole object, and the tag of what was read, for `swap`."""
        import obstore

        with reaching(str(self)):
            found = obstore.get(self._store, self.key)
            return bytes(found.bytes()), _stat(found.meta).tag

    def read_range(self, start: int, stop: int, *, tag: Tag | None = None) -> memoryview:
        """Bytes from ``start`` up to ``stop``, in one request.

        Args:
            start, stop: ``stop`` lies behind ``start`` and within the object.
            tag: Of the version that is meant.

        Raises:
            Replaced: The object has a newer version.
        """
        return self.read_part(start, stop, tag=tag)[0]

    def read_part(
        self, start: int, stop: int, *, tag: Tag | None = None
    ) -> tuple[memoryview, ObjectStat]:
        """As `read_range`, and what the object was when it was read."""
        import obstore

        options: Any = {"range": (start, stop)}
        if tag is not None and tag.e_tag is not None:
            options["if_match"] = tag.e_tag
        with reaching(str(self)):
            found = obstore.get(self._store, self.key, options=options)
            return memoryview(found.bytes()), _stat(found.meta)

    def read_end(self, count: int) -> tuple[memoryview, ObjectStat]:
        """The last ``count`` bytes, or all of fewer, and what the object was then."""
        import obstore

        if self.bucket.startswith("abfs"):  # Azure knows no range from the end
            status = self.stat()
            start = max(0, status.st_size - count)
            return self.read_range(start, status.st_size, tag=status.tag), status
        options: Any = {"range": {"suffix": count}}
        with reaching(str(self)):
            found = obstore.get(self._store, self.key, options=options)
            return memoryview(found.bytes()), _stat(found.meta)

    def signed_url(self, lasts: timedelta) -> str:
        """A URL by which anybody may read the object for so long. Raises ``OSError``: the store
        or its credentials sign none."""
        import obstore

        with reaching(str(self)):
            return str(obstore.sign(self._store, "GET", self.key, lasts))

    def open(self, mode: str = "rb") -> BinaryIO:
        """A reader that asks for ranges as it goes; it can seek.
        Raises ``ValueError``: another mode: objects are written whole."""
        if mode != "rb":
            raise ValueError("objects are opened for reading only")
        return io.BufferedReader(_Ranges(self), _RANGE)

    def write_bytes(self, data: bytes) -> Tag:
        """Write the object, in the place of any that is there. Returns its tag."""
        return self._put(data, "overwrite")

    def upload(self, file: Path) -> None:
        """Write the object from a file of the disk, in parts if it is large."""
        import obstore

        with reaching(str(self)):
            obstore.put(self._store, self.key, file)

    @contextmanager
    def writer(self) -> Iterator[Callable[[bytes | memoryview], object]]:
        """What takes the object's bytes, piece by piece, and sends them in parts.
        There is no object unless the context ends without an exception."""
        import obstore

        with reaching(str(self)):
            sink = obstore.open_writer(self._store, self.key, buffer_size=_PART)
            yield sink.write
            sink.close()

    def create(self, data: bytes) -> Tag:
        """Write the object. Returns its tag. Raises ``FileExistsError``: one is there."""
        return self._put(data, "create")

    def swap(self, data: bytes, tag: Tag) -> Tag:
        """Write the object in the place of the version with this tag. Returns the new one's.
        Raises ``Replaced``: the object has a newer version, or is gone."""
        try:
            known = {"e_tag": tag.e_tag, "version": tag.version}
            return self._put(data, {name: each for name, each in known.items() if each})
        except FileNotFoundError:
            raise Replaced(0, "another process has deleted the object", str(self)) from None

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object."""
        if not missing_ok:
            self.stat()
        with reaching(str(self)):
            try:
                self._store.delete(self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def touch(self) -> None:
        """An empty object, if none is there."""
        try:
            self.create(b"")
        except FileExistsError:
            return

    def _put(self, data: bytes, mode: Any) -> Tag:
        import obstore

        with reaching(str(self)):
            # One request: what is conditional cannot be sent in parts.
            done = obstore.put(self._store, self.key, data, mode=mode, use_multipart=False)
        return Tag(done["e_tag"], done["version"])

    @property
    def _store(self) -> Any:
        return _opened(self.bucket)


@lru_cache(maxsize=64)
def _opened(bucket: str) -> Any:
    """One store for all paths of a process, which keeps its connections."""
    return bucket_store(bucket)


class ObjectReader(io.RawIOBase):
    """One object as a file that can seek; `read_at` says where its bytes come from."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._position = 0

    def read_at(self, start: int, stop: int) -> memoryview:
        """Bytes from ``start`` on, at least one and none from ``stop`` on."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, self.size)[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self.size)
        if stop <= self._position:
            return 0
        data = self.read_at(self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Ranges(ObjectReader):
    """An object up to its present size, by a request for each range. A log may grow meanwhile."""

    def __init__(self, path: BucketPath) -> None:
        super().__init__(path.stat().st_size)
        self._path = path

    def read_at(self, start: int, stop: int) -> memoryview:
        return self._path.read_range(start, min(stop, start + _MOST))


def _stat(meta: Any) -> ObjectStat:
    return ObjectStat(meta["size"], Tag(meta["e_tag"], meta.get("version")), meta["last_modified"])
