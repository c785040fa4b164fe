"""Overlap: which records stand in two corpora, byte for byte or nearly.

A record in two corpora trains under both credentials. Nothing here decides which of them is right,
and no record is left out.

Equal records have one SHA-256, so their numbers are exact. A near record has a passage
(``near_copies.py``) that is similar to one of the other corpus. Their Jaccard similarity is at
least ``least``, as MinHash estimates it. A passage is compared with at most `MOST` of those that
agree with it in a band. So text that stands everywhere costs no more than that.

Memory: 33 bytes a record, and 520 bytes a passage of two corpora at a time.

Source: Broder 1997, "On the resemblance and containment of documents".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from govray.data.near_copies import BANDS, PERMUTATIONS, PassageIndex

MOST = 16
_AT_ONCE = 1 << 14  # passages compared together

Digests = npt.NDArray[np.bytes_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Overlap:
    """What two corpora share.

    Attributes:
        first, second: Their names.
        equal: Records of each whose bytes are also a record of the other.
        near: Further records of each that are nearly in the other.
    """

    first: str
    second: str
    equal: tuple[int, int]
    near: tuple[int, int]


def digests(hashes: Iterable[bytes]) -> Digests:
    """SHA-256 hashes of 32 bytes each as an array ``[n]``."""
    # The last byte is never 0, which numpy would cut off.
    return np.array([each + b"\x01" for each in hashes], dtype="S33")


def equal_records(first: Digests, second: Digests) -> Places:
    """The places in ``first`` of what is also in ``second``, ascending."""
    return np.flatnonzero(np.isin(first, second))


def near_records(first: PassageIndex, second: PassageIndex, *, least: float) -> Places:
    """The records of ``first`` of which a passage is nearly one of ``second``, ascending.

    Args:
        first, second: Passages, with signatures ``[passages, PERMUTATIONS]``.
        least: Smallest estimated Jaccard similarity, in (0, 1].
    """
    found = np.zeros(len(first.owners), dtype=bool)
    for band in range(BANDS):
        sorted_keys, order = _sorted(_keys(second, band))
        keys = _keys(first, band)
        starts = np.searchsorted(sorted_keys, keys, side="left")
        counts = np.minimum(np.searchsorted(sorted_keys, keys, side="right") - starts, MOST)
        for place in range(int(counts.max(initial=0))):
            asked = np.flatnonzero((counts > place) & ~found)
            for some in np.split(asked, range(_AT_ONCE, asked.size, _AT_ONCE)):
                others = order[starts[some] + place]
                equal = first.signatures[some] == second.signatures[others]
                found[some] = equal.mean(axis=1) >= least
    return np.unique(first.owners[found])


def overlaps(
    records: Mapping[str, Digests],
    passages: Mapping[str, PassageIndex] | None = None,
    *,
    least: float = 0.8,
) -> list[Overlap]:
    """The pairs of corpora that share records, by name.

    Args:
        records: Corpus → what `digests` makes of its records' hashes, in Merkle order.
        passages: Corpus → its passages; None looks for equal records only.
        least: As for `near_records`.
    """
    found = []
    for first, second in combinations(sorted(records), 2):
        equal = (
            equal_records(records[first], records[second]),
            equal_records(records[second], records[first]),
        )
        near: Sequence[Places] = ()
        if passages is not None:
            one, other = passages[first], passages[second]
            near = (
                np.setdiff1d(near_records(one, other, least=least), equal[0]),
                np.setdiff1d(near_records(other, one, least=least), equal[1]),
            )
        if any(each.size for each in (*equal, *near)):
            counts = (near[0].size, near[1].size) if near else (0, 0)
            found.append(Overlap(first, second, (equal[0].size, equal[1].size), counts))
    return found


def _keys(index: PassageIndex, band: int) -> npt.NDArray[np.uint64]:
    """A number for the band of each passage; other bands may have it too, which costs time only."""
    width = PERMUTATIONS // BANDS
    columns: npt.NDArray[Any] = index.signatures[:, band * width : (band + 1) * width]
    keys = np.zeros(len(columns), dtype=np.uint64)
    for column in columns.T:
        keys = (keys ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _sorted(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Places]:
    order = np.argsort(keys, kind="stable")
    return keys[order], order
