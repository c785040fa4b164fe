"""A Flax model, its adapters and its Optax states, as commits hold them.

Weights have the names and shapes of the model's variables, adapters those of peft. A leaf of an
optimizer's state is called ``<layer group>/<path>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor

from govray.engine.jax.flax_framework import FlaxFramework
from govray.engine.model.adapters import ALPHA_PER_RANK, PEFT_PREFIX, peft_config
from govray.errors import Malformed
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.policy.route import ADAPTER
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.checkpoint.tensor_shards import HeldPart
from govray.train.state.trained_model import OPTAX, OPTIMIZER, OPTIMIZER_VALUES

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
        """As `TrainedModel`."""
        for name, rank in self._ranks.items():
            own = self._adapter(name)
            layers = sorted({fqn.rpartition(".lora_")[0] for fqn in own})
            tensors = {f"{PEFT_PREFIX}{fqn}": on_host(value) for fqn, value in own.items()}
            yield name, peft_config(rank, layers, transposed=False), tensors

    def load(self, committed: commit_folder.Committed) -> None:
        """As `TrainedModel`."""
        base = {n: v for n, v in self._framework.parameters().items() if not n.startswith(ADAPTER)}
        found = _like(base, tensors_of(committed, model_folder.WEIGHTS), model_folder.WEIGHTS)
        for name, rank in self._ranks.items():
            config_file, weights_file = model_folder.adapter_files(name)
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
        """A group's state with the leaves of a commit."""
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
