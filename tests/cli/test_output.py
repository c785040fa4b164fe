"""Tables: folded at a terminal's edge, and a line for each row where a program reads them."""

from __future__ import annotations

import io

import pytest

from govray.cli import output

LONG = "s-20261124-232325-9ef78cb7"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO(), _Terminal()])
def test_a_row_is_one_line_where_a_program_reads(
    file: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.out, "_file", file)
    monkeypatch.setattr(output.out, "_width", 30)
    grid = output.table("id", "name")
    grid.row(LONG, "a name that has many words")
    output.print_table(grid)
    lines = file.getvalue().splitlines()
    assert all(len(line) <= 30 for line in lines) == file.isatty()
    assert (f"{LONG}  a name that has many words" in lines) != file.isatty()
