"""What is set, row by row, in several runs: rows that differ come first and are marked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from govray.governance.attestation.environment import flat
from govray.platform.service.pages.rendering import digest

ABSENT = "–"
MOST_ROWS = 200
"""Of one table."""
_LONGEST = 300


@dataclass(frozen=True)
class ComparedRow:
    """One setting: its value in each run as text, `ABSENT` where a run has none."""

    name: str
    values: tuple[str, ...]
    differs: bool


def compared_rows(settings: Sequence[Mapping[str, Any]]) -> list[ComparedRow]:
    """A row for each name that any of ``settings`` has; nested ones by dotted names."""
    columns = [flat(each) for each in settings]
    names = sorted({name for column in columns for name in column})
    rows = [
        ComparedRow(
            name,
            tuple(shortened(column[name]) if name in column else ABSENT for column in columns),
            # By the whole text: what is cut for the eye may still differ.
            len({column.get(name) for column in columns}) > 1,
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: not row.differs)


def shortened(text: str) -> str:
    if text.startswith("sha256:"):
        return digest(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
