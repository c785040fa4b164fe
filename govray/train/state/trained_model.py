"""What a run trains, as its commits hold it: tensors by file, and how a commit is put back.

`govray.train.state.snapshot` writes and reads commits of whatever implements `TrainedModel`. Here
that is a torch model. One of JAX is in `govray.train.jax`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from govray.engine.model.adapters import Adapters
from govray.engine.model.stored_weights import fill
from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.optimizer_state import optimizer_state, restore_optimizer
from govray.train.checkpoint.stored_tensors import held_rows, tensors_of
from govray.train.checkpoint.tensor_shards import (
    HeldPart,
    from_rows,
    held_part,
    is_sharded,
    local_shard,
    own_rows,
)
from govray.train.state.weight_average import WeightAverage

OPTIMIZER = "optimizer.safetensors"
OPTIMIZER_VALUES = "optimizer.json"
OPTAX = "optax"
"""What the latter says of optimizers that are not torch's."""


class TrainedModel(Protocol):
    """A model, its adapters and its optimizer.
    ``sharded``: whether each rank holds a part of the model."""

    sharded: bool

    def part(self) -> HeldPart | None:
        """Which part of the model this rank holds; None if it holds all of it."""

    def tensors(self) -> tuple[dict[str, Mapping[str, Tensor]], Mapping[str, Any]]:
        """Weights and optimizer as they are now.

        Returns:
            File → live tensors by name, of any shape, dtype and device. And what of the optimizer
            is no tensor, as JSON values.
        """

    def computes_on(self) -> tuple[str | None, Mapping[str, str]]:
        """The device that it computes on, and settings of its framework that move bits.
        None and nothing else where torch knows both."""

    def adapters(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Tensor]]]:
        """Of each adapter: its name, its configuration and copies of its tensors, as for peft."""

    def load(self, committed: commit_folder.CommitFolder) -> None:
        """Take over what a commit holds.

        Raises:
            Refused: It lacks something that the run keeps.
            Malformed: It is of another model, other adapters or another optimizer.
        """


@dataclass
class TorchModel:
    """Implements `TrainedModel` for torch.

    Args:
        model: Whole, or sharded by rows.
        average: Of its weights, if the run keeps one.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    attached: Adapters
    average: WeightAverage | None = None
    sharded: bool = field(init=False)

    def __post_init__(self) -> None:
        self.sharded = is_sharded(self.model)

    def part(self) -> HeldPart | None:
        return held_part(self.model) if self.sharded else None

    def tensors(self) -> tuple[dict[str, Mapping[str, Tensor]], Mapping[str, Any]]:
        """As `TrainedModel`; a tied tensor stands once."""
        state, hyperparameters = optimizer_state(self.optimizer, self._names())
        live: dict[str, Mapping[str, Tensor]] = {
            model_folder.WEIGHTS: base_tensors(self.model),
            OPTIMIZER: state,
        }
        if self.average:
            live[model_folder.EMA] = self.average.tensors(live[model_folder.WEIGHTS])
        return live, hyperparameters

    def computes_on(self) -> tuple[str | None, Mapping[str, str]]:
        return None, {}

    def adapters(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Tensor]]]:
        for name in self.attached.ranks:
            yield (name, *self.attached.export(name))

    def load(self, committed: commit_folder.CommitFolder) -> None:
        """As `TrainedModel`; this rank's parts of a sharded model are all that is read."""
        held = self.model.state_dict()
        weights = {
            name: local_shard(tensor, held[name]) if name in held else tensor
            for name, tensor in read_tensors(committed, model_folder.WEIGHTS, held.get).items()
        }
        do = "Resume with the model that the run began with"
        fill(self.model, weights, where=str(committed.folder), error=Refused, do=do)
        if self.average:
            if model_folder.EMA not in committed.names:
                raise Refused(
                    "the checkpoint has no average of the weights",
                    where=str(committed.folder),
                    do="Resume without ema, as the run began",
                )
            self.average.restore(read_tensors(committed, model_folder.EMA, held.get))
        for name in self.attached.ranks:
            config_file, weights_file = model_folder.adapter_files(name)
            if weights_file not in committed.names:
                continue  # no step had trained it
            config: Any = canonical_json.parse_canonical(committed.files[config_file])
            self.attached.load(name, config, tensors_of(committed, weights_file))
        names = self._names()
        parameters = {name: parameter for parameter, name in names.items()}
        values: Any = canonical_json.parse_canonical(committed.files[OPTIMIZER_VALUES])
        restore_optimizer(
            self.optimizer,
            names,
            read_tensors(committed, OPTIMIZER, lambda key: parameters.get(key.partition("/")[2])),
            values,
        )

    def _names(self) -> dict[nn.Parameter, str]:
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return names | {parameter: name for name, parameter in self.attached.named_parameters()}


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The base model's parameters and persistent buffers; a tied tensor once, by its first FQN."""
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
        name for name, _ in model.named_parameters()
    }
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def read_tensors(
    committed: commit_folder.CommitFolder, file: str, like: Callable[[str], Tensor | None]
) -> dict[str, Tensor]:
    """The tensors of a file. Of tensors that are sharded here, only this rank's shards.
    ``like``: maps a tensor's name in the file to the tensor here."""
    index = None if file in committed.entries else committed.index
    if index is None or file not in index.rows:
        return tensors_of(committed, file)
    sharded = index.rows[file]
    found = held_rows(committed, index, file, lambda name, rows: own_rows(like(name), rows))
    return {
        name: from_rows(tensor, sharded[name], like(name)) if name in sharded else tensor
        for name, tensor in found.items()
    }
