"""docs/exports.md: its tables name what there is."""

from __future__ import annotations

from govray.evidence.exports.export_format import FORMATS, NAMES, SIGNED, SIGNED_PLACE
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "exports.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its header first."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_its_table_has_every_format_and_its_file() -> None:
    found = {row[0].strip("`"): row[2].strip("`") for row in rows("Write them")[2:]}
    assert list(found) == list(NAMES)
    assert found.pop(SIGNED) == SIGNED_PLACE
    for name, file in found.items():
        of = FORMATS[name]
        made = f"{of.place}/{of.each.upper()}{of.suffix}" if of.each else of.place
        assert file == made


def test_the_mapping_has_every_format() -> None:
    header, _, *facts = rows("What each can carry")
    assert [each.strip("`") for each in header[1:]] == list(NAMES)
    assert len(facts) > 20
    assert all(len(row) == len(header) for row in facts)
