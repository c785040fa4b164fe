"""What a run knows of the metric that it is judged by: the best value, and whether to end early.

`BestSoFar` is pure, so all ranks decide alike from equal numbers. It is part of every commit
(``state.json``), so a run that is resumed decides as if it had not been interrupted.

A value that is no finite number is no better than any other. Nor is one that canonical JSON cannot
hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from govray.governance.formats import canonical_json
from govray.storage.place import Place
from govray.train.checkpoint.commit_folder import open_commit
from govray.train.checkpoint.storage import latest
from govray.train.experiment.sections import Validation
from govray.train.state.carried_governance import STATE

LARGEST = 2.0**53
"""Canonical JSON has no numbers from here to 1e21, and a commit has the best as one."""


@dataclass(frozen=True, kw_only=True)
class BestSoFar:
    """After some step.

    Attributes:
        best: The best value, if there is one.
        best_step: The number of steps done when it was measured.
        step, value: The same of the newest value. None if that is no number.
        waited: Values since the best one.
        ended: Whether they are as many as the run waits for. Then it ends.
    """

    best: float | None = None
    best_step: int = 0
    step: int = 0
    value: float | None = None
    waited: int = 0
    ended: bool = False

    def after(self, step: int, value: float, section: Validation) -> BestSoFar:
        """The same with one more value, measured when ``step`` steps were done."""
        early = section.early_stopping
        known = value if abs(value) < LARGEST else None
        measured = replace(self, step=step, value=known)
        if known is not None and self._improved(known, section):
            return replace(measured, best=known, best_step=step, waited=0)
        waited = self.waited + 1
        return replace(
            measured, waited=waited, ended=early is not None and waited >= early.patience
        )

    def _improved(self, value: float, section: Validation) -> bool:
        if self.best is None:
            return True
        least = section.early_stopping.min_delta if section.early_stopping else 0.0
        gained = self.best - value if section.better == "min" else value - self.best
        return gained > 0 and gained >= least

    def measured(self, step: int) -> float | None:
        """The value of the state after which ``step`` is next, if that was measured."""
        return self.value if self.step == step else None

    def to_json(self) -> dict[str, Any]:
        return {name: each for name, each in asdict(self).items() if each is not None}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> BestSoFar:
        """What a commit's ``state.json`` says."""
        return cls(**state.get("validation", {}))


def ended_early(run_folder: Place, step: int) -> bool:
    """Whether the run's newest commit, of this step, is one that it ends with."""
    found = latest(run_folder)
    if found is None or found[1] != step:
        return False
    state: Any = canonical_json.parse_canonical(open_commit(found[0]).files[STATE])
    return BestSoFar.of_state(state).ended
