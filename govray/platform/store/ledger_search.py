"""Where the leaf of a step stands in a ledger's tiles, without reading them all.

Leaves stand in the order of branch and step (`govray.governance.record.ledger`), and what was
measured of a step behind its leaf. So a step is found by bisection, in O(log n) entries. Only the
entry that is returned is checked.

The index, not this module, has the steps that read a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from govray.errors import Damaged
from govray.governance.formats import canonical_json
from govray.platform.store.tiles import TileReader

MAX_BRANCHES = 64
"""More rollbacks than this are not looked through."""


def leaves_of_step(
    tiles: TileReader, step: int, *, corpus: str
) -> Iterator[tuple[int, int, bytes]]:
    """The leaves of a step that used a corpus, one a branch at most.

    Args:
        corpus: Leaves that a gate kept it out of are passed over.

    Yields:
        Index in the ledger, branch, and the leaf's bytes, checked against the signed root.

    Raises:
        Damaged: An entry is no leaf, or not the one that was signed.
    """
    if tiles.size == 0:
        return
    last = _place(tiles.unchecked_entry(tiles.size - 1))[0]
    for branch in range(min(last + 1, MAX_BRANCHES)):
        index = _first_at(tiles, (branch, step))
        if index is None:
            continue
        line = tiles.entry(index)
        if corpus in _parsed(line).get("corpora", {}):
            yield index, branch, line


def _first_at(tiles: TileReader, place: tuple[int, int]) -> int | None:
    """The first entry of (branch, step): the step's leaf."""
    low, high = 0, tiles.size
    while low < high:
        middle = (low + high) // 2
        if _place(tiles.unchecked_entry(middle)) < place:
            low = middle + 1
        else:
            high = middle
    if low < tiles.size and _place(tiles.unchecked_entry(low)) == place:
        return low
    return None


def _place(line: bytes) -> tuple[int, int]:
    value = _parsed(line)
    branch, step = value.get("branch"), value.get("step")
    if not isinstance(branch, int) or not isinstance(step, int):
        raise Damaged("an entry is no leaf of a ledger", where="ledger")
    return branch, step


def _parsed(line: bytes) -> dict[str, Any]:
    value = canonical_json.parse(line, where="ledger entry")
    if not isinstance(value, dict):
        raise Damaged("an entry is no leaf of a ledger", where="ledger")
    return value
