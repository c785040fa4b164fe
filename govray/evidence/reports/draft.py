"""A draft: sections of fields, each filled from a record, answered by the provider, or missing.

The forms of a draft (``web_page.py``, ``word_file.py``, `Draft.to_json`) show the same fields in
the same order.

Invariants:
    * A field that no record and no provider states is ``missing``. It may show what is known in
      part, and then says whose part lacks.
    * A record comes before the provider's word. What the provider states beside one is listed, and
      not mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

HEADLINE = "Draft for the provider's review"

State: TypeAlias = Literal["filled", "asked", "missing"]
"""From a record; from the provider's signed statement; from nowhere."""


@dataclass(frozen=True)
class Grid:
    """Rows of a field that has many; every row has a cell for each column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Field:
    """One field of a report.

    Attributes:
        key: Its section and name, such as ``1.3 languages``; unique in a report.
        lines: What it says; of a missing one, what is known in part.
        source: Which record or statement; of a missing one, who would have to state it.
        ask: The field of the provider's statement that answers it, if one does.
    """

    key: str
    label: str
    state: State
    lines: tuple[str, ...]
    source: str
    grid: Grid | None = None
    ask: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For machines; texts as they are in the records."""
        told: dict[str, Any] = {
            "key": self.key,
            "label": self.label,
            "state": self.state,
            "value": list(self.lines),
            "source": self.source,
        }
        if self.grid is not None:
            told["table"] = {
                "columns": list(self.grid.columns),
                "rows": [list(row) for row in self.grid.rows],
            }
        if self.ask is not None:
            told["asks"] = self.ask
        return told


@dataclass(frozen=True)
class ReportSection:
    number: str
    title: str
    fields: tuple[Field, ...]

    @property
    def level(self) -> int:
        """How deep its heading is: 2 below the title, 3 below a heading, and so on."""
        return 2 + self.number.count(".")


@dataclass(frozen=True)
class Draft:
    """A whole report.

    Attributes:
        basis: What it follows, in a sentence each: the template, and the documents that were
            verified.
        unused: Fields of the provider's statement that no field of the report took.
    """

    title: str
    basis: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    unused: tuple[str, ...] = ()

    @property
    def fields(self) -> Iterator[Field]:
        return (field for section in self.sections for field in section.fields)

    def count(self, state: State) -> int:
        return sum(field.state == state for field in self.fields)

    @property
    def summary(self) -> str:
        """How many fields are filled, asked and missing, in a sentence."""
        return (
            f"{self.count('filled')} fields are filled from records, {self.count('asked')} were "
            f"answered by the provider, {self.count('missing')} are missing."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "headline": HEADLINE,
            "title": self.title,
            "basis": list(self.basis),
            "counts": {
                "filled": self.count("filled"),
                "asked": self.count("asked"),
                "missing": self.count("missing"),
            },
            "sections": [
                {
                    "number": each.number,
                    "title": each.title,
                    "fields": [field.to_json() for field in each.fields],
                }
                for each in self.sections
            ],
            "unused": list(self.unused),
        }

    def json_file(self) -> bytes:
        """The same as a file: ASCII, indented, one final newline."""
        return f"{json.dumps(self.to_json(), indent=2)}\n".encode()


def joined(words: Sequence[str], most: int = 40) -> str:
    """Words in a line; of many, the first and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
