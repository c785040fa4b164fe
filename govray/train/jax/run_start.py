"""`govern` for JAX: from a Flax model and an Optax optimizer to one worker's part of a run.

Every collaborator of a `Run` is made here, in the same order on all ranks, as
`govray.train.worker.run_start` does for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import optax
import torch
import torch.distributed as dist
from flax import nnx
from jax import Array
from torch import nn

from govray.engine.collective.agreement import Agreement
from govray.engine.jax.flax_framework import FlaxFramework
from govray.engine.jax.layer_groups import layer_groups
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.jax.step import build_step
from govray.engine.steps.batch import StepBatch
from govray.engine.steps.routed_step import RoutedStep
from govray.engine.steps.step_result import StepResult
from govray.errors import UsageError
from govray.storage.place import place
from govray.train.inputs.gating import Gating
from govray.train.inputs.order import Assignment, Discovery, current
from govray.train.jax.flax_state import FlaxModel
from govray.train.run_folder.run_lock import Fence
from govray.train.state.committer import Commits
from govray.train.state.pretrained import check_unchanged
from govray.train.state.snapshot import TrainingState
from govray.train.watching.metrics import RunMetrics
from govray.train.watching.profiler import StepProfiler
from govray.train.worker.recorder import Recorder
from govray.train.worker.run import Run
from govray.train.worker.run_start import Discovered
from govray.train.worker.run_terms import (
    NOTHING_YET,
    alternatives,
    best_so_far,
    follow_revocations,
    require_groups,
    terms_of,
)

_CPU = torch.device("cpu")


def govern(model: nnx.Module, optimizer: optax.GradientTransformation) -> Run:
    """Put a Flax model and its optimizer under the run's depth policy.

    Restores the latest commit into the model. `Run.step` takes a loss function over the model, as
    `govray.engine.jax.build_step` does.

    Args:
        model: Any whose parameters fall into layer groups, equal on all workers.
        optimizer: It is given one layer group at a time. Schedules read the step of the plan.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started, or the run is
            torch's.
        Refused: The model is not the one the plan was made for, or can't be routed exactly.
    """
    assignment = current.get()
    if assignment is None:
        raise UsageError(
            "govern() was called outside a governed training loop",
            do="Pass the loop to GovernedTrainer(train_loop_per_worker=...)",
        )
    if isinstance(assignment, Discovery):
        parameters = {n: v.get_value() for n, v in named_parameters(model).items()}
        groups = layer_groups(model, assignment.policy_groups)
        raise Discovered(groups, _parameter_shapes(parameters), framework="jax")
    return _start_run(model, optimizer, assignment)


def _start_run(
    model: nnx.Module, optimizer: optax.GradientTransformation, assignment: Assignment
) -> Run:
    """`govern` with an assignment. Collective."""
    order, rows = assignment.order, assignment.shard
    groups = layer_groups(model, order.policy_groups)
    require_groups(groups, order)
    first = not dist.is_initialized() or dist.get_rank() == 0
    feed = follow_revocations(order) if first else None
    terms = terms_of(order, rows.decisions.until, feed.since if feed else dict)
    step = build_step(
        model,
        optimizer,
        routes=order.routes,
        terms=terms,
        groups=groups,
        alternatives=alternatives(order),
        seed=order.settings.seed,
        clip_norm=order.settings.clip_norm,
        max_rows=order.settings.max_rows,
    )
    assert isinstance(step.framework, FlaxFramework)
    ranks = {r.adapter: r.rank for r in order.routes.values() if r.adapter and r.rank}
    patience = timedelta(seconds=order.settings.collective_timeout_s)
    state = TrainingState(FlaxModel(step.framework, ranks))
    if order.start and not rows.checkpoint:
        check_unchanged(order.start)  # an entrypoint's own, which each process has read
    leaves = state.restore(rows.checkpoint, order) if rows.checkpoint else ()
    fence = Fence(place(order.folder), order.driver, rows.attempt)
    read = [corpus for corpus in order.plan.corpora if corpus not in order.plan.excluded]
    return Run(
        # Rows come as tensors of the CPU, wherever JAX puts them.
        replace(assignment, device=_CPU),
        _RunStep(step, Agreement(terms, timeout=patience)),
        gating=Gating(
            order.on_expiry,
            order.expiries,
            read,
            rows.decisions,
            None,
            order.fallbacks,
            order.phased,
        ),
        commits=Commits(state, order, rows.start_step, fence),
        watch=None,
        recorder=Recorder(fence, leaves, len(rows.decisions.starts) - 1, writes=first),
        feed=feed,
        schedule=None,
        average=None,
        metrics=RunMetrics(order, _parameter_shapes(step.framework.parameters()), writes=first),
        best=best_so_far(rows.checkpoint) if order.validation else NOTHING_YET,
        profiler=StepProfiler(range(0), place(order.folder)),
    )


class _RunStep:
    """Implements `govray.train.worker.run.StepFunction`: batches of torch's tensors in.
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


def _parameter_shapes(parameters: Mapping[str, Array]) -> nn.Module:
    """A module on the meta device with parameters of these names, for what reads no values.
    ``parameters``: by FQN; of any shape, dtype and device."""
    model = nn.Module()
    for name, value in parameters.items():
        *above, own = name.split(".")
        module = model
        for part in above:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        dtype = getattr(torch, value.dtype.name)
        empty = torch.empty(value.shape, dtype=dtype, device="meta")
        module.register_parameter(own, nn.Parameter(empty, requires_grad=dtype.is_floating_point))
    return model
