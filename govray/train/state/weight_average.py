"""An exponential moving average of the base model's weights, in float32 beside them.

With decay d, and θ_k the weights after the k-th update:

    average_1 = θ_1,      average_k = d · average_{k-1} + (1 - d) · θ_k.

Invariants:

* Which steps update depends on the plan step alone, and what a parameter's average becomes on that
  parameter's own history. So a corpus moves the average of what it may update, and no other.
* The weights are read, never written: training keeps its bits.
* Of a sharded parameter each rank averages its own rows; nothing is gathered.

Adapters are not averaged: a contract's adapter can be removed, and its average would stay. Buffers
and what does not learn are copied.

Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn, which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from govray.train.checkpoint.tensor_shards import local_shard
from govray.train.experiment.sections import Ema


class WeightAverage:
    """The average of one model on one worker.
    ``model``: the base model; sharded already where it is to be."""

    def __init__(self, model: nn.Module, ema: Ema) -> None:
        self._ema = ema
        self._learns = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and parameter.is_floating_point()
        }
        with torch.no_grad():
            self._averages = {
                name: parameter.detach().to(torch.float32, copy=True)
                for name, parameter in self._learns.items()
            }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights that plan step ``step`` has left, if an update is due then."""
        done, rest = divmod(step + 1, self._ema.every)
        if rest or not self._learns:
            return
        averages = [_local(average) for average in self._averages.values()]
        weights = [_local(weight).to(torch.float32) for weight in self._learns.values()]
        if done == 1:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, 1 - self._ema.decay)

    def tensors(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The base model's tensors, with the averages in place of what learns."""
        return {name: self._averages.get(name, tensor) for name, tensor in base.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the averages from a commit.
        ``tensors``: by name; whole, or cut as the parameters are."""
        for name, average in self._averages.items():
            _local(average).copy_(_local(local_shard(tensors[name], average)))


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, which shares its memory."""
    value = tensor.detach()
    return value.to_local() if isinstance(value, DTensor) else value
