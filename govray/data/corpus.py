"""Corpora: a folder of records in Merkle order, and the credential beside them.

A corpus is ``<corpora>/<name>/`` with ``records-00000.parquet …`` (columns ``name: string``,
``content: binary``), ``records.secret`` and ``credential.dsse.json``. The Merkle order is part
number, then row; the leaves are commitments to the records' contents, made with the secret
(``governance/policy/record_commitment.py``). Without a secret they are the raw SHA-256 hashes of
the contents.

Invariants

* **All or nothing.** A corpus is written under a temporary name and renamed into place, so a
  folder with a corpus's name is complete. An existing corpus is never overwritten.
* **One order.** Records are sorted by name (code points), so equal sources and secrets give equal
  roots.
* **The secret stays here**, readable by its owner only. Its holder can test guesses. Below a
  bucket, who may read the records may read the secret, which tells nothing more of them.
* **Parts are bounded**, since a part is the unit of parallel work and of memory.
* **Reading is strict.** Parts without a gap, these two columns, no nulls, at least one record
  in each part: anything else is an error that names the file.

Corpora are built on a disk. They are read there or below a bucket, where they were copied to.

Names are for people: the credential binds contents and their order, not names.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from govray.data.prepared.object_ranges import at_once
from govray.errors import GovrayError, Malformed, Refused, UsageError
from govray.governance.formats import merkle
from govray.governance.formats.document import NAME
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Credential, Period, Records, verify_credential
from govray.governance.policy.record_commitment import SECRET_BYTES, SECRET_FILE
from govray.governance.trust import license as spdx
from govray.governance.trust.license import LicenseCategory, Use
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.atomic_file import write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder

CREDENTIAL_FILE = "credential.dsse.json"
SCHEMA = pa.schema([("name", pa.string()), ("content", pa.binary())])
PART_BYTES = 32 * 1024 * 1024  # content per part; a larger record has a part of its own

MAX_RECORD_BYTES = (1 << 31) - 1  # Arrow's binary type counts bytes in int32


@dataclass(frozen=True)
class Built:
    """A corpus as it now lies on disk.

    ``root`` is the Merkle root (``sha256:<hex>``), ``count`` the number of records, ``bytes`` the
    sum of their lengths. ``commitment`` says which secret the leaves are made with.
    """

    folder: Path
    name: str
    root: str
    count: int
    bytes: int
    commitment: str

    @property
    def records(self) -> Records:
        return Records(root=self.root, count=self.count, commitment=self.commitment)


def build(
    folder: Path, name: str, records: Iterable[tuple[str, bytes]], *, secret: bytes | None = None
) -> Built:
    """Write the corpus ``folder/name`` from (record name, content) pairs in ascending order.

    Reads the records once and holds one part in memory. Whatever fails, ``folder/name`` does not
    exist afterwards.

    Args:
        secret: 32 random bytes to commit to the records with; by default new ones.

    Raises:
        UsageError: The corpus name is bad or taken. There are no records, they are out of order, or
            a name is repeated or not Unicode. A source is unreadable, or the disk is full.
    """
    check_name(name)
    target = folder / name
    check_vacant(target)
    with disk_errors(target), staged_folder(target) as staged:
        parts = PartsWriter(staged, name, secret or new_secret())
        for record in records:
            parts.add(*record)
        if not parts.count:
            raise UsageError(
                "no records, so there is nothing to sign",
                where=name,
                do="Give at least one file or record.",
            )
        parts.flush()
    return parts.built(target)


def new_secret() -> bytes:
    """A corpus's secret: 32 bytes of the system's randomness."""
    return secrets.token_bytes(SECRET_BYTES)


class Leaves:
    """Takes leaves as `merkle.RunningRoot` does, and keeps their hashes, 32 bytes each."""

    def __init__(self) -> None:
        self.hashes = bytearray()

    @property
    def count(self) -> int:
        return len(self.hashes) // 32

    def add_hash(self, node: bytes) -> None:
        self.hashes += node


class PartsWriter:
    """Writes the parts of one corpus into a folder, one part in memory; the secret at once.

    ``count`` records came so far; ``pending`` bytes of them are not yet written. ``files`` are the
    parts so far.

    With ``leaves`` it writes some parts of a corpus that another process puts together. That one
    has the secret's file and the root.
    """

    def __init__(
        self, folder: Path, corpus: str, secret: bytes, *, leaves: Leaves | None = None
    ) -> None:
        self._folder, self._corpus, self._secret = folder, corpus, secret
        if leaves is None:
            write_whole(folder / SECRET_FILE, secret, mode=0o600)
        self._root = merkle.RunningRoot() if leaves is None else leaves
        self.files: list[Path] = []
        self._names: list[str] = []
        self._contents: list[bytes] = []
        self._first: str | None = None
        self._previous: str | None = None
        self._bytes = self.pending = 0

    @property
    def count(self) -> int:
        return self._root.count

    def add(self, name: str, content: bytes) -> None:
        """Take the next record, by name."""
        _check_record(self._corpus, self._previous, name, content)
        if self.pending + len(content) > PART_BYTES:
            self.flush()
        record = hashlib.sha256(content).digest()
        self._root.add_hash(record_commitment.entry(record, self._secret))
        self._names.append(name)
        self._contents.append(content)
        self._first = name if self._first is None else self._first
        self._previous = name
        self.pending += len(content)
        self._bytes += len(content)

    def flush(self) -> None:
        """Write what is pending as a part; the last call completes the corpus."""
        if not self._names:
            return
        table = pa.table([self._names, self._contents], schema=SCHEMA)
        pq.write_table(table, self._following(), compression="zstd")
        self._names, self._contents = [], []
        self.pending = 0

    def adopt(self, parts: PartsWriter) -> None:
        """Take the parts of a writer with ``leaves``, behind those that are there; they are moved.
        Raises ``UsageError``: their records do not come behind."""
        assert isinstance(parts._root, Leaves)
        _check_record(self._corpus, self._previous, parts._first or "", b"")
        for file in parts.files:
            file.rename(self._following())
        hashes = bytes(parts._root.hashes)
        for start in range(0, len(hashes), 32):
            self._root.add_hash(hashes[start : start + 32])
        self._previous = parts._previous
        self._bytes += parts._bytes

    def _following(self) -> Path:
        """The next part's file."""
        self.files.append(self._folder / f"records-{len(self.files):05}.parquet")
        return self.files[-1]

    def built(self, folder: Path) -> Built:
        assert isinstance(self._root, merkle.RunningRoot)
        root = "sha256:" + self._root.root().hex()
        commitment = record_commitment.commitment(self._secret)
        return Built(folder, self._corpus, root, self.count, self._bytes, commitment)


