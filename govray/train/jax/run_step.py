"""A step over JAX as a run calls it: batches of torch's tensors in, and an agreement beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from govray.engine.collective.agreement import Agreement
from govray.engine.steps.batch import StepBatch
from govray.engine.steps.routed_step import RoutedStep
from govray.engine.steps.step_result import StepResult


class RunStep:
    """Implements `govray.train.worker.run.StepFunction`.
    ``agreement``: over torch's processes, which are JAX's."""

    def __init__(self, step: RoutedStep, agreement: Agreement) -> None:
        self.agreement = agreement
        self._step = step

    def __call__(self, batch: StepBatch, loss_fn: Callable[..., Any]) -> StepResult:
        """As `RoutedStep`; tensors of the batch are on the CPU."""
        parts = (
            replace(part, tensors={name: t.numpy() for name, t in part.tensors.items()})
            for part in batch.micro_batches
        )
        return self._step(replace(batch, micro_batches=tuple(parts)), loss_fn)

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        """As `RoutedStep`."""
        self._step.leave_out(corpora)

    def reroute(self, corpora: Mapping[str, str]) -> None:
        """As `RoutedStep`."""
        self._step.reroute(corpora)

    def require_sound(self) -> None:
        """As `RoutedStep`."""
        self._step.require_sound()
