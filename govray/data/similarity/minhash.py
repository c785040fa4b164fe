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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from govray.data.similarity.shingles import PASSAGE, SHINGLE, ordered_shingles, passage_starts

PERMUTATIONS = 128
BANDS = 32
SEED = 17
ALGORITHM = int(RMinHash.ALGORITHM_VERSION)

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
    starts: list[int] = []
    counts: list[int] = []
    hashed: list[str] = []
    for number, text in enumerate(texts):
        found = passage_starts(len(text), stride)
        owners += [number] * len(found)
        starts += [len(hashed) + start for start in found]
        counts += [min(PASSAGE, len(text)) - SHINGLE + 1] * len(found)
        hashed += ordered_shingles(text)
    if not owners:
        return np.zeros(0, np.int64), np.zeros((0, PERMUTATIONS), np.uint32)
    [each] = RMinHash.hash_token_sets([hashed])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
    made = RMinHash.digest_matrix_from_flat_token_hashes(
        np.array(each, np.uint64)[places], offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    return np.array(owners, np.int64), np.array(made.to_rows(), np.uint32)


def band_keys(signatures: Signatures, band: int) -> npt.NDArray[np.uint64]:
    """A number for the band of each signature; other bands may have it too, which costs time only.

    Args:
        signatures: ``[n, PERMUTATIONS]``.
        band: Which, from 0.
    """
    width = PERMUTATIONS // BANDS
    keys = np.zeros(len(signatures), dtype=np.uint64)
    for column in signatures[:, band * width : (band + 1) * width].T:
        keys = (keys ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys
