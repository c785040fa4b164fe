"""Record commitments: a corpus's Merkle leaves reveal nothing of its records.

A plain SHA-256 of a record can be compared with any guess. So a corpus has a secret of 32 bytes,
made when the corpus is built. For the secret s and a record's SHA-256 h::

    opening  o  =  HMAC-SHA-256(s, "record" || h)
    leaf        =  SHA-256(0x00 || o || h)              the leaf hash of RFC 9162 over o || h

The credential signs the Merkle root over the leaves, and ``HMAC-SHA-256(s, "corpus")``, by which
anyone who has a secret can tell whether it is this corpus's.

Invariants

* **Hiding**: whoever has leaves and a record, but not s or the record's opening, cannot tell
  whether the record is among them. HMAC under an unknown key is a pseudorandom function (Bellare
  2006).
* **Binding**: a leaf opens to one record, since SHA-256 is collision resistant.
* **One opening tells of one record**: others have other openings.
* Equal records of one corpus have equal leaves. Equal records of two corpora have different ones.

In a manifest an **entry** stands for a record: its leaf.

The secret lies beside the records, readable by its owner only. It goes into no model folder, no
prepared data and no log. Below a bucket it lies beside the records too. A store has no owners of
objects, and who may read the records has nothing to guess. So a rule that lets someone read the
credentials alone has to leave the secret out.

Source: HMAC: RFC 2104; the tree: RFC 9162, section 2.1.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from govray.errors import Refused, UsageError
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.bounds import Hex256
from govray.governance.formats.document import Count, Digest, Document, Name
from govray.governance.policy.credential import Records
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.private_file import OpenToOthers, read_private

SECRET_FILE = "records.secret"  # noqa: S105  a file's name
SECRET_BYTES = 32

_MOST_OPENING = 1 << 16  # bytes of an opening's file; a path has at most 63 hashes


def commitment(secret: bytes) -> str:
    """Which secret it is, ``sha256:<hex>``; tells nothing else of it."""
    return "sha256:" + hmac.digest(secret, b"corpus", "sha256").hex()


def opening(secret: bytes, record: bytes) -> bytes:
    """What opens the leaf of the record with this SHA-256: 32 bytes."""
    return hmac.digest(secret, b"record" + record, "sha256")


def leaf(opening: bytes, record: bytes) -> bytes:
    """The Merkle leaf's hash of the record with this opening and SHA-256."""
    return merkle.leaf_hash(opening + record)


def entry(record: bytes, secret: bytes) -> bytes:
    """What stands in a manifest for the record with this SHA-256."""
    return leaf(opening(secret, record), record)


def root(entries: Sequence[bytes]) -> str:
    """The Merkle root over a corpus's entries, ``sha256:<hex>``."""
    return "sha256:" + merkle.root_of(entries).hex()


def read_secret(folder: Place, stated: str) -> bytes:
    """The secret of the corpus in ``folder``.

    Args:
        stated: ``records.commitment`` of its verified credential.

    Raises:
        Refused: It is missing, of another corpus, or others can read it.
    """
    path = folder / SECRET_FILE
    try:
        if isinstance(path, BucketPath):  # whose rules for readers are the bucket's
            secret = path.read_bytes()
        else:
            secret = read_private(path, SECRET_BYTES + 1)
    except OpenToOthers as error:
        raise Refused(
            "the corpus's secret can be read by others", where=str(path), do=error.remedy
        ) from None
    except OSError as error:
        raise Refused(
            f"the corpus's secret cannot be read ({error.strerror})",
            where=str(path),
            do="Get it from whoever built the corpus: without it no record can be compared",
        ) from None
    if len(secret) != SECRET_BYTES or commitment(secret) != stated:
        raise Refused(
            "this is not the secret that the corpus's records are committed under",
            where=str(path),
            do="Put back the one that was delivered with this corpus",
        )
    return secret


