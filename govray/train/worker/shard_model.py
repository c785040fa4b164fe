"""`shard`: a training loop calls it before it makes the optimizer, if ranks may share a model.

It does nothing unless the run's aggregator is ``fsdp2``, so a loop can always call it.

Optimizers follow the parameters.
"""

from __future__ import annotations

from torch import nn

from govray.checkpoint import tensor_shards
from govray.train.worker.initial_weights import begin_with
from govray.train.worker.run_start import assignment_for


def shard(model: nn.Module) -> None:
    """Cut the model over all workers, if the run says ``aggregator: fsdp2``.

    The weights that the run begins with are put into the model first.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started.
        Discovered: The driver asked only which layer groups the model has.
    """
    assignment = assignment_for(model)
    settings = assignment.order.settings
    if settings.aggregator != "fsdp2":
        return
    begin_with(model, assignment)
    tensor_shards.shard(model, mixed=settings.precision == "bf16-mixed")
    assignment.sharded.append(model)
