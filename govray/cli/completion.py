"""``govray completion``: what a shell needs to complete a line, and the answers to its questions.

The shell asks by running ``govray`` with the variable `ASKED` and the words of the line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import typer

from govray.cli.output import line, report
from govray.cli.server_option import service
from govray.errors import GovrayError

ASKED = "_GOVRAY_COMPLETE"
_LISTED = 200


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.")
    ],
) -> None:
    """Print a script that completes verbs, options and ids in a shell.

    For bash: eval "$(govray completion bash)"
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="govray", complete_var=ASKED, shell=shell)
    report({"script": script})
    for each in script.splitlines():
        line(each)


def words() -> Sequence[str]:
    """The words of the line up to the cursor, without the command. The last one is begun."""
    if "COMP_WORDS" in os.environ:
        given, stop = os.environ["COMP_WORDS"], int(os.environ.get("COMP_CWORD", 0)) + 1
        found = given.split("\n" if "\n" in given else None)
        return [*found[1:stop], *([""] if len(found) < stop else [])]
    given = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    found = given.split()
    return [*found[1:], *([""] if given.endswith(" ") or len(found) < 2 else [])]


def ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the verb's noun that begin so, the latest first: of those that a service lists.
    None where it can't be asked, for a shell has no place for an error."""
    noun = ctx.parent.info_name if ctx.parent else None
    kind = {"experiments": "experiments", "task": "tasks", "model": "models"}.get(
        noun or "", "runs"
    )
    try:
        rows: Any = islice(getattr(service(), kind).list(), _LISTED)
        listed = [getattr(each, "id", None) or each.name for each in rows]
    except GovrayError:
        return []
    return [each for each in listed if each.startswith(incomplete)]


def complete(command: Any) -> int:
    """Print what could stand next on the line, and return the exit code."""
    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    completion_init()
    return shell_complete(command, {}, "govray", ASKED, os.environ[ASKED])
