"""What is described and never answered fails a run of all tests of the platform, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import ROOT

DESCRIBES = """
from tests.support.answered import DECLARED, told

def test_describes():
    told[DECLARED].add("GET /v1/nothing 200")
"""


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        ([], True),
        (["-p", "no:cacheprovider"], True),  # a checkout that can't be written
        (["--lf"], False),
    ],
)
def test_a_whole_run_is_compared_with_pytests_cache_and_without(
    options: list[str], compared: bool, tmp_path: Path
) -> None:
    (tmp_path / "tests" / "platform").mkdir(parents=True)
    (tmp_path / "tests" / "platform" / "test_one.py").write_text(DESCRIBES)
    plugins = ["-p", "tests.support.answered", "-p", "tests.support.stories"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--rootdir", tmp_path, *options, tmp_path],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("answered in no test of the platform: GET /v1/nothing 200" in done.stdout) == compared
    assert done.returncode == (1 if compared else 0), done.stdout + done.stderr