def read_secrets(
    folder: Place | None, stated: Mapping[str, Records]
) -> tuple[dict[str, bytes], dict[str, Refused]]:
    """What opens the corpora that lie in ``folder``, and why the others of them stay closed.

    Args:
        folder: The folder of corpora; None if nobody knows where it is.
        stated: Corpus → what its verified credential states of its records.
    """
    found: dict[str, bytes] = {}
    refused: dict[str, Refused] = {}
    for name, records in sorted(stated.items()):
        if folder is None:
            continue
        try:
            if not (folder / name).is_dir():
                continue
            found[name] = read_secret(folder / name, records.commitment)
        except Refused as error:
            refused[name] = error
        except OSError as error:
            why = f"the corpus cannot be looked for ({error.strerror})"
            do = "Check the store, the credentials for it and the network"
            refused[name] = Refused(why, where=str(folder / name), do=do)
    return found, refused


class RecordOpening(Document):
    """What shows that one record is in a corpus, and tells of no other.

    Attributes:
        schema_version: Always ``v1``.
        root: Its Merkle root, as its credential states it.
        index: The record's place in Merkle order, from 0.
        record: The record's SHA-256.
        path: Inclusion proof of the leaf (RFC 9162, section 2.1.3).
    """

    schema_version: Literal["v1"] = "v1"
    corpus: Name
    root: Digest
    count: Count
    index: Count
    record: Hex256
    opening: Hex256
    path: Annotated[tuple[Hex256, ...], Field(max_length=63)]

    @classmethod
    def make(
        cls, corpus: str, secret: bytes, records: Sequence[bytes], index: int, stated: Records
    ) -> Self:
        """The opening of one record.

        Args:
            records: The SHA-256 of each record, in Merkle order.
            stated: What the credential states of them.

        Raises:
            Refused: They do not have the stated root.
        """
        leaves = [entry(each, secret) for each in records]
        path = merkle.inclusion_path(
            index, len(leaves), lambda start, stop: merkle.root_of(leaves[start:stop])
        )
        made = cls(
            corpus=corpus,
            root=stated.root,
            count=stated.count,
            index=index,
            record=records[index].hex(),
            opening=opening(secret, records[index]).hex(),
            path=tuple(each.hex() for each in path),
        )
        made.verify(stated, where=corpus)
        return made

    @property
    def leaf(self) -> bytes:
        """The leaf's hash that it opens."""
        return leaf(bytes.fromhex(self.opening), bytes.fromhex(self.record))

    def verify(self, stated: Records, *, where: str) -> None:
        """Return if the record is a leaf of the tree whose root the credential states.

        Args:
            stated: ``records`` of the corpus's verified credential.
            where: Names the opening in errors.

        Raises:
            Refused: The corpus differs, or the proof does not hold.
        """
        if (self.root, self.count) != (stated.root, stated.count):
            raise Refused(
                f"it opens a record of another version of {self.corpus!r}: root {self.root}, the "
                f"credential says {stated.root}",
                where=where,
                do="Make it from the corpus that the model was trained on",
            )
        if not self.index < self.count:
            raise Refused(f"{self.corpus} has no record {self.index}", where=where)
        try:
            merkle.verify_inclusion(
                self.leaf,
                self.index,
                self.count,
                [bytes.fromhex(each) for each in self.path],
                bytes.fromhex(stated.root.removeprefix("sha256:")),
            )
        except Refused as error:
            raise type(error)(error.what, where=where, do="Make the opening again") from None

    def encode(self) -> bytes:
        """The file's bytes: canonical JSON (RFC 8785)."""
        return canonical_json.encode(self.to_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The opening in a file.

        Raises:
            UsageError: The file cannot be read.
            Malformed: It is no opening.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_OPENING)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", where=str(path), do="Check the path."
            ) from None
        return cls.from_json(canonical_json.parse_canonical(data, where=str(path)), where=str(path))
