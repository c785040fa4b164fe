"""The pages whose commands train: each block runs in a shell as it stands there, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import ROOT

TUTORIAL, CORPORA = "docs/tutorial.md", "docs/corpora.md"


def section(page: str, heading: str) -> str:
    """The commands of the section whose heading begins so."""
    [found] = re.findall(rf"^## {heading}.*?(?=^## |\Z)", (ROOT / page).read_text(), re.M | re.S)
    commands = re.findall(r"^```bash\n(.*?)^```", found, re.M | re.S)
    assert commands, heading
    return "".join(commands)


@pytest.mark.slow
def test_the_tutorial_and_a_mixed_table_end_in_verified_models(tmp_path: Path) -> None:
    def shell(commands: str, folder: str = "my-deployment") -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        home = {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path / folder, env=os.environ | home, capture_output=True, text=True,
            timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shell(section(TUTORIAL, "1"), ".")
    # One shell for each page: variables of one section are used in the next.
    told = shell("".join(section(TUTORIAL, number) for number in "234567"))
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 2
    assert "IDENTICAL" in told

    headings = ("One licence", "A licence for each", "Sign", "The same", "Train")
    told = shell("".join(section(CORPORA, each) for each in headings))
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 1
    [model] = (tmp_path / "my-deployment" / "runs").glob("web-*/model")
    credentials = (model / "governance" / "credentials.jsonl").read_bytes().splitlines()
    assert len(credentials) == 7
