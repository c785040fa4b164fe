"""Near families: which records of one corpus are copies of one text, or nearly.

A reserve says what a model knows of texts that it never read. So no copy of a text that trains may
lie in it. Records are therefore put into families before the reserve is drawn, and a family lies on
one side (``NearFamilies`` in ``record/prepare_manifest.py``).

Two records are near if half of their shingles (``similarity/shingles.py``) are common, as MinHash
estimates it. A family is what is connected by near records. So its first and its last member may
have less in common. Records of fewer than `LEAST` shingles are near to equal ones only.

Invariants

* A family follows from its corpus's records alone: no other corpus changes it.
* Equal records are in one family.
* Time grows with the records: each is compared with two others for each of `BANDS` bands, at most.
* The driver holds 40 bytes a record of one corpus. Signatures lie on its disk, 128 bytes a record.

Only what is *not* found depends on chance. A pair whose shingles are .8 the same agrees in no band
in one of 4,000 cases, one of .6 in one of nine.

Source: Broder 1997, "On the resemblance and containment of documents"; the values are rensa's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from govray.data.similarity.minhash import SEED
from govray.data.similarity.shingles import LEAST, SHINGLE, shingles, words
from govray.governance.record.prepare_manifest import NearFamilies

VALUES = 64
BANDS = 16
SIMILAR = 0.5
"""Least estimated Jaccard similarity of near records."""

RULE = NearFamilies(
    method=f"rensa.RMinHash {RMinHash.ALGORITHM_VERSION}",
    shingle=SHINGLE,
    values=VALUES,
    bands=BANDS,
    seed=SEED,
    least_shingles=LEAST,
    similar=SIMILAR,
)
"""What a manifest says of it."""

_TOGETHER = 1 << 10  # records whose shingles are in memory
_AT_ONCE = 1 << 14  # pairs compared together

Bands = npt.NDArray[np.uint64]
"""``[BANDS, n]``: of each of n records, four MinHash values of 16 bits in each band. Zeros stand
for a record that has too few shingles."""

Places = npt.NDArray[np.int64]


def bands(contents: Sequence[bytes | memoryview]) -> Bands:
    """The bands ``[BANDS, n]`` of n records' contents."""
    made = np.zeros((len(contents), VALUES), np.uint16)
    for start in range(0, len(contents), _TOGETHER):
        found = map(shingles, map(words, contents[start : start + _TOGETHER]))
        # Sorted, so that nothing depends on the order of a set.
        sets = {start + k: sorted(each) for k, each in enumerate(found) if len(each) >= LEAST}
        if sets:
            values = RMinHash.digests_from_token_sets(list(sets.values()), VALUES, SEED)
            made[list(sets)] = np.array(values, np.uint32).astype(np.uint16)
    return np.ascontiguousarray(made.view(np.uint64).T)


def families(found: Bands) -> Places:
    """The last record of each record's family ``[n]``, by place.
    ``found``: the bands of a corpus's records in Merkle order, ``[BANDS, n]``; may lie on disk."""
    last = np.arange(found.shape[1])
    compared = np.zeros(len(last), np.bool_)
    whole = np.zeros(len(last), np.uint64)
    for keys in found:
        compared |= keys != 0
        whole = (whole ^ keys) * np.uint64(0x9E3779B97F4A7C15)
        whole ^= whole >> np.uint64(29)
    # First by all bands together: so equal records are one family whatever stands between them.
    for keys in (whole, *found):
        last = _joined(last, found, np.asarray(keys), compared)
    return last


def _joined(last: Places, found: Bands, keys: Bands, compared: npt.NDArray[np.bool_]) -> Places:
    """Join the families of near records that have the same key."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    same = (ranked[1:] == ranked[:-1]) & compared[order[1:]]
    begins = np.concatenate([[True], ranked[1:] != ranked[:-1]])[: len(order)]
    heads = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    later = order[1:][same]
    for others in (order[:-1][same], heads[1:][same]):
        apart = np.flatnonzero(last[later] != last[others])
        near = [
            some[_similar(found, later[some], others[some])]
            for some in np.array_split(apart, apart.size // _AT_ONCE + 1)
        ]
        pairs = np.concatenate(near)
        last = _merged(last, later[pairs], others[pairs])
    return last


def _similar(found: Bands, one: Places, other: Places) -> npt.NDArray[np.bool_]:
    """Whether each of some pairs is near, ``[pairs]``."""
    equal = (found[:, one] ^ found[:, other]).T.copy().view(np.uint16) == 0
    return np.asarray(equal.mean(axis=1) >= SIMILAR)


def _merged(last: Places, one: Places, other: Places) -> Places:
    """Families after each of some pairs became one family."""
    while one.size:
        first, second = last[one], last[other]
        if (first == second).all():
            break
        low, high = np.minimum(first, second), np.maximum(first, second)
        np.maximum.at(last, low, high)
        while ((jumped := last[last]) != last).any():
            last = jumped
    return last
