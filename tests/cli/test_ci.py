"""CI runs what the README and CONTRIBUTING.md tell people to run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.tree import ROOT

TESTS = "pip install -e '.[dev]' && pytest -n 2"
STATIC = ["ruff format --check .", "ruff check .", "mypy ", "python docs/build_site.py"]


def test_ci_runs_the_readme_s_test_command() -> None:
    assert TESTS in (ROOT / "README.md").read_text()
    assert f'bash -c "{TESTS}"' in (ROOT / ".ci" / "run").read_text()


def test_the_check_command_is_the_documented_one() -> None:
    assert "\n./check\n" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "./check --static" in (ROOT / ".ci" / "run").read_text()


def test_ci_ends_where_a_system_package_is_missing(tmp_path: Path) -> None:
    tools = fake_tools(tmp_path / "tools", "none")
    for name in ("bash", "dirname", "mktemp", "rm", "tail"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "apt-get").symlink_to(str(shutil.which("false")))
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(tools)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("missing, and not to be installed: ")
    assert {"chromium", "openssl", "npm"} <= {*last.split()}
    assert not (tools / "ran").exists()


def fake_tools(folder: Path, failing: str) -> Path:
    """Commands that note that they ran; the one called ``failing`` fails."""
    folder.mkdir()
    for name in ("ruff", "mypy", "python", "pytest"):
        code = 1 if name == failing else 0
        tool = folder / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/ran"\nexit {code}\n')
        tool.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("failing", "ran"),
    [
        ("none", [*STATIC, "pytest -n 2 -x"]),
        ("ruff", STATIC[:1]),
        ("mypy", STATIC[:3]),
        ("python", STATIC),
    ],
)
def test_check_runs_all_and_stops_at_the_first_failure(
    tmp_path: Path, failing: str, ran: list[str]
) -> None:
    tools = fake_tools(tmp_path / "tools", failing)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / "check", "-x"], env=environment, timeout=60)
    assert (done.returncode == 0) == (failing == "none")
    assert (tools / "ran").read_text().splitlines() == ran


def test_check_fast_leaves_out_what_needs_more_than_python(tmp_path: Path) -> None:
    tools = fake_tools(tmp_path / "tools", "none")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run([ROOT / "check", "--fast"], env=environment, check=True, timeout=60)
    said = (tools / "ran").read_text()
    left_out = said.partition(" -m ")[2].splitlines()[0].removeprefix("not ").split(" and not ")
    assert left_out == ["ray", "browser", "database", "ranks", "slow"]
