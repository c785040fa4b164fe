"""Near families: which records of one corpus are copies of one text, or nearly.

A reserve says what a model knows of texts that it never read. So no copy of a text that trains may
lie in it. Records are therefore put into families before the reserve is drawn, and a family lies on
one side (``NearFamilies`` in ``record/prepare_manifest.py``).

Two records are near if half of their shingles (``similarity/minhash.py``) are common, as MinHash
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

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from govray.data.corpus import read_part
from govray.data.packing import Item, PartFamilies, PartWork, Progress, run_work
from govray.data.similarity.minhash import LEAST, SEED, SHINGLE, shingles, words
from govray.errors import GovrayError, UsageError
from govray.governance.policy import record_commitment
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


@dataclass(frozen=True)
class _Signed:
    """What a task found in a part: its records' entries, 32 bytes each, and bands."""

    entries: bytes
    bands: bytes

    @property
    def records(self) -> int:
        return len(self.entries) // 32


class _Signing(PartWork):
    """A task makes a part's bands; the driver joins those of a corpus. Both lie in a temporary
    folder of the driver meanwhile, 160 bytes a record."""

    def work(self, item: Item) -> _Signed:
        secret = record_commitment.read_secret(item.source.parent, item.commitment)
        contents = read_part(item.source)
        entries = [
            record_commitment.entry(hashlib.sha256(content).digest(), secret)
            for content in contents
        ]
        return _Signed(b"".join(entries), bands(contents).tobytes())

    def failed(self, item: Item, error: Exception) -> GovrayError:
        return UsageError(
            f"cannot read a corpus ({getattr(error, 'strerror', None) or error})",
            where=str(item.source),
            do="Check the file, its permissions and the disk.",
        )


def with_families(
    items: Mapping[str, Sequence[Item]], total: int, progress: Progress
) -> dict[str, tuple[Item, ...]]:
    """The same parts, and of each the families that its records are in. Needs Ray.

    Args:
        items: Corpus → its parts, in order.
        progress: Called with (records done, ``total``).
    """
    done = 0
    progress(done, total)
    sizes: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory(prefix="govray-families-") as name:
        folder = Path(name)

        def on_part(item: Item, signed: _Signed) -> None:
            nonlocal done
            path = _file(folder, item)
            path.with_suffix(".entries").write_bytes(signed.entries)
            path.with_suffix(".bands").write_bytes(signed.bands)
            sizes[item.corpus, item.part] = signed.records
            done += signed.records
            progress(done, total)

        run_work(_Signing(), [item for parts in items.values() for item in parts], on_part)
        return {
            corpus: _of_corpus(folder, parts, [sizes[corpus, item.part] for item in parts])
            for corpus, parts in items.items()
        }


def _of_corpus(folder: Path, parts: Sequence[Item], sizes: Sequence[int]) -> tuple[Item, ...]:
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    if not total:
        return tuple(replace(item, families=PartFamilies()) for item in parts)
    entries = np.memmap(folder / "entries", np.uint8, "w+", shape=(total, 32))
    own_bands = np.memmap(folder / "bands", np.uint64, "w+", shape=(BANDS, total))
    for item, start, size in zip(parts, starts, sizes, strict=False):
        at = slice(start, start + size)
        path = _file(folder, item)
        for array, suffix in ((entries[at], ".entries"), (own_bands[:, at], ".bands")):
            part = path.with_suffix(suffix)
            array[:] = np.frombuffer(part.read_bytes(), array.dtype).reshape(array.shape)
            part.unlink()
    last = families(own_bands)
    found = []
    for item, start, size in zip(parts, starts, sizes, strict=False):
        own = last[start : start + size]
        others = np.flatnonzero(own != np.arange(start, start + size))
        near = PartFamilies(others.tobytes(), entries[own[others]].tobytes())
        found.append(replace(item, families=near))
    return tuple(found)


def _file(folder: Path, item: Item) -> Path:
    """Where a part's records are kept, without suffix."""
    return folder / f"{hashlib.sha256(item.file.encode()).hexdigest()}"
