"""``python -m tests.mutants``: does the default set notice when code that carries a claim is wrong?

Each mutant of mutants.toml breaks one claim in a copy of the tree. Then the test files run that
import the changed module, nearest first, up to the first failure or `BOUND_S` of test time. A
mutant that no test fails of has survived. At the end each test that failed runs on the unchanged
copy, where it has to pass.

It needs what the tests need. ``--tree`` takes another checkout, such as one of an earlier commit;
mutants whose text isn't there are listed as such. 0: all were caught. 1: one survived, or a test
fails without its mutant. 2: a mutant no longer fits this tree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOUND_S = 60
"""Of test time. Start-up and collecting don't count."""

FILES_AT_ONCE = 8
"""Test files of one start of pytest: more take longer to collect than the nearest take to fail."""

NOT_STARTED_S = 300
"""Beyond `BOUND_S`, so that a mutant that hangs at the import ends too."""

ALL_AGAIN_S = 900
"""Of all tests that caught a mutant, on the unchanged copy."""

LEFT_OUT = (".git", ".venv", "build", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache")


@dataclass(frozen=True)
class Mutant:
    """``text`` stands once in ``file``; with ``becomes`` in its place ``claim`` doesn't hold.

    ``tests`` run before those that import the file.
    """

    name: str
    claim: str
    file: str
    text: str
    becomes: str
    tests: Sequence[str] = ()

    def fits(self, tree: Path) -> bool:
        """Whether the text stands in the tree's file, once."""
        file = tree / self.file
        return file.is_file() and file.read_text().count(self.text) == 1


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        caught: The test that failed; None if there was none.
        seconds: Of test time.
        note: What there is to say beside.
    """

    mutant: str
    claim: str
    caught: str | None = None
    seconds: float = 0.0
    note: str = ""


def read_mutants(path: Path = HERE / "mutants.toml") -> list[Mutant]:
    """All mutants. A name stands once, and a change changes something."""
    found = [Mutant(**each) for each in tomllib.loads(path.read_text())["mutant"]]
    assert len({each.name for each in found}) == len(found)
    assert all(each.text != each.becomes for each in found)
    return found


def imports(tree: Path) -> dict[str, set[str]]:
    """Module → the modules of the tree that it imports, at the top or in a function.

    A test imports what the conftest.py of its folder does, but for the one at the top of all.
    """
    files = {
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("govray", "tests")
        for path in (tree / package).rglob("*.py")
    }
    found = {name: {*_imported(path)} & files.keys() for name, path in files.items()}
    for name in files:
        conftest = f"{name.rpartition('.')[0]}.conftest"
        if conftest in files and conftest not in (name, "tests.conftest"):
            found[name].add(conftest)
    return found


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importing_tests(file: str, tree: Path, graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The test files that import a module, nearest first.

    Of equally near ones those come first whose name and folder are most like the module's, then
    the longest, which have most cases.
    """
    module = file.removesuffix(".py").replace("/", ".")
    users: dict[str, list[str]] = {}
    for user, used in graph.items():
        for each in used:
            users.setdefault(each, []).append(user)
    distance, reached = {module: 0}, [module]
    for each in reached:
        for user in users.get(each, ()):
            if user not in distance:
                distance[user] = distance[each] + 1
                reached.append(user)
    words = {*module.replace(".", "_").split("_")}

    def near(name: str) -> tuple[int, int, int]:
        alike = len(words.intersection(name.replace(".", "_").split("_")))
        return distance[name], -alike, -(tree / path_of(name)).stat().st_size

    tests = [name for name in sorted(reached) if name.rpartition(".")[2].startswith("test_")]
    return [path_of(name) for name in sorted(tests, key=near)]


def path_of(module: str) -> str:
    """A module's file, below the tree."""
    return f"{module.replace('.', '/')}.py"


def run_tests(
    copy: Path, tests: Sequence[str], bound: float, *more: str
) -> tuple[list[str], float]:
    """The tests of these that failed, and the seconds that the tests took; at most ``bound``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        shutil.copy(HERE / "support" / "bounded_run.py", folder)
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(copy), folder]),
            "BOUND_S": str(bound),
            "REPORT": str(report),
        }
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bounded_run", *more, *tests]
        run = subprocess.Popen(
            [sys.executable, *words],
            cwd=copy,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            run.wait(bound + NOT_STARTED_S)
        with suppress(ProcessLookupError):  # what tests started, too
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        if not report.exists():  # it never came as far as a test
            assert run.returncode < 0, f"pytest ends with {run.returncode}, and tells nothing"
            return [], bound
        found = json.loads(report.read_text())
    return found["failed"], found["seconds"]


def try_mutant(
    mutant: Mutant, copy: Path, graph: Mapping[str, Iterable[str]], bound: float = BOUND_S
) -> Outcome:
    """Change the copy, run its tests, and change it back."""
    file = copy / mutant.file
    before, times = file.read_bytes(), file.stat()
    spent, ran = 0.0, 0
    left = iter(importing_tests(mutant.file, copy, graph))
    file.write_text(file.read_text().replace(mutant.text, mutant.becomes))
    try:
        some = [*mutant.tests] or [*islice(left, FILES_AT_ONCE)]
        while spent < bound and some:
            failed, seconds = run_tests(copy, some, bound - spent, "-x")
            spent, ran = spent + seconds, ran + len(some)
            if failed:
                return Outcome(mutant.name, mutant.claim, failed[0], spent)
            some = [*islice(left, FILES_AT_ONCE)]
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that compiled files hold
    note = f"not caught within {bound:g} s" if spent >= bound else f"survived {ran} files"
    return Outcome(mutant.name, mutant.claim, None, spent, note)


def without_mutants(copy: Path, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes; a test that fails on the unchanged copy too has caught nothing."""
    caught = sorted({each.caught for each in outcomes if each.caught})
    failed, seconds = run_tests(copy, caught, ALL_AGAIN_S) if caught else ([], 0.0)
    assert seconds < ALL_AGAIN_S, "the tests that caught a mutant don't end without them"
    return [
        Outcome(each.mutant, each.claim, None, each.seconds, f"{each.caught} fails without it")
        if each.caught in failed
        else each
        for each in outcomes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and print a line for each mutant."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--tree", type=Path, help="another checkout; this one by default")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="mutants with one in their name"
    )
    parser.add_argument("--bound", type=float, default=BOUND_S, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    tree = (options.tree or HERE.parent).resolve()
    mutants = [each for each in read_mutants() if any(word in each.name for word in options.only)]
    fit = [each for each in mutants if each.fits(tree)]
    other = [each for each in mutants if each not in fit]
    if other and options.tree is None:
        for each in other:
            print(f"mutant {each.name} no longer fits {each.file}", file=sys.stderr)
        return 2
    outcomes = [Outcome(each.name, each.claim, None, 0.0, "its text isn't there") for each in other]
    graph = imports(tree)
    with tempfile.TemporaryDirectory() as folder:
        free: queue.Queue[Path] = queue.Queue()
        for number in range(options.jobs):
            copy = Path(folder, str(number), tree.name)
            shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
            free.put(copy)

        def tried(mutant: Mutant) -> Outcome:
            copy = free.get()
            try:
                outcome = try_mutant(mutant, copy, graph, options.bound)
            finally:
                free.put(copy)
            said = f"{outcome.mutant}: {outcome.seconds:.1f} s, {outcome.caught or outcome.note}"
            print(said, file=sys.stderr, flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            tried_all = [*pool.map(tried, fit)]
        outcomes += without_mutants(free.get(), tried_all)
    for each in outcomes:
        print(f"{each.mutant:24} {each.seconds:5.1f} s  {each.caught or each.note.upper()}")
        print(f"    {each.claim}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    caught = sum(each.caught is not None for each in outcomes)
    print(f"{caught} of {len(fit)} caught, {len(other)} without their text")
    return 0 if caught == len(fit) else 1


if __name__ == "__main__":
    sys.exit(main())
