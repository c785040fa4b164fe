"""The tour names places that are there, and stays a tour."""

from __future__ import annotations

import ast
import re

from tests.support.page_commands import part
from tests.support.table import each_row
from tests.support.tree import ROOT

TOUR = part("docs/architecture.md", "The tour")
PLACES = re.findall(r"`([\w/]+\.py):(\w+)`", TOUR)


def test_it_is_short_and_has_twelve_places() -> None:
    assert len(TOUR.split()) <= 600
    assert len(PLACES) == 12


@each_row(("file", "name"), PLACES)
def test_what_it_names_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "govray" / file).read_bytes())
    kinds = (ast.FunctionDef, ast.ClassDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_its_test_files_are_there() -> None:
    named = re.findall(r"tests/[\w/]+\.py", TOUR)
    assert named
    assert all((ROOT / each).is_file() for each in named)
