"""Mutants of tests/mutants.toml fit the tree, and find the tests of what they change."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.mutants import Mutant, importing_tests, imports, read_mutants
from tests.support.tree import ROOT


def test_each_mutant_fits_the_tree() -> None:
    mutants = read_mutants()
    assert len(mutants) >= 40
    assert [each.name for each in mutants if not each.fits(ROOT)] == []


def test_each_story_has_a_mutant_or_a_reason() -> None:
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["stories"]
    folder = ROOT / "tests"
    told = {
        str(path.relative_to(folder))
        for path in folder.rglob("test_*.py")
        if "mark.story" in path.read_text() and path.name != "test_mutants.py"
    }
    assert table.keys() == told
    named = {name for each in table.values() if isinstance(each, list) for name in each}
    assert named <= {each.name for each in read_mutants()}


def test_a_text_that_is_not_there_once_does_not_fit(tmp_path: Path) -> None:
    for text, fits in (("a = 1\n", True), ("a = 1\na = 1\n", False), ("b = 1\n", False)):
        (tmp_path / "a.py").write_text(text)
        assert Mutant("a", "of one", "a.py", "a = 1", "a = 2").fits(tmp_path) == fits
    assert not Mutant("a", "of none", "b.py", "a = 1", "a = 2").fits(tmp_path)


def test_test_files_that_import_a_module_are_found_nearest_first(tmp_path: Path) -> None:
    files = {
        "govray/gates.py": "",
        "govray/run.py": "def start() -> None:\n    from govray import gates\n",
        "govray/other.py": "",
        "tests/support/world.py": "from govray.run import start",
        "tests/train/conftest.py": "import govray.run",
        "tests/train/test_line.py": "",
        "tests/test_gates.py": "from govray.gates import Gate",
        "tests/test_all.py": "import govray.gates",
        "tests/test_world.py": "from tests.support import world",
        "tests/test_other.py": "import govray.other",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert importing_tests("govray/gates.py", tmp_path, imports(tmp_path)) == [
        "tests/test_gates.py",
        "tests/test_all.py",
        "tests/test_world.py",
        "tests/train/test_line.py",
    ]
