"""Which commits of a run stay, and why. Pure: values in, names out.

A run keeps the union of

* ``latest``: its newest commits, the final one among them;
* ``best``: those with the lowest loss, the mean over the steps since the commit before;
* ``pinned``: those that somebody asked for by name.

`govray.train.state.garbage_collection` looks at folders and deletes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How many commits a run keeps.

    Attributes:
        best: Those with the lowest loss.
        latest: The newest, at least one.
    """

    best: int = 1
    latest: int = 1


DEFAULT = Rules()


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit as the rules see it.

    Attributes:
        name: Of its folder.
        step: The first step that it does not hold.
        loss: Mean loss of the steps since the commit before, if it was a number.
        size: Bytes of its files.
        digest: Of its manifest.
    """

    name: str
    step: int
    loss: float | None = None
    size: int = 0
    digest: str = ""


def kept(
    commits: Collection[Commit], rules: Rules, pins: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The commits that stay: name → reasons, of ``latest``, ``best`` and ``pinned``.

    Of equal losses the newer is the better.
    """
    newest = sorted(commits, key=lambda commit: -commit.step)
    rated = [commit for commit in newest if commit.loss is not None]
    best = sorted(rated, key=lambda commit: commit.loss or 0.0)  # stable: newest first
    reasons: dict[str, tuple[str, ...]] = {}
    for reason, chosen in (
        ("latest", newest[: max(1, rules.latest)]),
        ("best", best[: rules.best]),
        ("pinned", [commit for commit in newest if commit.name in pins]),
    ):
        for commit in chosen:
            reasons[commit.name] = (*reasons.get(commit.name, ()), reason)
    return reasons
