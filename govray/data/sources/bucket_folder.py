"""The objects below a URL of an object store, as objects of a source.

Every response carries the e-tag of the object that it was read from. Each is compared with the
listing, so an object that is replaced meanwhile is noticed at the next request. Objects are read in
ranges; a range doubles while reading goes straight on, up to ``_MOST``. That bounds the memory.

Credentials come from the environment, in the variables of the store's own tools, or from the
machine's or pod's role. Profiles of the AWS command line are not read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from govray.data.sources.stamp import Stamp, changed
from govray.errors import GovrayError, InfrastructureFailed, UsageError
from govray.storage.bucket import asks_roles, bucket_store
from govray.storage.storage_url import check_url

if TYPE_CHECKING:
    from obstore import ObjectMeta

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
    """What lies below a URL; an object's name is its key without ``prefix``.

    Attributes:
        url: The bucket's or container's, with its options.
        prefix: Of the keys; empty, or with a slash at its end.
    """

    url: str
    prefix: str
    _shown: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shown", f"{self.url.partition('?')[0]}/{self.prefix}")

    def where(self, name: str) -> str:
        """How errors name an object."""
        return self._shown + name

    def list(self) -> dict[str, Stamp]:
        """Every object below, in order of names, without those that are hidden.
        Markers that consoles store as folders are no objects."""
        with _reaching(self._shown):
            listed = (meta for page in self._store.list(self.prefix or None) for meta in page)
            found = {meta["path"][len(self.prefix) :]: _stamp(meta) for meta in listed}
        hidden = re.compile(r"(^|/)\.")
        folders = {name.rpartition("/")[0] for name in found}
        return {
            name: stamp
            for name, stamp in sorted(found.items())
            if name and not hidden.search(name) and (stamp.size or name not in folders)
        }

    def stamp(self, name: str) -> Stamp:
        """What an object is now. Raises ``FileNotFoundError`` if it or the bucket is gone."""
        with _reaching(self.where(name)):
            return _stamp(obstore.head(self._store, self.prefix + name))

    def open(self, name: str, stamp: Stamp) -> pa.NativeFile:
        """An object's bytes. Reads raise what `Ranges` says."""
        return pa.PythonFile(Ranges(self, name, stamp), mode="r")

    def read(self, name: str, start: int, stop: int) -> tuple[memoryview, Stamp]:
        """A range of an object, and what the object was when it was read."""
        with _reaching(self.where(name)):
            options: Any = {"range": (start, stop)}
            found = obstore.get(self._store, self.prefix + name, options=options)
            return memoryview(found.bytes()), _stamp(found.meta)

    @cached_property
    def _store(self) -> Any:
        with _reaching(self.url.partition("?")[0]):
            return bucket_store(self.url)


class Ranges(io.RawIOBase):
    """One object, read by ranges, each from the object that was listed.

    Raises, when it reads:
        UsageError: The object has changed or is gone.
        InfrastructureFailed: The store does not answer.
    """

    def __init__(self, folder: BucketFolder, name: str, stamp: Stamp) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp
        self._position = self._start = 0
        self._held = memoryview(b"")
        self._next = _LEAST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, self._stamp.size)[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, or what is left of the object: pyarrow takes less for the end."""
        view = memoryview(buffer).cast("B")[: max(0, self._stamp.size - self._position)]
        done = 0
        while done < len(view):
            if not 0 <= self._position - self._start < len(self._held):
                self._fetch(len(view) - done)
            at = self._position - self._start
            piece = self._held[at : at + len(view) - done]
            view[done : done + len(piece)] = piece
            self._position += len(piece)
            done += len(piece)
        return done

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
        check_url(url)
    except ValueError as error:
        raise UsageError(str(error), where="SRC", do="See docs/corpora.md.") from None
    parts = urlsplit(url)
    bucket = f"{parts.scheme}://{parts.netloc}{'?' if parts.query else ''}{parts.query}"
    key = parts.path.strip("/")
    below = BucketFolder(bucket, key and f"{key}/")
    if not key or parts.path.endswith("/"):
        return below, None
    above, _, name = key.rpartition("/")
    folder = BucketFolder(bucket, above and f"{above}/")
    try:
        size = folder.stamp(name).size
    except FileNotFoundError:
        return below, None
    # A console's marker of a folder is an empty object.
    return (folder, name) if size or not below.list() else (below, None)


def _stamp(meta: ObjectMeta) -> Stamp:
    tag = (meta["e_tag"] or "").strip('"')  # Azure lists e-tags without their quotes
    return Stamp(meta["size"], tag or str(meta["last_modified"]))


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    """Turn a store's errors into one that names the place. ``FileNotFoundError`` passes."""
    try:
        yield
    except (GovrayError, FileNotFoundError):
        raise
    except (BaseError, OSError, ValueError) as error:
        # The first line names the request. Signed URLs hold a secret behind the question mark.
        text = re.sub(r"\?\S*", "", str(error).partition("\n")[0])
        variables = _CREDENTIALS[where.partition(":")[0]]
        credentials = f"Set {variables}, or run where a role gives them."
        if asks_roles(text):
            what = "no credentials for the store were found"
            raise UsageError(what, where=where, do=credentials) from error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            what = "the store refuses these credentials"
            raise UsageError(
                what, where=where, do=f"Ask for the right to read. {credentials}"
            ) from error
        if "empty path segment" in text:
            what = "a key below it has an empty name between two slashes, so it can't be listed"
            raise UsageError(
                f"{what}: {text}", where=where, do="Rename that object, or name a folder beside it."
            ) from error
        if "status code: 404" in text:
            what = "no such bucket"
            raise UsageError(
                what, where=where, do="Check its name, region and endpoint."
            ) from error
        raise InfrastructureFailed(
            f"the storage failed: {text}",
            where=where,
            do="Check the network, region and endpoint, then run the command again.",
        ) from error
