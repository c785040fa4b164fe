"""Reading what the user named, and writing so that a crash leaves the old file or the new one.

Invariant: a path that `write` was given holds, at every moment, either what it
held before or all of the new bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from govray.errors import UsageError
from govray.storage import atomic_file
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.governance.formats.document import Document
    from govray.governance.formats.dsse import Envelope

D = TypeVar("D", bound="Document")

# Documents that verbs read whole: policies, envelopes, keys. Bundles have bounds of their own.
LIMIT = 64 * 1024 * 1024


def read(path: Path) -> bytes:
    """The bytes of the file ``path``, which must be at most 64 MiB."""
    if path.is_dir():
        raise UsageError("this is a folder", where=str(path), do="Name a file in it.")
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path), do="Check the path.") from None
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), do="Check the permissions."
        ) from None
    if len(data) > LIMIT:
        raise UsageError("larger than 64 MiB", where=str(path), do="Name a document.")
    return data


def read_signed(path: Path) -> bytes:
    """The bytes of a file that holds a signed document, as `read` gives them. Raises `UsageError`:
    as `read`; or it is the YAML that a document is made of, an opening or a view."""
    data = read(path)
    if data.startswith(b'{"corpus":') and b'"opening":' in data:
        raise UsageError(
            "this opens one record of a corpus, and is not signed",
            where=str(path),
            do="Check it: govray trace FILE --model MODEL --trust-root ROOT --opening OPENING",
        )
    if data.startswith(b'{"delegations":') and b'"leaves":' in data:
        raise UsageError(
            "this is a view",
            where=str(path),
            do="Check it: govray view verify VIEW --trust-root ROOT",
        )
    if path.suffix in (".yaml", ".yml") and not data.lstrip().startswith(b"{"):
        raise UsageError(
            "this is the source of a document, and not signed",
            where=str(path),
            do="Sign it: govray sign FILE --key KEY; then give the file that this writes.",
        )
    return data


def envelope(path: Path) -> Envelope:
    """The envelope in the file ``path``; nothing of it is verified."""
    from govray.governance.formats.dsse import Envelope

    return Envelope.parse(read(path), where=str(path))


def document(kind: type[D], path: Path) -> D:
    """What the envelope in the file ``path`` states; nothing of it is verified."""
    from govray.governance.formats.statement import read as read_statement

    return read_statement(kind, envelope(path), where=str(path)).document


def require_outside(path: Path, model: Place) -> None:
    """Refuse a place inside a model folder, whose attestation does not cover it."""
    if path.resolve().is_relative_to(Path(str(model)).resolve()):
        raise UsageError(
            "this lies inside the model folder, which would no longer verify",
            where=str(path),
            do="Name a place outside of it.",
        )


def read_text(path: Path) -> str:
    """The text of the file ``path``, which is UTF-8."""
    try:
        return read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 at byte {error.start}", where=str(path)) from None


def sha256(path: Path) -> str:
    """The SHA-256 of a record's file in hex, hashed as it is read, since a record may be large."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except IsADirectoryError:
        raise UsageError(
            "this is a folder", where=str(path), do="Name one file: a record is a file."
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), do="Check the path."
        ) from None


def make_folder(path: Path, *, mode: int = 0o755) -> None:
    try:
        atomic_file.make_folder(path, mode=mode)
    except OSError as error:
        raise UsageError(
            f"cannot be made: {error.strerror}", where=str(path), do="Name another folder."
        ) from None


def write(path: Path, data: bytes, *, mode: int = 0o644, replace: bool = True) -> None:
    """Put ``data`` at ``path``, whole or not at all, with permission bits ``mode``."""
    try:
        atomic_file.write_whole(path, data, mode=mode, replace=replace)
    except FileExistsError:
        raise UsageError("already exists", where=str(path), do="Choose another name.") from None
    except OSError as error:
        raise _not_written(path, error) from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets the name ``path`` once all of it is there."""
    from govray.storage.staged_folder import staged_folder

    # A dangling link counts as existing.
    if os.path.lexists(path):
        raise UsageError("already exists", where=str(path), do="Name a new folder.")
    try:
        with staged_folder(path) as staged:
            yield staged
    except OSError as error:
        raise UsageError(
            f"cannot be copied: {error.strerror}",
            where=str(path),
            do="Check the space and the permissions there.",
        ) from None


def stage(path: Path, data: bytes) -> Path:
    """Put ``data`` beside ``path``, on the disk; return the file, which a rename puts at ``path``.

    For a file that must not be lost once a later action has succeeded.

    Raises:
        UsageError: it cannot be written; nothing is left.
    """
    try:
        return atomic_file.stage_file(path, data, mode=0o644)
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot be written: {error.strerror}",
        where=str(path),
        do="Check that the folder exists and that you may write there.",
    )