def unsigned_credential(
    built: Built,
    *,
    license: str,
    issuer: str,
    valid: Period,
    license_category: LicenseCategory | None = None,
    use: Use | None = None,
    jurisdiction: str = "ZZ",
    sensitivity: str = "restricted",
    **facts: Any,
) -> Credential:
    """The credential of a corpus that was just built, ready to be checked and signed.

    Args:
        license: SPDX expression, in any spelling.
        license_category, use: What the licence leaves open (``LicenseRef-…``); derived from it
            by default.
        jurisdiction: ISO 3166-1 alpha-2, ``ZZ`` where none is known.
        sensitivity: Of the most sensitive record; as `govray corpus build` has it by default.
        facts: The optional fields of ``Credential``, such as ``description``.

    Raises:
        UsageError: the category does not follow from the licence and is not given.
    """
    category = license_category or spdx.category(license)
    if category is None:
        raise UsageError(
            f"the licence category does not follow from {license!r}",
            where=built.name,
            do=f"Say --license-category: {', '.join(spdx.LICENSE_CATEGORIES)}.",
        )
    fields = {
        "schema_version": "v1",
        "corpus": built.name,
        "license": spdx.normalise(license),
        "license_category": category,
        "use": use or spdx.use(license),
        "jurisdiction": jurisdiction,
        "sensitivity": sensitivity,
        "valid": valid.model_dump(mode="json", exclude_none=True),
        "issuer": issuer,
        "records": built.records.to_json(),
    }
    return Credential.from_source(fields | facts, where=f"credential of corpus {built.name!r}")


