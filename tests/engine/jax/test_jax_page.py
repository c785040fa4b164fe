"""docs/jax.md: its rows and its governed loop run as they stand there; the plain one compiles."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from govray.engine.steps.routed_step import Framework
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "jax.md").read_text()
(DIFF,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.S | re.M)
_, ROWS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def side(sign: str) -> str:
    """The script before (-) or after (+) the change."""
    lines = DIFF.splitlines()
    return "\n".join(line[1:] for line in lines if line[:1] in (" ", sign, ""))


@pytest.mark.story
def test_the_governed_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    exec(compile(side("+"), "governed", "exec"), names)
    result = names["result"]
    assert result.group_targets["head"] == result.group_targets["adapter:notes"] == 64
    assert np.isfinite(result.loss)
    sys.modules.pop("my_rows")


def test_four_lines_are_what_changes() -> None:
    assert sum(line.startswith("+") for line in DIFF.splitlines()) == 5  # the loop's own line too
    for sign in "-+":
        compile(side(sign), "page", "exec")


def test_the_extra_and_the_functions_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "jax" in extras["optional-dependencies"]
    assert "the seven functions of `Framework`" in PAGE
    assert len([name for name in vars(Framework) if not name.startswith("_")]) == 7
