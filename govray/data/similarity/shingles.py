"""Shingles: the sequences of letters by which texts are compared.

`TEXT_FORM` (``governance/formats/text_form.py``) says exactly what they are. They begin where words
do, so a text has no more of them than words. They count letters, so a changed letter costs the
same share of them in any script, however long its words are.

The same letters in another encoded form, in another case, with other punctuation or broken into
other lines have the same shingles.

Source: Broder 1997, "On the resemblance and containment of documents".
"""

from __future__ import annotations

import unicodedata
from itertools import accumulate

import regex

SHINGLE = 16
"""Letters of a shingle."""
WIDE_SHINGLE = 8
"""Those of one that begins with a wide letter: it stands for a syllable or a word."""
LEAST = 8
"""Fewest shingles of a text for a comparison to mean anything."""

_IGNORED = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
MANY_MARKS = regex.compile(r"(\p{M}{30})\p{M}+")
"""More marks in a row than any text has: to put them in order takes Python the square of them."""
_WORD_ALONE = regex.compile(r"[\p{LB=AK}\p{LB=AS}\p{LB=CJ}\p{LB=ID}\p{LB=SA}]")


def shingles(content: bytes | memoryview) -> list[str]:
    """The shingles of a text as they stand in it. Bytes that are no text stand for no letters."""
    words = normalised(decoded(content)).translate(_LETTERS).split()
    text = "".join(words)
    starts = accumulate(map(len, words), initial=0)
    if text.isascii():
        return [text[at : at + SHINGLE] for at in starts if at + SHINGLE <= len(text)]
    found = []
    for word, at in zip(words, starts, strict=False):
        stop = at + (WIDE_SHINGLE if unicodedata.east_asian_width(word[0]) == "W" else SHINGLE)
        if stop > len(text):
            break
        found.append(text[at:stop])
    return found


def normalised(text: str) -> str:
    """The same for every way of encoding the letters of a text, in whatever case: NFKC_Casefold."""
    if text.isascii():
        return text.casefold()
    kept = MANY_MARKS.sub(r"\1", _IGNORED.sub("", text))
    folded = unicodedata.normalize("NFKC", kept).casefold()
    return unicodedata.normalize("NFKC", folded)


def decoded(content: bytes | memoryview, errors: str = "replace") -> str:
    """The text of some bytes: UTF-8, or UTF-16 with its mark.
    Raises ``UnicodeDecodeError`` if they are neither and ``errors`` is ``strict``."""
    utf_16 = bytes(content[:2]) in (b"\xff\xfe", b"\xfe\xff")
    return str(content, "utf-16" if utf_16 else "utf-8", errors)


class _Letters(dict[int, str]):
    """Code point → itself where it is a letter, alone where it is a word; else a space."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        category = unicodedata.category(letter)[0]
        if category not in "LMN":
            found = " "
        elif category != "M" and _WORD_ALONE.match(letter):
            found = f" {letter}"
        else:
            found = letter
        self[code] = found
        return found


_LETTERS = _Letters()
