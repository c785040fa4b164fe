"""What the demo found, as values: the terminal and the report tell the same story from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from govray.governance.attestation.coverage_table import Cell, CoverageTable
from govray.governance.verify.verifier import VerifiedModel


@dataclass(frozen=True)
class Refusal:
    """Quarantined records of one rule, with one example and how many more corpora it hit."""

    records: int
    rule: str
    example: str
    more: int


@dataclass(frozen=True)
class TokenGrid:
    """Tokens per licence category and column of layer groups.

    Attributes:
        columns: Layer groups, or runs of blocks with equal numbers (``block.0-1``).
        rows: (category, number of corpora).
        tokens: ``tokens[row][column]``, 0 where the category's gradient never entered.
        indirect: Whether the category may have reached the column through other layers.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[str, int]]
    tokens: Sequence[Sequence[int]]
    indirect: Sequence[Sequence[bool]]

    def mark(self, row: int, column: int) -> str:
        """A number, ``~`` (only indirectly) or ``-`` (neither)."""
        if self.tokens[row][column]:
            return short(self.tokens[row][column])
        return "~" if self.indirect[row][column] else "-"


@dataclass(frozen=True)
class Story:
    """Everything the demo measured."""

    versions: Mapping[str, str]
    corpora: int
    admitted: int
    quarantined: int
    refusals: Sequence[Refusal]
    steps: int
    losses: Sequence[float]
    train_seconds: float
    replay_seconds: float
    share_read: float
    table: TokenGrid
    adapter: str
    adapter_bytes: int
    base_digest: str
    replay_digest: str
    rank_with: int
    rank_without: int
    candidates: int
    verified: VerifiedModel
    verify_seconds: float
    commands: Sequence[str]

    @property
    def identical(self) -> bool:
        return self.base_digest == self.replay_digest


def short(count: int) -> str:
    """A count in at most five characters: 850, 12.3k, 2.15M."""
    if count < 1000:
        return str(count)
    if count < 1_000_000:
        return f"{count / 1000:.3g}k"
    return f"{count / 1e6:.2f}M"


def tabulate(coverage: CoverageTable) -> TokenGrid:
    """Coverage by licence category, neighbouring blocks with equal cells folded into one column."""
    categories = coverage.categories
    columns: list[tuple[str, list[Cell]]] = []
    for group in coverage.groups:
        cells = [coverage[category, group] for category in categories]
        if columns and group.startswith("block.") and columns[-1][0].startswith("block."):
            name, before = columns[-1]
            if _marks(before) == _marks(cells):
                first = name.partition("-")[0]
                columns[-1] = (f"{first}-{group.removeprefix('block.')}", cells)
                continue
        columns.append((group, cells))
    return TokenGrid(
        columns=[name for name, _ in columns],
        rows=[(category, len(coverage.members(category))) for category in categories],
        tokens=[[cells[row].tokens for _, cells in columns] for row in range(len(categories))],
        indirect=[[cells[row].indirect for _, cells in columns] for row in range(len(categories))],
    )


def _marks(cells: Sequence[Cell]) -> list[tuple[int, bool]]:
    return [(cell.tokens, cell.indirect) for cell in cells]
