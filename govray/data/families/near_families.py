"""Near families: which records, of whatever corpus, are copies of one text, or nearly.

A reserve says what a model knows of texts that it never read. So no copy of a text that trains may
lie in it. Records are therefore put into families before the reserve is drawn, and a family lies on
one side (``NearFamilies`` in ``record/prepare_manifest.py``).

Two records are near if half of their shingles (``similarity/shingles.py``) are common, as MinHash
estimates it. A family is what is connected by near records. So its first and its last member may
have less in common. Records of fewer than `LEAST` shingles are near to those alone whose normalised
text, or else whose bytes, are equal.

Families reach across the corpora that are prepared together. Otherwise who hands in a copy of
another's corpus would hide what is learned of it: its reserve would train under his name.

Invariants:

* A family follows from the records of the corpora that are prepared together.
* Equal records are in one family.
* Time grows with the records: each is compared with two others for each of `BANDS` bands, at most.
* The driver holds the keys of `_BUCKET` records at a time. On its disk lie 192 bytes a record.

Only what is *not* found depends on chance. A pair whose shingles are .8 the same agrees in no band
in one of 4,000 cases, one of .6 in one of nine.

Source: Broder 1997, "On the resemblance and containment of documents"; the values are rensa's.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from govray.data.corpus import read_part
from govray.data.packing import Item, PartFamilies, PartWork, Progress, run_work
from govray.data.similarity.minhash import SEED
from govray.data.similarity.shingles import LEAST, decoded, normalised, shingles
from govray.errors import GovrayError, UsageError
from govray.governance.formats.text_form import TEXT_FORM
from govray.governance.policy import record_commitment
from govray.governance.record.prepare_manifest import NearFamilies

VALUES = 64
BANDS = 16
SIMILAR = 0.5
"""Least estimated Jaccard similarity of near records."""

RULE = NearFamilies(
    method=f"rensa.RMinHash {RMinHash.ALGORITHM_VERSION}",
    text=TEXT_FORM,
    values=VALUES,
    bands=BANDS,
    seed=SEED,
    least_shingles=LEAST,
    similar=SIMILAR,
)
"""What a manifest says of it."""

_TOGETHER = 1 << 10  # records whose shingles are in memory
_AT_ONCE = 1 << 14  # pairs compared together

_BUCKET = 1 << 22  # records whose keys are sorted together

Bands = npt.NDArray[np.uint64]
"""``[BANDS, n]``: of each of n records, four MinHash values of 16 bits in each band. A record that
has too few shingles has a hash of its text in their place."""

Places = npt.NDArray[np.int64]


def bands(contents: Sequence[bytes | memoryview]) -> Bands:
    """The bands ``[BANDS, n]`` of n records' contents."""
    made = np.zeros((len(contents), VALUES), np.uint16)
    for start in range(0, len(contents), _TOGETHER):
        some = contents[start : start + _TOGETHER]
        found = [frozenset(shingles(each)) for each in some]
        # Sorted, so that nothing depends on the order of a set.
        sets = {start + k: sorted(each) for k, each in enumerate(found) if len(each) >= LEAST}
        for k, each in enumerate(some):
            if start + k not in sets:
                digest = hashlib.sha512(_as_compared(each)).digest()
                made[start + k] = np.frombuffer(2 * digest, np.uint16)
        if sets:
            values = RMinHash.digests_from_token_sets(list(sets.values()), VALUES, SEED)
            made[list(sets)] = np.array(values, np.uint32).astype(np.uint16)
    return np.ascontiguousarray(made.view(np.uint64).T)


def _as_compared(content: bytes | memoryview) -> bytes | memoryview:
    """What a short record equals another by: its normalised text, or bytes that are no text."""
    try:
        return normalised(decoded(content, "strict")).encode()
    except UnicodeDecodeError:
        return content


def families(found: Bands, folder: Path) -> Places:
    """The last record of each record's family ``[n]``, by place.

    Args:
        found: The bands of all records, corpus after corpus in Merkle order, ``[BANDS, n]``; may
            lie on disk, as the result does.
        folder: Where keys are sorted into files meanwhile.
    """
    total = found.shape[1]
    last: Places = np.memmap(folder / "last", np.int64, "w+", shape=(total,))
    for at in _slices(total):
        last[at] = np.arange(at.start, at.stop)
    # First by all bands together: so equal records are one family whatever stands between them.
    for number in (None, *range(len(found))):
        for places, keys in _buckets(found, number, folder):
            _join(last, found, places, keys)
    for at in _slices(total):
        while ((jumped := last[last[at]]) != last[at]).any():
            last[at] = jumped
    return last


def _slices(total: int) -> Iterator[slice]:
    return (slice(at, min(at + _BUCKET, total)) for at in range(0, total, _BUCKET))


def _keys(found: Bands, number: int | None, at: slice) -> npt.NDArray[np.uint64]:
    """The keys of some records in a band, or of all bands together."""
    if number is not None:
        return np.asarray(found[number, at])
    whole = np.zeros(at.stop - at.start, np.uint64)
    for keys in found:
        whole = (whole ^ keys[at]) * np.uint64(0x9E3779B97F4A7C15)
        whole ^= whole >> np.uint64(29)
    return whole


