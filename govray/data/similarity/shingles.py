"""Shingles: the word sequences by which texts are compared.

A **shingle** is five words in a row, in lower case, whatever stands between them. The Jaccard
similarity of two sets of shingles is the share of common ones among all.

A **passage** is 128 words in a row. A text is cut into passages at every ``stride``-th word. The
last one ends with the text, so every word is in one.

Source: Broder 1997, "On the resemblance and containment of documents".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
