"""Patterns of gitignore(5), compared with what git itself says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from govray.storage.gitignore import Ignored
from tests.support.table import each_row

NAMES = (
    "a.log",
    "deep/a.log",
    "deep/b.txt",
    "deep/deeper/b.txt",
    "build/out.txt",
    "src/build/out.txt",
    "src/keep.log",
    "#x",
    "!x",
    "data/one.csv",
    "srcdata/two.csv",
    "[x]",
    "b c.txt",
)
LISTS = (
    ["*.log", "!keep.log"],
    ["/a.log", "deep/*.txt"],
    ["build/"],
    ["/build"],
    ["**/build/", "deep/**"],
    ["src/**/out.txt"],
    ["# nothing", "", "\\#x", "\\!x"],
    ["deep/", "!deep/a.log"],
    ["[a-b]*", "!b?c.txt"],
    ["[!a-z]*"],
    ["**/deeper/*.txt", "data"],
    ["\\[x\\]", "de*/", "b c.txt  "],
    ["*", "!src", "!src/keep.log"],
    ["[", "a.log"],
)


@each_row("lines", LISTS)
def test_the_same_names_are_left_out_as_by_git(tmp_path: Path, lines: list[str]) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("\n".join(lines))
    ignored = Ignored.read([tmp_path / ".gitignore", tmp_path / "absent"])

    def left_out(name: str) -> bool:
        parts = name.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        return any(ignored(each, True) for each in above) or ignored(name, False)

    said = subprocess.run(
        ["git", "-c", "core.quotePath=false", "check-ignore", "--no-index", *NAMES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [name for name in NAMES if left_out(name)] == said.stdout.splitlines()
