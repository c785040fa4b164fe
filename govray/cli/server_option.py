"""``govray --server URL VERB``: some verbs act through a service, and the others refuse.

The option before the verb, or GOVRAY_SERVER, names the service. With the option a verb that cannot
act there refuses. The variable alone leaves such verbs as they are, on this machine. Only what a
service has too refuses then, such as a run or a notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.platform.client import Client


VARIABLE = "GOVRAY_SERVER"
THERE_TOO = ("runs", "checkpoint", "task")
"""Families whose verbs name a run or a task, of this machine or of a service."""
_server: ContextVar[str | None] = ContextVar("server", default=None)


def taken(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The service that an option before the verb names, and the words without it."""
    for number, word in enumerate(words):
        if word.startswith("--server="):
            return word.partition("=")[2], [*words[:number], *words[number + 1 :]]
        if word == "--server":
            if number + 1 == len(words):
                raise UsageError("give an address", where="--server")
            return words[number + 1], [*words[:number], *words[number + 2 :]]
        if not word.startswith("-"):
            break
    return None, list(words)


def use(server: str | None) -> None:
    """Let the verb of this command line act at ``server``."""
    _server.set(server)


def chosen() -> str | None:
    return _server.get()


def acts_there(
    words: Sequence[str],
    commands: Mapping[str, Any],
    here: Callable[[str], Mapping[str, Any]],
    *,
    option: bool,
) -> bool:
    """Whether a command line acts through the service that is named.

    Args:
        words: Without the option.
        commands: Verb → command, of those that can.
        here: Family → its verbs of this machine.
        option: Whether an option named the service, not the variable.

    Raises:
        UsageError: It cannot, and the option asks for it, or the verb is of `THERE_TOO`.
    """
    verbs = [each for each in words if not each.startswith("-")]
    if not verbs:
        return option and "--version" not in words
    family = commands.get(verbs[0])
    below = getattr(family, "commands", None)
    if family is not None and (below is None or len(verbs) == 1 or verbs[1] in below):
        return True
    if family is not None and verbs[1] not in here(verbs[0]):
        return True  # a verb of neither, which the family's error is about
    named = f"govray {' '.join(verbs[: 1 if family is None else 2])}"
    if option:
        raise UsageError(
            f"{named} acts on this machine alone",
            where="--server",
            do=f"Leave --server out; it is for {', '.join(below or commands)}",
        )
    if verbs[0] in THERE_TOO:
        raise UsageError(
            f"{named} acts on this machine alone, and {VARIABLE} names a service",
            where=VARIABLE,
            do=f"For this machine say {VARIABLE}= {named} …",
        )
    return False


def service() -> Client:
    """The one that ``--server`` or GOVRAY_SERVER names.

    Raises:
        UsageError: Neither does.
    """
    from govray.platform.client import connect

    return connect(chosen())
