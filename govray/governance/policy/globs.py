"""Case-sensitive globs over names: ``*`` any run of characters, ``?`` any one.

A policy is checked before any class is known. So this also decides when two globs can match the
same text, and when one matches all that another does. Character sets (``[ab]``) are refused: with
them those questions have no short answer, and a name holding a bracket would be read as a set.

Not done here: paths; ``*`` crosses dots and slashes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from pydantic import StringConstraints

Glob = Annotated[
    str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\[\]\x00-\x1f]+$")
]


def is_literal(pattern: str) -> bool:
    """Whether ``pattern`` matches itself and nothing else."""
    return not {"*", "?"} & set(pattern)


def matches(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches all of ``text``; in at most as many steps as their product."""
    return _compiled(pattern).fullmatch(text) is not None


def overlap(a: str, b: str) -> bool:
    """Whether some text is matched by both patterns. Exact."""
    # reached[j]: some text is matched by a[:i] and by b[:j].
    reached = [True] + [False] * len(b)
    for j, y in enumerate(b, start=1):
        reached[j] = reached[j - 1] and y == "*"
    for x in a:
        previous, reached = reached, [reached[0] and x == "*"]
        for j, y in enumerate(b, start=1):
            reached.append(
                previous[j] or reached[j - 1]
                if "*" in (x, y)
                else previous[j - 1] and (x == y or "?" in (x, y))
            )
    return reached[-1]


def covers(a: str, b: str) -> bool:
    """Whether ``a`` matches every text that ``b`` matches. Never true wrongly. It may miss a cover
    between patterns that spell the same wildcards differently (``*?`` and ``?*``)."""
    # reached[j]: a[:i] covers b[:j], where only "*" can cover a "*".
    reached = [True] + [False] * len(b)
    for x in a:
        previous, reached = reached, [reached[0] and x == "*"]
        for j, y in enumerate(b, start=1):
            reached.append(
                previous[j] or reached[j - 1]
                if x == "*"
                else previous[j - 1] and (x == y or (x == "?" and y != "*"))
            )
    return reached[-1]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Each piece between two stars is matched at its first place and kept there (an atomic group),
    # as `fnmatch` does since Python 3.11. Otherwise, eight stars take minutes on 60 characters.
    first, *inner = [
        "".join("." if c == "?" else re.escape(c) for c in p) for p in _pieces(pattern)
    ]
    if not inner:
        return re.compile(first, re.DOTALL)
    last = inner.pop()
    taken = "".join(f"(?>.*?{piece})" for piece in inner if piece)
    return re.compile(f"{first}{taken}.*{last}", re.DOTALL)


def _pieces(pattern: str) -> list[str]:
    """What stands between the stars, which count once in a row."""
    return re.split(r"\*+", pattern)
