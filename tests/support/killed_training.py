"""A training in this process that dies between two of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from govray.train.worker import run as worker


class Killed(BaseException):
    """As a process ends: nothing is settled, and nobody hears of it."""


def killed_after(steps: int, train: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train so many steps, wait for the commits of these, and die."""
    kills = iter([False] * steps + [True])
    advance_of = worker.Run.advance

    def advance(each: worker.Run, *arguments: Any) -> Any:
        if next(kills, False):
            each._commits.settle(None)
            raise Killed
        return advance_of(each, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(worker.Run, "advance", advance)
        with pytest.raises(Killed):
            train()
