"""MinHash: signatures of passages, by which their Jaccard similarity is estimated.

A signature has 128 numbers. The share of those that two signatures have in common estimates the
similarity of their passages. Numbers are taken by four: two passages **agree in a band** if its
four numbers are equal.

A passage pair with Jaccard .8 agrees in no band in fewer than one of a million cases. A pair with
.5 agrees in none in one of eight.

Each shingle is hashed once, whichever passages it is in. The numbers are the same as those of the
passages' sets: a minimum knows neither order nor repetition.

Source: Broder 1997, "On the resemblance and containment of documents"; the signatures are those
of rensa (Rust, no dependencies; datasketch needs scipy).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

# Shingles: the word sequences by which texts are compared.
#
# A **shingle** is five words in a row, in lower case, whatever stands between them. The Jaccard
# similarity of two sets of shingles is the share of common ones among all.
#
# A **passage** is 128 words in a row. A text is cut into passages at every ``stride``-th word. The
# last one ends with the text, so every word is in one.
#
# Source: Broder 1997, "On the resemblance and containment of documents".


SHINGLE = 5
PASSAGE = 128
LEAST = 8
"""Fewest shingles of a text for a comparison to mean anything."""

_WORD = re.compile(r"\w+")


def words(content: bytes | memoryview) -> list[str]:
    """The words of a text in lower case; bytes that are no UTF-8 stand for no letters."""
    return _WORD.findall(str(content, "utf-8", "replace").casefold())


def shingles(text: Sequence[str]) -> frozenset[str]:
    """Every five words in a row, joined by spaces; of a shorter text, none."""
    return frozenset(ordered_shingles(text))


def ordered_shingles(text: Sequence[str]) -> Iterator[str]:
    """The same as they stand in the text: the i-th begins with its i-th word."""
    return map(" ".join, zip(*(text[start:] for start in range(SHINGLE)), strict=False))


def passage_starts(count: int, stride: int) -> Sequence[int]:
    """The first word of each passage of a text of ``count`` words; none if it has no shingle."""
    if count < SHINGLE:
        return ()
    last = max(0, count - PASSAGE)
    return (*range(0, last, stride), last)


PERMUTATIONS = 128
BANDS = 32
SEED = 17
ALGORITHM = int(RMinHash.ALGORITHM_VERSION)

_TOGETHER = 4096  # passages whose shingles are in memory, or twice as many

Signatures = npt.NDArray[np.uint32]


def passage_signatures(
    texts: Sequence[Sequence[str]], stride: int
) -> tuple[npt.NDArray[np.int64], Signatures]:
    """The signatures of the passages of some texts, in order.

    Args:
        texts: Their words.
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
        """Take the passages of a text that begin at these words, in ascending order."""
        before = len(self._shingles) - starts[0]
        self.starts += [before + start for start in starts]
        self._counts += [min(PASSAGE, len(text)) - SHINGLE + 1] * len(starts)
        self._shingles += ordered_shingles(text[starts[0] : starts[-1] + PASSAGE])

    def signatures(self) -> Signatures:
        """``[passages, PERMUTATIONS]``."""
        [hashed] = RMinHash.hash_token_sets([self._shingles])
        offsets = np.concatenate([[0], np.cumsum(self._counts)])
        places = np.arange(offsets[-1]) + np.repeat(self.starts - offsets[:-1], self._counts)
        made = RMinHash.digest_matrix_from_flat_token_hashes(
            np.array(hashed, np.uint64)[places], offsets.astype(np.uint64), PERMUTATIONS, SEED
        )
        return np.array(made.to_rows(), np.uint32)


def in_bands(signatures: Signatures) -> Signatures:
    """The numbers of each band, ``[n, BANDS, PERMUTATIONS // BANDS]``, without copying."""
    return signatures.reshape(len(signatures), BANDS, PERMUTATIONS // BANDS)


def band_keys(numbers: Signatures) -> npt.NDArray[np.uint64]:
    """One number for the numbers of a band; others may have it too, which costs time only.
    ``numbers``: of some bands, ``[..., PERMUTATIONS // BANDS]``."""
    keys = np.zeros(numbers.shape[:-1], dtype=np.uint64)
    for place in range(numbers.shape[-1]):
        keys = (keys ^ numbers[..., place]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys
