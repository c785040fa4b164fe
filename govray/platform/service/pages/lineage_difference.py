"""What the lineages of several models do not have in common, by corpus and layer group. Pure.

Two models differ in a cell if a corpus reached the group in one and not in the other, or reached it
in another way. Counts of tokens alone are no difference: runs of other lengths have others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from govray.platform.store.lineage import Lineage

Reach = Literal["direct", "transitive", "none", "noCorpus", "noGroup"]

WORDS: dict[Reach, str] = {
    "direct": "trained it",
    "transitive": "reached it through other layers only",
    "none": "did not reach it",
    "noCorpus": "the run did not have the corpus",
    "noGroup": "the model does not have the group",
}


@dataclass(frozen=True)
class ComparedCell:
    """What one model has in one cell. ``tokens`` are those that trained the group."""

    reach: Reach
    tokens: int = 0

    @property
    def words(self) -> str:
        return WORDS[self.reach]


@dataclass(frozen=True)
class DifferentCell:
    """A cell in which the models differ, with what each has there."""

    corpus: str
    group: str
    cells: tuple[ComparedCell, ...]


def lineage_difference(documents: Sequence[Lineage]) -> tuple[list[DifferentCell], int]:
    """The cells in which the lineages differ, and how many cells are alike in all."""
    corpora = sorted({row.corpus for each in documents for row in each.corpora})
    groups = list(dict.fromkeys(group.group for each in documents for group in each.groups))
    tables = [_cells(each) for each in documents]
    different, alike = [], 0
    for corpus in corpora:
        for group in groups:
            cells = tuple(_cell(table, corpus, group) for table in tables)
            if len({cell.reach for cell in cells}) > 1:
                different.append(DifferentCell(corpus, group, cells))
            else:
                alike += 1
    return different, alike


_Table = tuple[frozenset[str], dict[tuple[str, str], ComparedCell]]


def _cells(document: Lineage) -> _Table:
    found = {
        (row.corpus, cell.group): ComparedCell(
            "direct" if cell.direct else "transitive" if cell.transitive else "none", cell.tokens
        )
        for row in document.corpora
        for cell in row.cells
    }
    return frozenset(row.corpus for row in document.corpora), found


def _cell(table: _Table, corpus: str, group: str) -> ComparedCell:
    corpora, cells = table
    if corpus not in corpora:
        return ComparedCell("noCorpus")
    return cells.get((corpus, group), ComparedCell("noGroup"))
