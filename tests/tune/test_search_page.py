"""docs/search.md: its file is accepted, its commands run, and its words are those of the code."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from govray.cli import app
from govray.tune.search_config import VARIABLE, parse_search, read_search
from tests.support.search_files import EXPERIMENT
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "search.md").read_text()


def test_its_file_is_a_search() -> None:
    [section] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    found = parse_search(EXPERIMENT | yaml.safe_load(section), where="docs/search.md")
    assert found.search.tau == 4.0
    for name in VARIABLE:
        assert f"`{name}`" in PAGE


def test_the_file_that_it_names_is_a_search_and_can_be_previewed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    dry, real = re.findall(r"^\$ govray (.*)$", PAGE, re.M)
    assert dry == f"{real} --dry-run"
    assert app.run(shlex.split(dry)) == 0
    assert "4 trials" in capsys.readouterr().out
    assert read_search(shlex.split(real)[1]).search.searcher == "asha"
