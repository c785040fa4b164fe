"""A guessed verb is answered by the one that was meant, and never by harm that is spelt like it."""

from __future__ import annotations

import itertools
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from govray.cli import guessed_verbs, remote
from govray.cli.app import app
from tests.support.command import Run

THERE = ("--server", "http://127.0.0.1:1")
GROUPS = {
    f"{'there' if of is remote.app else 'here'} {name}": group
    for of in (app, remote.app)
    for name, group in get_command(of).commands.items()  # type: ignore[attr-defined]
    if isinstance(group, TyperGroup)
}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["experiments", "metrics"], "runs metrics"),
        (["experiments", "logs"], "runs logs"),
        ([*THERE, "experiments", "metrics"], "runs metrics"),
        (["model", "ls"], "model versions"),
        ([*THERE, "model", "ls"], "model versions"),
        (["queue", "ls"], "--server URL experiments ls --state QUEUED"),
        (["runs", "delete"], "--server URL runs delete"),
        (["runs", "unhold"], "runs release"),
        (["runs", "list"], "runs ls"),
        (["adapter", "rm"], "adapter remove"),
        (["model", "verify"], "verify"),
    ],
    ids=" ".join,
)
def test_a_guess_is_answered_by_what_was_meant(run: Run, words: list[str], meant: str) -> None:
    said = run(*words, "x", code=2).err
    assert f"Did you mean 'govray {meant}'?" in said
    verb = meant.removeprefix("--server URL ").split()[:2]
    found: Any = get_command(remote.app if meant.startswith("--server") else app)
    for each in verb:
        found = found.commands[each]  # it is there


@pytest.mark.parametrize("family", ["report", "view"])
@pytest.mark.parametrize("given", ["MODEL", "runs/tiny/model", "here"])
def test_where_a_model_stands_a_verb_comes_first(
    run: Run, tmp_path: Path, family: str, given: str
) -> None:
    (tmp_path / "here").mkdir()
    verbs = ", ".join(GROUPS[f"here {family}"].commands)
    assert f"A verb comes first: {verbs}." in run(family, given, code=2).err


def misspelt(verb: str) -> set[str]:
    """A letter away, left out, doubled, or two of them exchanged."""
    found = set()
    for at, letter in enumerate(verb):
        found |= {verb[:at] + verb[at + 1 :], verb[:at] + letter + verb[at:]}
        found |= {
            verb[:at] + "e" + verb[at + 1 :],
            verb[:at] + verb[at : at + 2][::-1] + verb[at + 2 :],
        }
    return found


@pytest.mark.parametrize("where", GROUPS)
def test_no_verb_that_destroys_or_lifts_a_hold_is_suggested_for_its_spelling(where: str) -> None:
    group = GROUPS[where]
    assert isinstance(group, guessed_verbs.Family)
    family = where.split()[1]
    harm = guessed_verbs.SPELT_OUT_ALONE & {*group.commands}
    for word in set(itertools.chain(*map(misspelt, group.commands))) - {*group.commands}:
        if word in guessed_verbs._MEANT:
            continue  # for what it means
        for meant in group._meant(family, word):
            assert meant.split()[-1] not in harm, (word, meant)


def test_the_control_spelling_alone_would_lift_a_hold() -> None:
    assert get_close_matches("delete", GROUPS["here runs"].commands) == ["release"]
