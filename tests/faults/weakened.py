"""A product that compares no digests, as a control: the same assertions must then fail."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_reader
from govray.train.worker import planned_shard


class _Same(str):
    """A digest that equals any other."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


_taken = pytest.MonkeyPatch()


@cache
def weaken() -> None:
    """Let digests go uncompared in this process, once: a driver outlives its workers."""
    blind = {**vars(canonical_json), "sha256": lambda data: _Same(canonical_json.sha256(data))}
    _taken.setattr(commit_reader, "canonical_json", SimpleNamespace(**blind))


def restore() -> None:
    """Put back what `weaken` took out."""
    _taken.undo()
    weaken.cache_clear()


class WeakenedPlanData(planned_shard.PlanData):
    """Resolves where a run resumes without comparing, in the driver."""

    def configure(self, *args: Any, **kwargs: Any) -> Any:
        weaken()
        try:
            return super().configure(*args, **kwargs)
        finally:
            restore()  # the same process attests, with its safeties
