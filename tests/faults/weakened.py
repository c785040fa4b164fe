"""A product with one safety taken out, as a control: the same assertions must then fail."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_reader
from govray.train.inputs.order import Order
from govray.train.state import snapshot
from govray.train.worker import planned_shard

Control = Literal["digests", "resume_step"]


class _Same(str):
    """A digest that equals any other."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


_taken = pytest.MonkeyPatch()


@cache
def weaken(control: Control) -> None:
    """Take one safety out of this process, once: a driver outlives its workers."""
    if control == "digests":
        blind = {**vars(canonical_json), "sha256": lambda data: _Same(canonical_json.sha256(data))}
        _taken.setattr(commit_reader, "canonical_json", SimpleNamespace(**blind))
    else:
        latest = snapshot.latest

        def one_too_far(run_folder: Path) -> Any:
            found = latest(run_folder)
            return found and (found[0], found[1] + 1)

        _taken.setattr(snapshot, "latest", one_too_far)


def restore() -> None:
    """Put back what `weaken` took out."""
    _taken.undo()
    weaken.cache_clear()


class WeakenedPlanData(planned_shard.PlanData):
    """Resolves where a run resumes with a safety less, in the driver."""

    def __init__(self, order: Order, control: Control) -> None:
        super().__init__(order)
        self._control = control

    def configure(self, *args: Any, **kwargs: Any) -> Any:
        weaken(self._control)
        try:
            return super().configure(*args, **kwargs)
        finally:
            restore()  # the same process attests, with its safeties