def read_file(path: Place) -> bytes:
    """The file's bytes. Raises ``UsageError`` naming it if it cannot be read."""
    with disk_errors(path):
        return path.read_bytes()


def list_corpora(folder: Place) -> tuple[str, ...]:
    """The names of the corpora in ``folder``, sorted.

    Raises:
        UsageError: ``folder`` is not a folder, holds no corpus, or holds a folder whose name is
            no corpus name. Hidden entries and plain files are not corpora.
    """
    with disk_errors(folder):
        if not folder.is_dir():
            raise UsageError("not a folder of corpora", where=str(folder), do="Check the path.")
        found = [each for each in folder.iterdir() if not each.name.startswith(".")]
        folders = at_once(lambda each: each.is_dir(), found)
        names = sorted(each.name for each, folder in zip(found, folders, strict=True) if folder)
    if not names:
        raise UsageError(
            "no corpora in the folder",
            where=str(folder),
            do="Make one with: govray corpus build SOURCE.",
        )
    for name in names:
        check_name(name)
    return tuple(names)


def check_name(name: str) -> None:
    """Raises ``UsageError`` unless ``name`` is a corpus name."""
    if not re.fullmatch(NAME, name):
        raise UsageError(
            "not a corpus name",
            where=repr(name),
            do="Use up to 128 letters, digits, '.', '_' and '-', the first a letter or a digit.",
        )


def check_vacant(target: Path) -> None:
    """Raises ``UsageError`` if something is where a corpus is to be."""
    if target.exists():
        raise UsageError(
            "the corpus already exists",
            where=str(target),
            do="Remove it first, or choose another name: a corpus is never overwritten.",
        )


def part_files(folder: Place) -> tuple[Place, ...]:
    """The corpus's records files in order."""
    with disk_errors(folder):
        found = {p.name: p for p in folder.glob("records-*.parquet")}
    names = [f"records-{k:05}.parquet" for k in range(len(found))]
    if not found:
        raise Malformed("a corpus without records", where=str(folder), do="Build it anew.")
    for name in names:
        if name not in found:
            raise Malformed(
                f"{name} is missing from the {len(found)} records files",
                where=str(folder),
                do="Build the corpus anew.",
            )
    return tuple(found[name] for name in names)


def read_part(path: Place) -> Sequence[memoryview]:
    """The contents of one records file, in order, without copying."""
    contents: list[memoryview] = []
    for chunk in _read_column(path, "content").chunks:
        _, offsets, data = chunk.buffers()
        bounds = memoryview(offsets).cast("i")[chunk.offset : chunk.offset + len(chunk) + 1]
        view = memoryview(data if data is not None else b"")
        contents += [view[a:b] for a, b in pairwise(bounds)]
    return contents


def record_name(path: Place, number: int) -> str:
    """The name of a record of one records file, by its place. Raises as `read_part`.
    The file's author chose the names, and Parquet does not say that they are UTF-8."""
    return _read_column(path, "name")[number].as_buffer().to_pybytes().decode(errors="replace")


def record_hashes(folder: Place) -> Iterator[bytes]:
    """The SHA-256 of every record of a corpus, in Merkle order."""
    return (hashlib.sha256(r).digest() for p in part_files(folder) for r in read_part(p))


def verify_corpus(folder: Place, records: Records) -> None:
    """Recompute every record's leaf and the Merkle root, and compare with what was signed.
    Raises ``Refused``: the secret is missing or another one; or as ``check_records``."""
    secret = record_commitment.read_secret(folder, records.commitment)
    entries = [record_commitment.entry(each, secret) for each in record_hashes(folder)]
    check_records(folder, entries, records)


def check_records(folder: Place, entries: Sequence[bytes], records: Records) -> None:
    """Compare a manifest's entries with the count, then with the Merkle root, that were signed.

    Raises:
        Refused: names the first that differs. A root alone cannot say which record it was.
    """
    # The count is cheap, and a wrong one says more than a wrong root.
    _check_count(folder, len(entries), records)
    found = record_commitment.root(entries)
    check_root(folder, len(entries), found, records)