def _buckets(
    found: Bands, number: int | None, folder: Path
) -> Iterator[tuple[Places, npt.NDArray[np.uint64]]]:
    """Places, ascending, and keys of all records. Those of equal keys come together."""
    slices = list(_slices(found.shape[1]))
    if len(slices) <= 1:
        for at in slices:
            yield np.arange(at.stop), _keys(found, number, at)
        return
    paths = [folder / f"bucket-{k}" for k in range(len(slices))]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for at in slices:
            keys = _keys(found, number, at)
            bucket = keys % np.uint64(len(paths))
            for k, file in enumerate(files):
                here = np.flatnonzero(bucket == k)
                pairs = np.stack([(here + at.start).astype(np.uint64), keys[here]], axis=1)
                file.write(pairs.tobytes())
    for path in paths:
        pairs = np.fromfile(path, np.uint64).reshape(-1, 2)
        path.unlink()
        yield pairs[:, 0].astype(np.int64), pairs[:, 1]


def _join(last: Places, found: Bands, places: Places, keys: npt.NDArray[np.uint64]) -> None:
    """Join the families of near records that have the same key."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    same = ranked[1:] == ranked[:-1]
    begins = np.concatenate([[True], ~same])[: len(order)]
    heads = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    later = places[order[1:][same]]
    for others in (places[order[:-1][same]], places[heads[1:][same]]):
        apart = np.flatnonzero(_roots(last, later) != _roots(last, others))
        near = [
            some[_similar(found, later[some], others[some])]
            for some in np.array_split(apart, apart.size // _AT_ONCE + 1)
        ]
        pairs = np.concatenate(near)
        _merge(last, later[pairs], others[pairs])


def _similar(found: Bands, one: Places, other: Places) -> npt.NDArray[np.bool_]:
    """Whether each of some pairs is near, ``[pairs]``."""
    equal = (found[:, one] ^ found[:, other]).T.copy().view(np.uint16) == 0
    return np.asarray(equal.mean(axis=1) >= SIMILAR)


def _roots(last: Places, places: Places) -> Places:
    """The last record of each one's family, as far as it is known; shortens the way there."""
    found = last[places]
    while ((further := last[found]) != found).any():
        found = further
    last[places] = found
    return found


def _merge(last: Places, one: Places, other: Places) -> None:
    """Make one family of each of some pairs."""
    while one.size:
        first, second = _roots(last, one), _roots(last, other)
        if (first == second).all():
            return
        low, high = np.minimum(first, second), np.maximum(first, second)
        np.maximum.at(last, low, high)


@dataclass(frozen=True)
class _Signed:
    """What a task found in a part: its records' entries, 32 bytes each, and bands."""

    entries: bytes
    bands: bytes

    @property
    def records(self) -> int:
        return len(self.entries) // 32


class _Signing(PartWork):
    """A task makes a part's bands; the driver joins those of all parts."""

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
        items: Corpus → its parts, both in order.
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
        return _joined(folder, items, sizes)


def _joined(
    folder: Path, items: Mapping[str, Sequence[Item]], sizes: Mapping[tuple[str, int], int]
) -> dict[str, tuple[Item, ...]]:
    """What was found in parts, joined over all corpora in the order of ``items``."""
    total = sum(sizes.values())
    if not total:
        return {
            corpus: tuple(replace(item, families=PartFamilies()) for item in parts)
            for corpus, parts in items.items()
        }
    entries = np.memmap(folder / "entries", np.uint8, "w+", shape=(total, 32))
    all_bands = np.memmap(folder / "bands", np.uint64, "w+", shape=(BANDS, total))
    ranges: dict[tuple[str, int], slice] = {}
    start = 0
    for parts in items.values():
        for item in parts:
            at = slice(start, start + sizes[item.corpus, item.part])
            ranges[item.corpus, item.part], start = at, at.stop
            path = _file(folder, item)
            for array, suffix in ((entries[at], ".entries"), (all_bands[:, at], ".bands")):
                part = path.with_suffix(suffix)
                array[:] = np.frombuffer(part.read_bytes(), array.dtype).reshape(array.shape)
                part.unlink()
    last = families(all_bands, folder)
    newest = np.memmap(folder / "newest", np.int64, "w+", shape=(total,))
    found = {}
    for corpus, parts in items.items():
        own = [ranges[corpus, item.part] for item in parts]
        for at in own:  # of each family the corpus's last record; later corpora only raise it
            np.maximum.at(newest, last[at], np.arange(at.start, at.stop))
        made = []
        for item, at in zip(parts, own, strict=True):
            places, family = np.arange(at.start, at.stop), last[at]
            others = np.flatnonzero(family != places)
            near = PartFamilies(
                others.tobytes(),
                entries[family[others]].tobytes(),
                (newest[family[others]] == places[others]).tobytes(),
            )
            made.append(replace(item, families=near))
        found[corpus] = tuple(made)
    return found


def _file(folder: Path, item: Item) -> Path:
    """Where a part's records are kept, without suffix."""
    return folder / f"{hashlib.sha256(item.file.encode()).hexdigest()}"
