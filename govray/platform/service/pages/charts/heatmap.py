"""The lineage heat map: corpora by layer groups, from a lineage document. Pure.

A cell says how a row reached a group: by its own gradient (``direct``), only through other layers
(``indirect``), or by no recorded path (``none``). A direct cell has the tokens that the ledger
counted. The shade is of the tokens, on a logarithmic scale, from 1 to `SHADES`; it repeats what the
number says and adds nothing.

Where there are more than `FOLD_ABOVE` corpora the rows are licence categories, and one category's
corpora are a page of their own. A row of a category sums its corpora's tokens; it is direct if one
of them is, and else indirect if one of them is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from govray.platform.store.lineage import CorpusLineage, Lineage, LineageCell

FOLD_ABOVE = 40
MOST_ROWS = 400
SHADES = 6

_ORDER = ("public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown")


@dataclass
class HeatCell:
    """One row in one group. ``levels`` are those of its exclusions, least and most."""

    reach: str
    tokens: int
    levels: tuple[int, int] | None
    shade: int = 0


@dataclass(frozen=True)
class HeatRow:
    """A corpus, or a licence category of ``corpora`` corpora."""

    name: str
    category: str
    license: str | None
    corpora: int
    tokens: int
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatMap:
    """Rows by groups. ``left_out``: rows beyond `MOST_ROWS`, the ones with the fewest tokens."""

    groups: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    folded: bool
    left_out: int


def heat_map(
    document: Lineage, *, category: str | None = None, name: str = "", fold: bool | None = None
) -> HeatMap:
    """The map of a lineage.

    Args:
        category: Only this licence category, corpus by corpus.
        name: Only corpora whose name contains this text, corpus by corpus.
        fold: Whether rows are categories; by the number of corpora if None.
    """
    chosen = [
        row
        for row in document.corpora
        if (category is None or row.license_category == category)
        and name.casefold() in row.corpus.casefold()
    ]
    if fold is None:
        fold = category is None and not name and len(chosen) > FOLD_ABOVE
    groups = tuple(each.group for each in document.groups)
    if fold:
        parts = {key: [row for row in chosen if row.license_category == key] for key in _ORDER}
        rows = [_row(key, key, None, part) for key, part in parts.items() if part]
    else:
        rows = [_row(row.corpus, row.license_category, row.license, [row]) for row in chosen]
        rows.sort(key=lambda row: (_ORDER.index(row.category), -row.tokens, row.name))
    shown = rows[:MOST_ROWS]
    largest = max((cell.tokens for row in shown for cell in row.cells), default=0)
    for cell in (cell for row in shown for cell in row.cells):
        cell.shade = shade(cell.tokens, largest)
    return HeatMap(groups, tuple(shown), fold, len(rows) - len(shown))


def _row(name: str, category: str, license: str | None, rows: Sequence[CorpusLineage]) -> HeatRow:
    cells = tuple(_merged(cells) for cells in zip(*(row.cells for row in rows), strict=True))
    tokens = sum(row.tokens for row in rows)
    return HeatRow(name, category, license, len(rows), tokens, cells)


def _merged(cells: Sequence[LineageCell]) -> HeatCell:
    levels = [cell.level for cell in cells if cell.level is not None]
    reach = "none"
    if any(cell.direct for cell in cells):
        reach = "direct"
    elif any(cell.transitive for cell in cells):
        reach = "indirect"
    spanned = (min(levels), max(levels)) if levels else None
    return HeatCell(reach, sum(cell.tokens for cell in cells), spanned)


def shade(tokens: int, largest: int) -> int:
    """From 0 (none) to `SHADES` (the largest), on a logarithmic scale."""
    if not tokens:
        return 0
    return max(1, round(SHADES * math.log1p(tokens) / math.log1p(largest)))
