"""The order in which one epoch of a stream is read: a permutation that is computed, never listed.

There are two orders. A `WholeOrder` permutes all rows of the epoch at once: an epoch of one window
has it. A `LocalOrder` keeps rows that lie together on a disk together in time, so that a row group
is decoded about once.

Invariants

* **An order is a bijection on ``[0, n)``**, in both directions by arithmetic. The millionth place
  costs what the first one costs.
* **It follows from (seed, stream id, epoch, n, `RowOrder`) alone**: no world size, no other stream.

The permutation

``permute`` is a balanced Feistel network on ``2h`` bits, the fewest with ``4**h >= n``, walked
until it lands below ``n`` (cycle walking). That takes fewer than four evaluations on average (Black
and Rogaway, *Ciphers with Arbitrary Finite Domains*, CT-RSA 2002). With ``L, R`` the high and the
low ``h`` bits, each of the eight rounds does::

    L, R  =  R, L ^ (mix(R ^ key[round]) & (2**h - 1))

and ``mix`` is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Arithmetic is
modulo 2**64, so an array library's ``uint64`` computes exactly the same numbers. The eight 64-bit
round keys are the big-endian words of the SHA-512 of the canonical JSON
``{"epoch": …, "seed": …, "stream": …}``. This is a shuffle, not a cipher: nothing secret depends on
it.

The local order

The epoch's rows are cut into blocks of ``c`` consecutive ones; the last block may be short. The
blocks are permuted. The sequence of rows that they make is cut into windows of ``w`` rows, and the
rows of each window are permuted. So with ``m = ceil(n / c)`` blocks, the place ``i`` reads::

    k    =  i // w
    j    =  k*w + permute(keys of window k, min(w, n - k*w), i - k*w)
    j   +=  m*c - n                   if j lies behind the last row of the short block
    row  =  permute(keys of blocks, m, j // c) * c + j % c

An epoch of at most ``w`` rows is one window: it has the `WholeOrder`.

The keys of blocks are round keys as above, with ``"order": "blocks"`` in the JSON. Key r of window
k is ``mix(base[r] + (k + 1) * 0x9e3779b97f4a7c15)``: the output k of splitmix64 from the state
``base[r]``. Those states are round keys with ``"order": "windows"``.

What the local order is not: a uniform shuffle. Rows of one block are read within one window, or
within two that follow each other. Blocks meet in a window by chance, from the whole stream, and
within a window any row may stand anywhere.

Golden vectors (``tests/governance/record/test_row_order.py`` holds more)::

    keys = round_keys(17, "sha256:" + "00" * 32, 0)
    keys[0]                                    ==  0x010eef4af250431c
    [permute(keys, 10, i) for i in range(10)]  ==  [2, 1, 6, 9, 7, 0, 5, 3, 8, 4]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Document

Keys: TypeAlias = tuple[int, ...]
"""Round keys of the network, of 64 bits each."""

GAMMA = 0x9E3779B97F4A7C15
"""How far splitmix64's state moves from one output to the next: 2**64 by the golden ratio, odd."""

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Splitmix64's finaliser: a bijection on ``[0, 2**64)`` in which every bit moves every bit."""
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & _MASK
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def round_keys(
    seed: int, stream: str, epoch: int, order: Literal["blocks", "windows"] | None = None
) -> Keys:
    """The eight 64-bit round keys of one epoch of one stream, for the permutation of ``order``."""
    name: dict[str, int | str] = {"seed": seed, "stream": stream, "epoch": epoch}
    if order is not None:
        name["order"] = order
    digest = hashlib.sha512(canonical_json.encode(name)).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "big") for i in range(0, 64, 8))


def window_keys(states: Sequence[int], window: int) -> Keys:
    """The round keys of one window: the outputs ``window`` of splitmix64 from these states."""
    return tuple(mix(state + (window + 1) * GAMMA & _MASK) for state in states)


