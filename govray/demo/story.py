"""What the demo found, as values: the terminal and the report tell the same story from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Quarantined records of one rule, with one example and how many more corpora it hit."""

    records: int
    rule: str
    example: str
    more: int


@dataclass(frozen=True)
class CoverageTable:
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
    packages: int
    admitted: int
    quarantined: int
    refusals: Sequence[Refusal]
    parameters: int
    blocks: int
    steps: int
    losses: Sequence[float]
    train_seconds: float
    replay_seconds: float
    share_read: float
    table: CoverageTable
    adapter: str
    adapter_bytes: int
    base_digest: str
    replay_digest: str
    rank_with: int
    rank_without: int
    candidates: int
    files: int
    attestation_digest: str
    signer: str
    policy: str
    levels: Mapping[str, int]
    verify_seconds: float
    assurance: str
    disclaimer: str
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


def tabulate(
    groups: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    tokens: Mapping[tuple[str, str], int],
    indirect: Mapping[tuple[str, str], bool],
) -> CoverageTable:
    """Sum corpora by category and fold neighbouring blocks with equal cells into one column.

    Args:
        groups: Layer groups in canonical order, adapters last.
        categories: Licence category to its corpora.
        tokens, indirect: By (corpus, group); absent means none.
    """

    def cells(group: str) -> list[tuple[int, bool]]:
        return [
            (
                sum(tokens.get((corpus, group), 0) for corpus in corpora),
                any(indirect.get((corpus, group), False) for corpus in corpora),
            )
            for corpora in categories.values()
        ]

    columns: list[list[str]] = []
    for group in groups:
        previous = columns[-1][-1] if columns else ""
        folds = group.startswith("block.") and previous.startswith("block.")
        if folds and cells(group) == cells(previous):
            columns[-1].append(group)
        else:
            columns.append([group])
    by_column = [cells(members[0]) for members in columns]
    return CoverageTable(
        columns=[_column(members) for members in columns],
        rows=[(category, len(corpora)) for category, corpora in categories.items()],
        tokens=[[column[row][0] for column in by_column] for row in range(len(categories))],
        indirect=[[column[row][1] for column in by_column] for row in range(len(categories))],
    )


def _column(members: Sequence[str]) -> str:
    if len(members) == 1:
        return members[0]
    return f"{members[0]}-{members[-1].removeprefix('block.')}"
