"""`shard`: a training loop calls it before it makes the optimizer, if ranks may share a model.

It does nothing unless the run's aggregator shards, so a loop can always call it. Given a
function that builds the model, each rank makes no more of it than its own rows. They are equal to
those of the whole model, bit for bit (``train/checkpoint/sharded_init.py``). All ranks do so, or
all build the whole model: they compare what they built.

Optimizers follow the parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from govray.engine.gradients.precision import cast_parameters
from govray.engine.model.rng_state import generators, restore_generators
from govray.engine.startup.whole_mesh import refuse_other_meshes
from govray.train.checkpoint import sharded_init, tensor_shards
from govray.train.checkpoint.tensor_shards import is_sharded, part_of
from govray.train.inputs.order import Assignment, Discovery, current
from govray.train.state.pretrained import load_rows
from govray.train.worker.placement import begin_with, broadcast, place_on
from govray.train.worker.run_start import assignment_for


def shard(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Cut the model over all workers, if the run's aggregator shards.

    The model is moved to the worker's device, and gets the weights that the run begins with, first.

    Args:
        model: The model, or a function that builds it on the CPU. The function is called again if
            the model can't be built in parts.

    Returns:
        The model.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started, or the workers
            can't hold so many copies, or a parameter is a DTensor already.
        Refused: The model is on another device than the worker's.
    """
    assignment = current.get()
    if (
        assignment is None
        or isinstance(assignment, Discovery)
        or not assignment.order.settings.shards
    ):
        model = model if isinstance(model, nn.Module) else model()
        if not isinstance(assignment, Discovery):  # which goes on to `govern`, and its optimizer
            # An optimizer that is made next asks where the parameters are, for its kernels.
            place_on(assignment_for(model).device, model)
        return model
    settings = assignment.order.settings
    mixed = settings.precision == "bf16-mixed"
    replicate = assignment.order.experiment.copies
    built = None
    if not isinstance(model, nn.Module):  # without a process group it is refused below
        built = _in_parts(model, replicate) if dist.is_initialized() else None
        model = built.model if built else model()
    if not is_sharded(model):  # which is refused below, in its own words
        refuse_other_meshes(model, sharded=False)
    if built:
        _begin_with_rows(built, assignment)
        tensor_shards.shard(model, mixed=mixed, device=assignment.device, replicate=replicate)
        tensor_shards.take_rows(model, built.rows, assignment.device)
    else:
        place_on(assignment.device, model)
        begin_with(model, assignment)
        tensor_shards.shard(model, mixed=mixed, replicate=replicate)
    assignment.sharded.append(model)
    return model


def _in_parts(build: Callable[[], nn.Module], replicate: int) -> sharded_init.ModelRows | None:
    """This rank's rows of the model; None on all ranks if one can't have them. Collective."""
    part = part_of(dist.get_rank(), dist.get_world_size(), replicate)
    drawn = generators()
    built: sharded_init.ModelRows | None = None
    problem = None
    try:
        built = sharded_init.rows_of(build, part.number, part.of)
    except Exception as error:  # if it is the model's own, building it whole says so
        problem = str(error) or type(error).__name__
    own = problem, dict(built.sums) if built else {}
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, own)
    problem = next((said for said, _ in everyones if said), None)
    if problem is None and any(sums != everyones[0][1] for _, sums in everyones):
        problem = "ranks drew different weights"
    if problem is None:
        return built
    if dist.get_rank() == 0:
        logging.getLogger(__name__).warning(
            "Every rank builds the whole model before it is sharded: %s", problem
        )
    restore_generators(drawn)
    return None


def _begin_with_rows(built: sharded_init.ModelRows, assignment: Assignment) -> None:
    """As `begin_with`, for a model of which each rank has its rows. Collective."""
    order = assignment.order
    if order.start and not assignment.shard.checkpoint:
        part = part_of(dist.get_rank(), dist.get_world_size(), order.experiment.copies)
        load_rows(built.model, built.rows, order.start, part.number, part.of)
    broadcast(built.model.buffers())
    if order.settings.precision == "bf16":
        cast_parameters(built.model)
