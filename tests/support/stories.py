"""Stories: tests too long for every landing, which show one thing more than the others.

``pytest`` leaves them out and says how many there are. ``pytest --stories`` runs them alone, and
``--stories WORD`` those with the word in their name. ``--stories turn`` runs the part that is due
by the number of commits. CI does that, so in the long run each story has its turn.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TURNS = 6
"""`--stories turn` runs one of so many parts."""

RUN, LEFT = "stories run", "stories left out"
"""What a worker of pytest-xdist tells of."""

_told: dict[str, set[str]] = {RUN: set(), LEFT: set()}


def chosen(stories: Sequence[str], which: str | None, commits: int = 0) -> list[str]:
    """Of the names of all stories, in order, those to run."""
    if which is None:
        return []
    if which == "turn":
        return [*stories[commits % TURNS :: TURNS]]
    return [name for name in stories if which in name]


def commits_here(root: Path) -> int:
    """The number of commits that a checkout stands on."""
    words = ["git", "-C", str(root), "rev-list", "--count", "HEAD"]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stories",
        nargs="?",
        const="",
        metavar="WHICH",
        help="run the stories alone: all of them, those with WHICH in their name, or with 'turn' "
        f"one of {TURNS} parts, by the number of commits",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the stories out, or all else."""
    which = config.getoption("stories")
    stories = [item.nodeid for item in items if item.get_closest_marker("story")]
    commits = commits_here(config.rootpath) if which == "turn" else 0
    due = {*chosen(stories, which, commits)}
    _told[RUN] |= due
    _told[LEFT] |= {*stories} - due
    left = {*stories} - due if which is None else {item.nodeid for item in items} - due
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that prints."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update({key: sorted(names) for key, names in _told.items()})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The process that prints hears from a worker."""
    for key, names in _told.items():
        names.update(getattr(node, "workeroutput", {}).get(key, ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Which stories ran, and which not: names with ``--stories``, else a number."""
    run, left = (sorted(_told[key]) for key in (RUN, LEFT))
    if config.getoption("stories") is not None:
        terminalreporter.section(f"stories: {len(run)} run, {len(left)} not")
        for name in run:
            terminalreporter.line(f"run      {name}")
        for name in left:
            terminalreporter.line(f"not run  {name}")
    elif left:
        terminalreporter.line(f"Stories not run: {len(left)}. pytest --stories runs them.")
