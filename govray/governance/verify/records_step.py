"""Step 7, second half: the records that the manifest is about, as far as they are at hand.

The depth of a verification says how much of them was read:

* ``summary``: none. Whether they are the credentials' records is the signer's word, and so are
  splits and packing. Only how many there are is compared.
* ``sample``: some parts, each compared with all that the manifest says of it.
* ``full``: all of them, and their Merkle roots are those of the credentials.

Parts are drawn by the attestation's digest, so everybody who samples as much checks the same ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from govray.errors import Refused, UsageError
from govray.governance.policy.credential import Credential
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PreparedRecords, ReadPart
from govray.governance.trust.trust_state import Verified

Depth: TypeAlias = Literal["summary", "sample", "full"]


@dataclass(frozen=True)
class CheckedRecords:
    """What was read of a manifest's records.
    ``records``: the records; None if they are not at hand."""

    depth: Depth
    records: PreparedRecords | None
    parts: tuple[int, int]

    def require(self) -> PreparedRecords:
        """The records, where they are at hand."""
        assert self.records is not None
        return self.records

    @property
    def detection(self) -> float:
        """Probability that a part whose records are not as stated is among those compared."""
        checked, of = self.parts
        return checked / of if of else 1.0


def check_prepared(
    manifest: Manifest,
    credentials: Mapping[str, Verified[Credential]],
    read: ReadPart | None,
    *,
    share: float | None,
    seed: str,
) -> CheckedRecords:
    """Compare the records with manifest and credentials.

    Args:
        read: Where records come from; None for a summary.
        share: Of the parts that are drawn, in (0, 1]; None for all.
        seed: Draws them.
    """
    parts = [(c.corpus, number) for c in manifest.corpora for number in range(len(c.parts))]
    if share is not None and (read is None or not 0 < share <= 1):
        raise UsageError(
            "a sample is a share in (0, 1] of records that are given",
            where="--sample",
            do="Name the prepared folder with --records, and a share such as 1e-4",
        )
    if read is None:
        return CheckedRecords("summary", None, (0, len(parts)))
    records = PreparedRecords(manifest, read)
    if share is not None and share < 1:
        drawn = _drawn(parts, share, seed)
        for corpus, number in drawn:
            records.check_part(corpus, number)
        return CheckedRecords("sample", records, (len(drawn), len(parts)))
    for corpus, credential in credentials.items():
        if records.check(corpus) != credential.document.records.root:
            raise Refused(
                "the manifest's records do not have the Merkle root of the credential",
                where=corpus,
            )
    return CheckedRecords("full", records, (len(parts), len(parts)))


def _drawn(parts: list[tuple[str, int]], share: float, seed: str) -> list[tuple[str, int]]:
    """At least one of the parts."""
    order = sorted(
        parts, key=lambda part: hashlib.sha256(f"{seed} {part[0]} {part[1]}".encode()).digest()
    )
    return sorted(order[: max(1, math.ceil(share * len(parts)))])