def half_width(n: int) -> int:
    """Bits in one half of the network that permutes ``[0, n)``: the least h with 4**h >= n."""
    return max(1, ((n - 1).bit_length() + 1) // 2)


def permute(keys: Sequence[int], n: int, i: int) -> int:
    """The image of ``i`` under the permutation of ``[0, n)`` that ``keys`` name."""
    _check_domain(n, i)
    half = half_width(n)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for key in keys:
            left, right = right, left ^ mix(right ^ key) & mask
        i = left << half | right
        if i < n:
            return i


def invert(keys: Sequence[int], n: int, i: int) -> int:
    """The ``j`` with ``permute(keys, n, j) == i``."""
    _check_domain(n, i)
    half = half_width(n)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for key in reversed(keys):
            left, right = right ^ mix(left ^ key) & mask, left
        i = left << half | right
        if i < n:
            return i


def _check_domain(n: int, i: int) -> None:
    if not 0 <= i < n:
        raise ValueError(f"{i} is outside [0, {n})")


class RowOrder(Document):
    """The sizes of a local order, in rows: ``block`` of what stays together, ``window`` of what is
    shuffled together."""

    block: Positive
    window: Positive

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        if self.window < self.block:
            raise ValueError(f"a window of {self.window} rows holds no block of {self.block}")
        return self


@dataclass(frozen=True)
class WholeOrder:
    """All rows of an epoch, permuted at once."""

    n: int
    keys: Keys

    def row(self, offset: int) -> int:
        """The stream row that the place ``offset`` of the epoch reads."""
        return permute(self.keys, self.n, offset)

    def offset(self, row: int) -> int:
        """The place of the epoch that reads the stream row ``row``."""
        return invert(self.keys, self.n, row)


@dataclass(frozen=True)
class LocalOrder:
    """An epoch of several windows: blocks of rows permuted, then rows within each window.

    Attributes:
        n: Rows of the epoch; more than ``window``.
        block, window: As in `RowOrder`.
        block_keys: Round keys of the permutation of blocks.
        window_states: What `window_keys` derives each window's round keys from.
    """

    n: int
    block: int
    window: int
    block_keys: Keys
    window_states: Keys

    @cached_property
    def blocks(self) -> int:
        """How many blocks there are, the short one included."""
        return -(-self.n // self.block)

    @cached_property
    def missing(self) -> int:
        """Rows that the last block lacks."""
        return self.blocks * self.block - self.n

    @cached_property
    def gap(self) -> int:
        """Where in the sequence of permuted blocks the missing rows would stand."""
        place = invert(self.block_keys, self.blocks, self.blocks - 1)
        return (place + 1) * self.block - self.missing

    def row(self, offset: int) -> int:
        """As `WholeOrder.row`."""
        _check_domain(self.n, offset)
        number, inside = divmod(offset, self.window)
        place = number * self.window + permute(*self._window(number), inside)
        if place >= self.gap:
            place += self.missing
        block, inside = divmod(place, self.block)
        return permute(self.block_keys, self.blocks, block) * self.block + inside

    def offset(self, row: int) -> int:
        """As `WholeOrder.offset`."""
        _check_domain(self.n, row)
        block, inside = divmod(row, self.block)
        place = invert(self.block_keys, self.blocks, block) * self.block + inside
        if place >= self.gap:
            place -= self.missing
        number, inside = divmod(place, self.window)
        return number * self.window + invert(*self._window(number), inside)

    def _window(self, number: int) -> tuple[Keys, int]:
        """Round keys and size of a window."""
        size = min(self.window, self.n - number * self.window)
        return window_keys(self.window_states, number), size


EpochOrder: TypeAlias = WholeOrder | LocalOrder


def epoch_order(sizes: RowOrder, n: int, *, seed: int, stream: str, epoch: int) -> EpochOrder:
    """The order of one epoch of a stream of ``n`` rows."""
    if n <= sizes.window:
        return WholeOrder(n, round_keys(seed, stream, epoch))
    return LocalOrder(
        n,
        sizes.block,
        sizes.window,
        round_keys(seed, stream, epoch, "blocks"),
        round_keys(seed, stream, epoch, "windows"),
    )
