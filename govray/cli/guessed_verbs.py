"""What an error says of a verb that there is not: the one that was meant.

A verb is suggested for what it means, or for how it is spelt. One that destroys, or lifts what
keeps something, is never suggested for its spelling.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from govray.cli import server_option
from govray.errors import nearest

SPELT_OUT_ALONE = frozenset(
    {"delete", "disable", "gc", "kill", "release", "remove", "revoke", "rm", "sign-out", "sweep"}
    | {"unbind", "unpin"}
)
"""Verbs that destroy, or lift what keeps something."""

_MEANT = {
    "add": ("new", "bind"),
    "cancel": ("stop",),
    "create": ("new",),
    "delete": ("rm", "remove", "revoke"),
    "describe": ("show",),
    "get": ("show",),
    "info": ("show",),
    "list": ("ls",),
    "remove": ("delete", "rm", "revoke", "unbind"),
    "rm": ("delete", "remove", "revoke"),
    "start": ("run",),
    "status": ("show",),
    "unhold": ("release",),
}
"""A guess → verbs that mean it, of which a family has one."""

_ELSEWHERE = {
    ("experiments", "logs"): "runs logs",
    ("experiments", "metrics"): "runs metrics",
    ("model", "list"): "model versions",
    ("model", "ls"): "model versions",
    ("queue", "list"): "experiments ls --state QUEUED",
    ("queue", "ls"): "experiments ls --state QUEUED",
    ("queue", "submit"): "train",
}
_OF_A_SERVICE = ("experiments", "train")


class Family(TyperGroup):
    """Verbs about one thing."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if (hint := self.hint(ctx.info_name, args[0])) is not None:
                error.message = f"No such command {args[0]!r}.{hint}"
            raise

    def hint(self, family: str, word: str) -> str | None:
        """What an error says of ``word``; None: what typer says."""
        found = None if "/" in word or os.path.lexists(word) else self._meant(family, word)
        if (meant := next(found or iter(()), None)) is not None:
            return f" Did you mean 'govray {meant}'?"
        return f" A verb comes first: {', '.join(self.commands)}."

    def _meant(self, family: str, word: str) -> Iterator[str]:
        from govray.cli.app import verbs_here, verbs_there

        if (other := _ELSEWHERE.get((family, word))) is not None:
            there = other.startswith(_OF_A_SERVICE)
            yield f"--server URL {other}" if there else other
        guesses = (word, *_MEANT.get(word, ()))
        for each in guesses:
            if each in self.commands:
                yield f"{family} {each}"
        if server_option.chosen() is None:
            served = verbs_there(family)
            yield from (f"--server URL {family} {each}" for each in guesses if each in served)
        if word in verbs_here():
            yield word
        by_spelling = nearest(word, {*self.commands} - SPELT_OUT_ALONE)
        if by_spelling is not None:
            yield f"{family} {by_spelling}"