def check_root(folder: Place, count: int, root: str, records: Records) -> None:
    """The same of records whose count and root are known. Raises as `check_records`."""
    _check_count(folder, count, records)
    if root != records.root:
        raise Refused(
            f"the records' Merkle root is {root}, the credential was signed for {records.root}: "
            "a record was changed or moved",
            where=str(folder),
            do=_RESTORE_SIGNED,
        )


def _check_count(folder: Place, count: int, records: Records) -> None:
    if count != records.count:
        raise Refused(
            f"{count} records, the credential was signed for {records.count}",
            where=str(folder),
            do=_RESTORE_SIGNED,
        )


_RESTORE_SIGNED = "Restore the records that were signed, or have the supplier sign these."


def _check_record(corpus: str, previous: str | None, name: str, content: bytes) -> None:
    what = do = None
    if previous is not None and name <= previous:
        what, do = f"the record comes after {previous!r}", "Sort by name."
        if name == previous:
            what, do = "two records have this name", "Rename one."
    elif not name or (not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name)):
        what, do = "not a Unicode name", "Rename the file."
    elif len(content) > MAX_RECORD_BYTES:
        what, do = "the record exceeds 2 GiB", "Split it."
    if what:
        raise UsageError(what, where=f"{corpus}: {name!r}", do=do)


def _read_column(path: Place, name: str) -> pa.ChunkedArray:
    with disk_errors(path):
        # A part is bounded, so an object is read whole: in one request, so at one time.
        data = path.read_bytes() if isinstance(path, BucketPath) else None
    try:
        file = pq.ParquetFile(path if data is None else pa.BufferReader(data), memory_map=True)
        schema = file.schema_arrow
        table = file.read([name], use_threads=False) if name in schema.names else None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Malformed(
            f"not a readable Parquet file ({first_line(error)})",
            where=str(path),
            do="Restore the file, or build the corpus anew.",
        ) from error
    if table is None or schema.names != SCHEMA.names or schema.types != SCHEMA.types:
        raise Malformed(
            "the columns are not name: string and content: binary",
            where=str(path),
            do="Build the corpus with: govray corpus build.",
        )
    column = table.column(name)
    if not len(column):
        raise Malformed("a records file without records", where=str(path), do="Remove the file.")
    if column.null_count:
        raise Malformed("a record is null", where=str(path), do="Build the corpus anew.")
    return column


@contextmanager
def disk_errors(where: Place | str) -> Iterator[None]:
    """Turn the disk's errors into one that names the file and says what the system said."""
    try:
        yield
    except GovrayError:
        raise
    except (OSError, pa.ArrowException) as error:
        path = getattr(error, "filename", None) or where
        url = isinstance(where, BucketPath)
        raise UsageError(
            first_line(error),
            where=str(path),
            do="Check the URL, the credentials for its store and the network."
            if url
            else "Check the path, its permissions and the disk.",
        ) from error


def first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__


def read_credentials(corpora: Place) -> dict[str, bytes]:
    """The envelope of every corpus's credential in a folder, by corpus name; not yet verified.
    Raises ``Refused``: a corpus without a credential."""
    names = list_corpora(corpora)
    return dict(zip(names, at_once(_envelope, [corpora / name for name in names]), strict=True))


def _envelope(corpus: Place) -> bytes:
    path = corpus / CREDENTIAL_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(
            f"no readable credential, so no licence is known ({error.strerror})",
            where=str(path),
            do="Have the corpus's authority sign one, or move the corpus elsewhere.",
        ) from error


def verify_credentials(
    corpora: Place, envelopes: Mapping[str, bytes], trust: TrustState, *, at: datetime
) -> dict[str, Verified[Credential]]:
    """The verified credential of every corpus, by corpus name."""
    verified: dict[str, Verified[Credential]] = {}
    for name, data in envelopes.items():
        where = str(corpora / name / CREDENTIAL_FILE)
        try:
            credential = verify_credential(trust, data, at=at)
        except Refused as error:  # the file says more than the kind of document
            raise type(error)(error.what, where=where, do=error.do) from error
        if credential.document.corpus != name:
            raise Refused(
                f"the credential is for corpus {credential.document.corpus!r}",
                where=where,
                do="Name the corpus's folder after the corpus.",
            )
        verified[name] = credential
    return verified
