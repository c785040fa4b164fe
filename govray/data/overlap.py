"""Overlap: which records stand in two corpora, byte for byte or nearly.

A record in two corpora trains under both credentials. Nothing here decides which of them is right,
and no record is left out.

Equal records have one SHA-256, so their numbers are exact. A near record has a passage
(``similarity/minhash.py``) that is similar to one of the other corpus. Their Jaccard similarity
is at least ``least``, as MinHash estimates it. A passage is compared with at most `MOST` of each
other corpus that agree with it in a band. So text that stands everywhere costs no more than that.

Each band is sorted once, over the passages of all corpora. What agrees then stands side by side,
and the number of corpora counts only where they do share text.

Memory: 100 bytes a record, and 1,100 bytes a passage.

Source: Broder 1997, "On the resemblance and containment of documents".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from govray.data.similarity.minhash import band_keys, in_bands
from govray.data.similarity.passage_index import CorpusPassages

BANDS = 32
"""Four numbers in each: whole passages are compared, and few others may stand beside them."""
MOST = 16
_AT_ONCE = 1 << 14  # passages compared together
_BLOCK = 1 << 20  # candidates that are looked at together

Digests = npt.NDArray[np.bytes_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Overlap:
    """What two corpora share.

    Attributes:
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


def overlaps(
    records: Mapping[str, Digests],
    passages: Mapping[str, CorpusPassages] | None = None,
    *,
    least: float = 0.8,
) -> list[Overlap]:
    """The pairs of corpora that share records, by name.

    Args:
        records: Corpus → what `digests` makes of its records' hashes, in Merkle order.
        passages: Corpus → its passages, whose signatures are ``[passages, PERMUTATIONS]``. None
            looks for equal records only.
        least: Smallest estimated Jaccard similarity of passages that are near, in (0, 1].
    """
    names = sorted(records)
    if len(names) < 2:
        return []
    starts = _starts([len(records[name]) for name in names])
    equal = _equal([records[name] for name in names], starts)
    near = np.empty(0, dtype=np.int64)
    if passages is not None:
        near = _near([passages[name] for name in names], starts, equal, least)
    counted = [_counts(each, starts) for each in (equal, near)]
    pairs = {(min(pair), max(pair)) for each in counted for pair in each}
    return [
        Overlap(
            names[first],
            names[second],
            *((each.get((first, second), 0), each.get((second, first), 0)) for each in counted),
        )
        for first, second in sorted(pairs)
    ]


@dataclass(frozen=True)
class _Agreeing:
    """Some members, each beside the members of one other corpus that agree with it.

    ``member [n]`` agrees with members of ``corpus [n]``. Those are
    ``order[start : start + count]``, in their corpus's order.
    """

    order: Places
    member: Places
    corpus: Places
    start: Places
    count: Places


def _agreeing(keys: npt.NDArray[Any], corpora: Places) -> Iterator[_Agreeing]:
    """What has equal keys in different corpora, block by block.

    Args:
        keys: Of all members, ``[n]``.
        corpora: The corpus of each, ``[n]``, ascending.
    """
    order = np.argsort(keys, kind="stable")
    keys, corpora = keys[order], corpora[order]
    new_key = np.flatnonzero(np.diff(keys, prepend=keys[:1] ^ keys.dtype.type(1)))
    new_corpus = np.flatnonzero(np.diff(corpora, prepend=-1))
    starts = np.union1d(new_key, new_corpus)  # of runs with one key and one corpus
    counts = np.diff(starts, append=keys.size)
    first_run = np.searchsorted(starts, new_key)  # of each key
    runs = np.diff(first_run, append=starts.size)
    sizes = np.diff(new_key, append=keys.size)
    # Each member of a key that several corpora have meets every run of the key.
    members = np.flatnonzero(np.repeat(runs > 1, sizes))
    meets = np.repeat(runs, sizes)[members]
    begins = np.repeat(first_run, sizes)[members]
    ends = np.cumsum(meets)
    at = 0
    while at < members.size:
        stop = max(at + 1, int(np.searchsorted(ends, ends[at] - meets[at] + _BLOCK)))
        some = meets[at:stop]
        within = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        run = np.repeat(begins[at:stop], some) + within
        place = np.repeat(members[at:stop], some)
        other = corpora[starts[run]]
        apart = other != corpora[place]
        run = run[apart]
        yield _Agreeing(order, order[place[apart]], other[apart], starts[run], counts[run])
        at = stop


def _equal(records: Sequence[Digests], starts: Places) -> Places:
    """What is equal, as ascending numbers: record · corpora + corpus that has it, too.
    Records count through all corpora; ``starts`` are the corpora's first ones, and the end."""
    _, keys = np.unique(np.concatenate(records), return_inverse=True)
    width = len(records)
    blocks = _agreeing(keys, _corpora(starts))
    return _union([block.member * width + block.corpus for block in blocks])


def _near(
    passages: Sequence[CorpusPassages], starts: Places, known: Places, least: float
) -> Places:
    """What is near, in the same form, without what is ``known`` (ascending) to be equal."""
    width = len(passages)
    signatures = np.concatenate([each.signatures for each in passages])
    owners = np.concatenate(
        [each.owners + start for each, start in zip(passages, starts, strict=False)]
    )
    corpora = _corpora(_starts([len(each.owners) for each in passages]))
    found = np.empty(0, dtype=np.int64)
    for band in range(BANDS):
        for block in _agreeing(band_keys(in_bands(signatures, BANDS)[:, band]), corpora):
            pairs = owners[block.member] * width + block.corpus
            open_ = ~(_among(pairs, known) | _among(pairs, found))
            hits: list[Places] = []
            for place in range(MOST):
                asked = np.flatnonzero(open_ & (block.count > place))
                if not asked.size:
                    break
                alike = np.zeros(asked.size, dtype=bool)
                for at in range(0, asked.size, _AT_ONCE):
                    some = asked[at : at + _AT_ONCE]
                    others = block.order[block.start[some] + place]
                    equal = signatures[block.member[some]] == signatures[others]
                    alike[at : at + _AT_ONCE] = equal.mean(axis=1) >= least
                if alike.any():
                    hits.append(np.unique(pairs[asked[alike]]))
                    open_ &= ~_among(pairs, hits[-1])
            found = _union([found, *hits])
    return found


def _counts(pairs: Places, starts: Places) -> dict[tuple[int, int], int]:
    """(Corpus, other) → how many of its records are paired with the other."""
    width = starts.size - 1
    records, others = np.divmod(pairs, max(width, 1))
    own = np.searchsorted(starts, records, side="right") - 1
    told, counts = np.unique(own * width + others, return_counts=True)
    return {
        divmod(each, width): count
        for each, count in zip(told.tolist(), counts.tolist(), strict=True)
    }


def _among(each: Places, some: Places) -> npt.NDArray[np.bool_]:
    """Which of ``each`` are in ``some``, which ascends."""
    if not some.size:
        return np.zeros(each.size, dtype=bool)
    places = np.minimum(np.searchsorted(some, each), some.size - 1)
    return some[places] == each


def _union(several: Sequence[Places]) -> Places:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *several]))


def _starts(sizes: Sequence[int]) -> Places:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _corpora(starts: Places) -> Places:
    """The corpus of each member, by number, where corpora begin at ``starts``."""
    return np.repeat(np.arange(starts.size - 1), np.diff(starts))
