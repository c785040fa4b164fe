"""docs/exports.md: its commands run as they stand, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from govray.exports.export_format import FORMATS, NAMES, SIGNED, SIGNED_PLACE
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "exports.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.slow
def test_its_commands_run(model: Path, root: Path, at: str, tmp_path: Path) -> None:
    model.rename(tmp_path / "MODEL")
    root.rename(tmp_path / "ROOT")
    tools = tmp_path / "bin"
    tools.mkdir()
    python = Path(sys.executable)
    # The model is checked as of its deployment's time.
    (tools / "govray").write_text(
        f'#!/bin/sh\n[ "$1" = export ] && set -- "$@" --at {at}\n'
        f'exec {python.with_name("govray")} "$@"\n'
    )
    (tools / "govray").chmod(0o755)
    path = f"{tools}:{python.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "".join(BLOCKS)],
        cwd=tmp_path, env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verification succeeded" in done.stdout + done.stderr
    made = {each.name for each in (tmp_path / "MODEL.exports").iterdir()}
    assert made == {SIGNED_PLACE, *(each.place for each in FORMATS.values())}


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
