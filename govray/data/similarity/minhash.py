"""MinHash: signatures of passages, by which their Jaccard similarity is estimated.

A signature has 128 numbers. The share of those that two signatures have in common estimates the
similarity of their passages. Numbers are taken together in bands: two passages **agree in a band**
if its numbers are equal. Bands of two find a quotation within a passage. A pair with Jaccard .3
agrees in no band in one of 400 cases, one with .5 in one of 99 million.

Each shingle is hashed once, whichever passages it is in. The numbers are the same as those of the
passages' sets: a minimum knows neither order nor repetition.

Source: Broder 1997, "On the resemblance and containment of documents"; the signatures are those
of rensa (Rust, no dependencies; datasketch needs scipy).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

PASSAGE = 128
"""Shingles in a row. A text is cut into passages at every ``stride``-th shingle. The last one ends
with the text, so every shingle is in one."""


def passage_starts(count: int, stride: int) -> Sequence[int]:
    """The first shingle of each passage of a text of ``count`` shingles; none of none."""
    if not count:
        return ()
    last = max(0, count - PASSAGE)
    return (*range(0, last, stride), last)


PERMUTATIONS = 128
BANDS = 64
"""Of an index: two numbers in each."""
SEED = 17
ALGORITHM = int(RMinHash.ALGORITHM_VERSION)

_TOGETHER = 4096  # passages whose shingles are in memory, or twice as many

Signatures = npt.NDArray[np.uint32]


def passage_signatures(
    texts: Sequence[Sequence[str]], stride: int
) -> tuple[npt.NDArray[np.int64], Signatures]:
    """The signatures of the passages of some texts, in order.

    Args:
        texts: Their shingles, as they stand in each.
        stride: As for `passage_starts`.

    Returns:
        The text of each passage ``[n]``, and the signatures ``[n, PERMUTATIONS]``.
    """
    owners: list[int] = []
    made = [np.zeros((0, PERMUTATIONS), np.uint32)]
    pending = _Pending()
    for number, text in enumerate(texts):
        starts = passage_starts(len(text), stride)
        owners += [number] * len(starts)
        for at in range(0, len(starts), _TOGETHER):
            pending.add(text, starts[at : at + _TOGETHER])
            if len(pending.starts) >= _TOGETHER:
                made.append(pending.signatures())
                pending = _Pending()
    if pending.starts:
        made.append(pending.signatures())
    return np.array(owners, np.int64), np.concatenate(made)


class _Pending:
    """Passages whose signatures are made together: their shingles, and where each passage's are."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._counts: list[int] = []
        self._shingles: list[str] = []

    def add(self, text: Sequence[str], starts: Sequence[int]) -> None:
        """Take the passages of a text that begin at these shingles, in ascending order."""
        before = len(self._shingles) - starts[0]
        self.starts += [before + start for start in starts]
        self._counts += [min(PASSAGE, len(text))] * len(starts)
        self._shingles += text[starts[0] : starts[-1] + PASSAGE]

    def signatures(self) -> Signatures:
        """``[passages, PERMUTATIONS]``."""
        [hashed] = RMinHash.hash_token_sets([self._shingles])
        offsets = np.concatenate([[0], np.cumsum(self._counts)])
        places = np.arange(offsets[-1]) + np.repeat(self.starts - offsets[:-1], self._counts)
        made = RMinHash.digest_matrix_from_flat_token_hashes(
            np.array(hashed, np.uint64)[places], offsets.astype(np.uint64), PERMUTATIONS, SEED
        )
        return np.array(made.to_rows(), np.uint32)


def in_bands(signatures: Signatures, bands: int = BANDS) -> Signatures:
    """The numbers of each band, ``[n, bands, PERMUTATIONS // bands]``, without copying."""
    return signatures.reshape(len(signatures), bands, PERMUTATIONS // bands)


def band_keys(numbers: Signatures) -> npt.NDArray[np.uint64]:
    """One number for the numbers of a band; others may have it too, which costs time only.
    ``numbers``: of some bands, ``[..., numbers of a band]``."""
    keys = np.zeros(numbers.shape[:-1], dtype=np.uint64)
    for place in range(numbers.shape[-1]):
        keys = (keys ^ numbers[..., place]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys
