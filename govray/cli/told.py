"""What a service answers as JSON, told as a table or as fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from govray.cli.output import field, line, print_table, report, table


def tell_rows(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], none: str) -> None:
    """A listing. ``columns``: heading → field; ``none`` is said in the place of an empty table."""
    found = list(rows)
    report(found)
    if not found:
        line(none)
        return
    grid = table(*columns)
    for row in found:
        grid.row(*(_text(row.get(each)) for each in columns.values()))
    print_table(grid)


def tell_fields(title: str, value: Mapping[str, Any]) -> None:
    """One thing, each of its fields that says something."""
    report(value)
    line(title)
    for name, each in value.items():
        if each not in (None, [], {}, ""):
            field(name, _text(each))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items())
    return str(value)
