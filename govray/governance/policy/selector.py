"""Selectors: how a policy names layer groups without knowing the model.

| selector         | layer groups                                            |
|------------------|---------------------------------------------------------|
| ``all``          | every group                                             |
| ``head``         | the group of that name                                  |
| ``block.*``      | every group whose name the glob matches                 |
| ``blocks[2]``    | one block, ``blocks[-1]`` the last                      |
| ``blocks[4:8]``  | blocks 4 to 7; a missing bound is the end of the stack  |
| ``blocks[0.5:]`` | the upper half; a bound with a dot is a fraction        |

Fractions of N blocks round inward: the start up, the end down. So a range never
takes in a block that lies only partly inside it, which is the strict way.

Bounds are exact decimals, not floats, so that 0.7 of 10 blocks is 7. Unlike in a Python slice, a
bound beyond the model selects nothing: ``blocks[0:8]`` was meant for eight blocks. What to do about
a selector that selects nothing is the caller's part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from govray.errors import Malformed
from govray.governance.policy import globs

_BLOCK = re.compile(r"block\.(0|[1-9][0-9]*)")
_NAME = re.compile(r"[A-Za-z_*?][A-Za-z0-9_.*?-]{0,127}")
_BOUND = r"-?[0-9]{1,6}|[0-9]\.[0-9]{1,9}"
_BLOCKS = re.compile(
    rf"blocks\[(?:(?P<index>-?[0-9]{{1,6}})|(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?)\]"
)


@dataclass(frozen=True)
class Selector:
    """A parsed selector; `parse_selector` makes them.

    Attributes:
        pattern: A glob over group names, or ``None`` for a range of blocks.
        start: First block: an int (negative counts from the end) or a fraction of
            the stack; ``None`` is the bottom.
        stop: The block after the last, likewise; ``None`` is the top.
    """

    text: str
    pattern: str | None = None
    start: int | Fraction | None = None
    stop: int | Fraction | None = None

    def select(self, groups: Iterable[str]) -> frozenset[str]:
        """The names among ``groups`` that this selector means; empty if the model lacks them.
        ``groups``: a model's layer groups, tied ones taken apart, without adapters."""
        groups = frozenset(groups)
        if self.pattern is not None:
            return frozenset(group for group in groups if globs.matches(self.pattern, group))
        blocks = sum(1 for group in groups if _BLOCK.fullmatch(group))
        start = _position(self.start, blocks, default=0, rounding=math.ceil)
        stop = _position(self.stop, blocks, default=blocks, rounding=math.floor)
        if start is None or stop is None:
            return frozenset()
        return groups & {f"block.{index}" for index in range(start, stop)}


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """Read one selector."""
    if text == "all":
        return Selector(text, pattern="*")
    if found := _BLOCKS.fullmatch(text):
        if found["index"] is not None:
            start = int(found["index"])
            return Selector(text, start=start, stop=start + 1 if start != -1 else None)
        selector = Selector(text, start=_bound(found["start"]), stop=_bound(found["stop"]))
        if _is_fraction_above_one(selector.start) or _is_fraction_above_one(selector.stop):
            raise Malformed(
                f"selector {text!r}: a fraction of the blocks exceeds 1",
                do="Write an index without a dot, or a fraction between 0.0 and 1.0",
            )
        return selector
    if text.startswith("blocks") or not _NAME.fullmatch(text):
        raise Malformed(
            f"{text!r} is no selector of layer groups",
            do="Write all, a group name, a glob such as block.*, blocks[a:b] with indices or "
            "fractions such as blocks[0.5:], or blocks[i]",
        )
    return Selector(text, pattern=text)


def _bound(text: str | None) -> int | Fraction | None:
    if not text:
        return None
    return Fraction(text) if "." in text else int(text)


def _is_fraction_above_one(bound: int | Fraction | None) -> bool:
    return isinstance(bound, Fraction) and bound > 1


def _position(
    bound: int | Fraction | None,
    blocks: int,
    *,
    default: int,
    rounding: Callable[[Fraction], int],
) -> int | None:
    """The block index that a bound means in a stack of ``blocks``; ``None`` beyond it."""
    if bound is None:
        return default
    if isinstance(bound, Fraction):
        return rounding(bound * blocks)
    position = bound + blocks if bound < 0 else bound
    return position if 0 <= position <= blocks else None
