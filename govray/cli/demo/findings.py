"""What the demo found, as values: the terminal and the report tell the same story from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from govray.governance.attestation.coverage_table import Cell, CoverageTable
from govray.governance.record.e_process import least_odds
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
class PlantedList:
    """What the monitor found of the corpus that was planted to be learnt by heart.

    Attributes:
        step: The first step whose rows went elsewhere; None if the corpus was not gated.
        fallback: The profile that they went to; None if the corpus was left out, or not gated.
        groups: The layer groups that they trained from then on.
        odds: A 95 % bound of the odds ratio, in the profile that decided, or in the newest one;
            None if there is no profile.
        after: The bound in the newest profile after the gate; None without one.
        noticed: Whether it was found out after the last step, so that nothing followed.
    """

    corpus: str
    step: int | None
    fallback: str | None
    groups: tuple[str, ...]
    odds: float | None
    after: float | None
    allowed: float
    noticed: bool = False


@dataclass(frozen=True)
class Story:
    """What a whole demo found. ``replay_digest``: None if the replay was left out."""

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
    replay_digest: str | None
    rank_with: int
    rank_without: int
    candidates: int
    listed: PlantedList
    verified: VerifiedModel
    verify_seconds: float
    commands: Sequence[str]

    @property
    def verdict(self) -> str:
        if self.replay_digest is None:
            return "not replayed"
        return "identical" if self.base_digest == self.replay_digest else "DIFFERENT"


def planted_list(model: VerifiedModel, corpus: str) -> PlantedList:
    """What a verified model's ledger and gates say of a corpus. ``model``: of a run whose policy
    has a monitor."""
    section = model.policy.document.memorization
    findings = model.attestation.memorization
    assert section is not None
    assert findings is not None
    gate = next((each for each in model.gates if each.corpus == corpus), None)
    stop = gate.step if gate else math.inf
    found = [
        (profile.step, least_odds(profile.of(corpus)))
        for profile in model.ledger.profiles
        if corpus in profile.corpora
    ]
    before = [odds for step, odds in found if step < stop]
    after = [odds for step, odds in found if step >= stop]
    fallback = model.routes.fallbacks[corpus] if gate and gate.fallback else None
    return PlantedList(
        corpus=corpus,
        step=gate.step if gate else None,
        noticed=any(
            each.corpus == corpus and each.action == "noticed" for each in findings.decisions
        ),
        fallback=fallback.profile if fallback else None,
        groups=fallback.route.groups if fallback else (),
        odds=before[-1] if before else None,
        after=after[-1] if after else None,
        allowed=min(section.odds.values()),
    )


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
