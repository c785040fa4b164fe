"""`govern`: from a model and its optimizer to one worker's part of a run.

What a `Run` has of torch is made here, in the same order on all ranks. First comes what a run
begins with, then the step, and the state of the last commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from govray.engine.collective.agreement import Agreement
from govray.engine.collective.step_settings import FrameworkName
from govray.engine.gradients.forward import LossFn
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import GovernedStep, build_step
from govray.errors import UsageError
from govray.train.inputs.order import Assignment, Discovery, Order, current
from govray.train.state.optimizer_start import load_optimizer
from govray.train.state.snapshot import TrainingState
from govray.train.state.trained_model import TorchModel
from govray.train.state.weight_average import WeightAverage
from govray.train.validation.evaluation import Evaluation
from govray.train.worker.lr_schedule import (
    MakeScheduler,
    learning_rates,
    make_schedule,
    require_rates,
)
from govray.train.worker.memorization_watch import MemorizationWatch
from govray.train.worker.placement import begin_with, place_on
from govray.train.worker.planned_batch import row_tensors
from govray.train.worker.run import Run
from govray.train.worker.run_terms import (
    alternatives,
    follow_revocations,
    require_groups,
    terms_of,
)


class Discovered(BaseException):
    """Ends a discovery: carries the model that reached `govern`, and its layer groups.

    The optimizer is there if `govern` itself was reached. Of another framework than torch the model
    is a torch module with parameters of the same names and shapes.

    Not an `Exception`, so that a user's ``except Exception`` cannot swallow it.
    """

    def __init__(
        self,
        groups: Mapping[str, tuple[str, ...]],
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        framework: FrameworkName = "torch",
    ) -> None:
        super().__init__("the model is known")
        self.framework = framework
        self.groups = dict(groups)
        self.model = model
        self.optimizer = optimizer


def govern(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: MakeScheduler | None = None,
) -> Run:
    """Put a model and its optimizer under the run's depth policy.

    Replaces ``ray.train.torch.prepare_model``. Moves a model on the CPU to the worker's device,
    attaches the policy's adapters, adds their parameters to the optimizer, and restores the latest
    commit.

    Args:
        model: Any module whose parameters fall into layer groups.
        optimizer: Over the model's parameters.
        scheduler: ``optimizer -> scheduler``: makes torch's learning-rate scheduler once the
            adapters have joined the optimizer. `Run.step` steps it.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started.
        Refused: The model is not the one the plan was made for, can't be routed exactly, or is
            on another device than the worker's.
    """
    return start_run(model, optimizer, assignment_for(model, optimizer), scheduler)


def assignment_for(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Assignment:
    """The assignment in force; on the driver, the end of a discovery.

    `govern` begins with it. A host framework's adapter calls it earlier, as soon as it knows the
    model. What it builds around a model need not work on the meta device.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started.
        Discovered: The driver asked only which layer groups the model has.
    """
    assignment = current.get()
    if assignment is None:
        raise UsageError(
            "govern() was called outside a governed training loop",
            do="Pass the loop to GovernedTrainer(train_loop_per_worker=...)",
        )
    if isinstance(assignment, Discovery):
        raise Discovered(layer_groups(model, assignment.policy_groups), model, optimizer)
    return assignment


def start_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    assignment: Assignment,
    scheduler: MakeScheduler | None = None,
) -> Run:
    """`govern` with an assignment. Collective."""
    order, rows = assignment.order, assignment.shard
    require_groups(layer_groups(model, order.policy_groups), order)
    place_on(assignment.device, model, optimizer)
    if not any(model is each for each in assignment.sharded):
        begin_with(model, assignment)
    if order.start and order.start.optimizer and not rows.checkpoint:
        load_optimizer(model, optimizer, order.start.optimizer)
    adapters = _attach_adapters(model, optimizer, order)
    decided = rows.decisions
    told = order.monitored.story(decided.profiles, decided.starts) if order.monitored else None
    first = not dist.is_initialized() or dist.get_rank() == 0
    feed = follow_revocations(order) if first else None
    step_function = build_step(
        model,
        optimizer,
        groups=order.groups,
        routes=order.routes,
        alternatives=alternatives(order),
        adapters=adapters,
        terms=terms_of(order, decided.until, feed.since if feed else dict),
        settings=order.settings,
    )
    schedule = make_schedule(scheduler, optimizer, rows.start_step) if scheduler else None
    scheduled = learning_rates(optimizer)
    average = WeightAverage(model, ema) if (ema := order.experiment.ema) else None
    state = TrainingState(TorchModel(model, optimizer, adapters, average))
    leaves = state.restore(rows.checkpoint, order) if rows.checkpoint else ()
    if schedule:
        require_rates(optimizer, scheduled, rows.start_step)
    return Run(
        assignment,
        step_function,
        state=state,
        leaves=leaves,
        sized=model,
        told=told,
        watch=MemorizationWatch(
            order,
            told,
            decided.profiles,
            leaves,
            device=assignment.device,
            scorer=partial(_monitor, step_function, order.settings.seed),
        )
        if told
        else None,
        feed=feed,
        schedule=schedule,
        average=average,
        evaluation=_evaluation(model, adapters, step_function.agreement, order),
    )


def _monitor(step_function: GovernedStep, seed: int, loss_fn: LossFn) -> Monitor:
    """The engine's own monitor of a step's model."""
    return Monitor(
        step_function.routed.model,
        step_function.routed.adapters,
        step_function.agreement,
        logits=logits_in(loss_fn),
        seed=seed,
    )


def _evaluation(
    model: nn.Module, adapters: Adapters, agreement: Agreement, order: Order
) -> Evaluation | None:
    """The run's validation data, if it has any."""
    judged, held_out = order.experiment.validation, order.held_out
    if judged is None or held_out is None:
        return None
    schema = held_out.manifest.rows
    return Evaluation(
        held_out,
        judged.rows,
        model,
        adapters,
        agreement,
        tensors=lambda rows: row_tensors(rows, schema)[0],
        autocast=order.settings.autocast,
        seed=order.settings.seed,
    )


def _attach_adapters(model: nn.Module, optimizer: torch.optim.Optimizer, order: Order) -> Adapters:
    """The adapters of the order's routes, on the model and in the optimizer."""
    adapters = Adapters(
        model,
        {r.adapter: r.rank for r in order.routes.values() if r.adapter and r.rank},
        seed=order.settings.seed,
    )
    parameters = dict(adapters.named_parameters())
    for names in adapters.groups.values():
        optimizer.add_param_group({"params": [parameters[name] for name in names]})
    return adapters
