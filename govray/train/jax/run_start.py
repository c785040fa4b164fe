"""`govern` for JAX: from a Flax model and an Optax optimizer to one worker's part of a run.

What a `Run` has of its framework is made here, in the same order on all ranks, as
`govray.train.worker.run_start` does for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jax
import numpy as np
import optax
import torch
import torch.distributed as dist
from flax import nnx
from jax import Array
from torch import Tensor, nn

from govray.engine.collective.agreement import Agreement
from govray.engine.jax.flax_framework import FlaxFramework, build_step
from govray.engine.jax.layer_groups import layer_groups
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.model.adapters import ALPHA_PER_RANK, PEFT_PREFIX, peft_config
from govray.engine.steps.batch import StepBatch
from govray.engine.steps.routed_step import RoutedStep
from govray.engine.steps.step_result import StepResult
from govray.errors import Malformed, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.policy.route import ADAPTER
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.checkpoint.tensor_shards import HeldPart
from govray.train.inputs.order import Assignment, Discovery, current
from govray.train.state.pretrained import check_unchanged
from govray.train.state.snapshot import TrainingState
from govray.train.state.trained_model import OPTAX, OPTIMIZER, OPTIMIZER_VALUES
from govray.train.worker.run import Run
from govray.train.worker.run_start import Discovered
from govray.train.worker.run_terms import (
    alternatives,
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
    return Run(
        # Rows come as tensors of the CPU, wherever JAX puts them.
        replace(assignment, device=_CPU),
        _RunStep(step, Agreement(terms, timeout=patience)),
        state=state,
        leaves=leaves,
        sized=_parameter_shapes(step.framework.parameters()),
        feed=feed,
    )


class _RunStep:
    """Implements `govray.train.worker.run.StepFunction`: batches of torch's tensors in.
    ``agreement``: over torch's processes, which are JAX's."""

    def __init__(self, step: RoutedStep, agreement: Agreement) -> None:
        self.agreement = agreement
        self._step = step

    def queue(
        self, batch: StepBatch, loss_fn: Callable[..., Any], *, now: bool = False
    ) -> Sequence[StepResult]:
        """As `RoutedStep`; tensors of the batch are on the CPU. No step is late."""
        parts = (
            replace(part, tensors={name: t.numpy() for name, t in part.tensors.items()})
            for part in batch.micro_batches
        )
        return [self._step(replace(batch, micro_batches=tuple(parts)), loss_fn)]

    def confirm(self) -> None:
        """Nothing waits."""

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        self._step.leave_out(corpora)

    def reroute(self, corpora: Mapping[str, str]) -> None:
        self._step.reroute(corpora)

    def require_sound(self) -> None:
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


assert ALPHA_PER_RANK == 2  # as `govray.engine.jax.lora` scales


class FlaxModel:
    """Implements `govray.train.state.trained_model.TrainedModel`.
    ``sharded``: never: each process holds all of the model."""

    sharded = False

    def __init__(self, framework: FlaxFramework, ranks: Mapping[str, int]) -> None:
        self._framework = framework
        self._ranks = dict(ranks)

    def part(self) -> HeldPart | None:
        """None: each process holds all of the model."""
        return None

    def tensors(self) -> tuple[dict[str, Mapping[str, Tensor]], Mapping[str, Any]]:
        """As `TrainedModel`; JAX's arrays never change, so these are copies already."""
        base = {
            name: on_host(value)
            for name, value in self._framework.parameters().items()
            if not name.startswith(ADAPTER)
        }
        states = {name: on_host(leaf) for name, leaf in self._leaves().items()}
        kinds = {name: str(tensor.dtype) for name, tensor in states.items()}
        return {model_folder.WEIGHTS: base, OPTIMIZER: states}, {"kind": OPTAX, "leaves": kinds}

    def computes_on(self) -> tuple[str | None, Mapping[str, str]]:
        """As `TrainedModel`: each process computes on its first device, which torch may not see."""
        precision = jax.config.jax_default_matmul_precision
        return jax.local_devices()[0].device_kind, {
            "jax.enableX64": str(jax.config.jax_enable_x64),
            "jax.defaultMatmulPrecision": str(precision or "default"),
        }

    def adapters(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Tensor]]]:
        for name, rank in self._ranks.items():
            own = self._adapter(name)
            layers = sorted({fqn.rpartition(".lora_")[0] for fqn in own})
            tensors = {f"{PEFT_PREFIX}{fqn}": on_host(value) for fqn, value in own.items()}
            yield name, peft_config(rank, layers, transposed=False), tensors

    def load(self, committed: commit_folder.CommitFolder) -> None:
        base = {n: v for n, v in self._framework.parameters().items() if not n.startswith(ADAPTER)}
        found = _like(base, tensors_of(committed, model_folder.WEIGHTS), model_folder.WEIGHTS)
        for name, rank in self._ranks.items():
            config_file, weights_file = model_folder.adapter_files(name)
            if weights_file not in committed.names:  # no step had trained it
                found |= {
                    f"{ADAPTER}{name}/{fqn}": each for fqn, each in self._adapter(name).items()
                }
                continue
            config: Any = canonical_json.parse_canonical(committed.files[config_file])
            own = self._adapter(name)
            if config.get("r") != rank:
                raise Malformed(
                    f"r is {config.get('r')!r}, expected {rank}",
                    where=f"adapter {name}",
                    do="Load the adapter into the rank that it was exported from",
                )
            stored = {
                fqn.removeprefix(PEFT_PREFIX): tensor
                for fqn, tensor in tensors_of(committed, weights_file).items()
            }
            loaded = _like(own, stored, weights_file)
            found |= {f"{ADAPTER}{name}/{fqn}": value for fqn, value in loaded.items()}
        values: Any = canonical_json.parse_canonical(committed.files[OPTIMIZER_VALUES])
        if values.get("kind") != OPTAX:
            raise Malformed(
                f"stored for {values.get('kind')!r}, which is no optimizer of Optax",
                where="optimizer state",
                do="Resume with the framework that the run began with",
            )
        leaves = _like(self._leaves(), tensors_of(committed, OPTIMIZER), OPTIMIZER)
        self._framework.put(
            [
                (group, {name: found[name] for name in names}, self._state(group, leaves))
                for group, names in self._framework.groups.items()
            ]
        )

    def _adapter(self, name: str) -> dict[str, Array]:
        """FQN below the adapter → parameter."""
        prefix = f"{ADAPTER}{name}/"
        return {
            fqn.removeprefix(prefix): value
            for fqn, value in self._framework.adapters.items()
            if fqn.startswith(prefix)
        }

    def _leaves(self) -> dict[str, Array]:
        """``<layer group>/<path>`` → array, of all states."""
        return {
            _leaf_name(group, path): leaf
            for group, state in self._framework.optimizer.states.items()
            for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
        }

    def _state(self, group: str, leaves: Mapping[str, Array]) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaves[_leaf_name(group, path)],
            self._framework.optimizer.states[group],
        )


def _leaf_name(group: str, path: Any) -> str:
    return f"{group}/{jax.tree_util.keystr(path, simple=True, separator='/')}"


def on_host(value: Array) -> Tensor:
    """A copy in host memory, of the same shape and dtype."""
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":  # numpy has no such dtype of its own
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _like(here: Mapping[str, Array], stored: Mapping[str, Tensor], file: str) -> dict[str, Array]:
    """Stored tensors as JAX's arrays, on the device of those that they replace."""
    if odd := here.keys() ^ stored.keys():
        raise Malformed(
            f"tensor {min(odd)} is {'missing' if min(odd) in here else 'unknown'}",
            where=file,
            do="Resume with the model and the optimizer that the run began with",
        )
    found = {}
    for name, value in here.items():
        array = _array(stored[name])
        if array.shape != value.shape or array.dtype != value.dtype:
            raise Malformed(
                f"tensor {name} is {array.dtype}{list(array.shape)}, expected "
                f"{value.dtype}{list(value.shape)}",
                where=file,
                do="Resume with the model and the optimizer that the run began with",
            )
        found[name] = jax.device_put(array, value.sharding)
    return found


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(jax.numpy.bfloat16)
    return tensor.numpy()
