"""A model that ranks share, trained and committed as a run does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import StreamCorpus, StreamPlan
from govray.train.checkpoint.retention import Rules
from govray.train.checkpoint.tensor_shards import shard, whole
from govray.train.experiment.sections import Ema
from govray.train.state.committer import Commits
from govray.train.state.snapshot import TrainingState, folder_name
from govray.train.state.trained_model import TorchModel
from govray.train.state.weight_average import WeightAverage
from tests.support.committing import Training, attempt
from tests.support.leaves import DIGEST


class Shared(Training):
    """A small GPT, sharded over all ranks, whose vocabulary no number of ranks divides."""

    def __init__(
        self, folder: Path, *, resumed: int = 0, cut: bool = True, replicate: int = 1
    ) -> None:
        read = StreamPlan(
            id=DIGEST,
            profile="removable",
            corpora=(StreamCorpus(corpus="a", rows=9),),
            quota=3,
            phase=0,
        )
        routes = {DIGEST: Route({}, "acme", 2)}
        super().__init__(
            folder, resumed=resumed, keep=Rules(latest=9), streams=(read,), routes=routes
        )
        torch.manual_seed(3)
        self.model: Any = GPT(blocks=2, width=8, context=4, vocabulary=11)
        if cut:
            shard(self.model, replicate=replicate)
        adapters = Adapters(self.model, {"acme": 2}, seed=0)
        every = [*self.model.parameters(), *(p for _, p in adapters.named_parameters())]
        self.optimizer = torch.optim.AdamW(every, lr=0.1)
        self.average = WeightAverage(self.model, Ema(decay=0.5))
        self.done = resumed
        self.trained = TorchModel(self.model, self.optimizer, adapters, self.average)
        self.state = TrainingState(self.trained)
        self.adapters = adapters
        self.commits = Commits(self.state, self.order, resumed, attempt(folder))

    def step(self) -> None:
        """Equal rows on all ranks, so that the world size shows in nothing but rounding."""
        torch.manual_seed(7)
        tokens = torch.randint(0, 11, (2, 5))
        self.optimizer.zero_grad(set_to_none=True)
        batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
        with self.adapters.active("acme"):
            loss(self.model, batch).mean().backward()
        self.optimizer.step()
        self.average.update(self.done)
        self.done += 1

    def resume(self, step: int) -> None:
        assert self.state.restore(self.folder / folder_name(step), self.order)

    def gathered(self) -> dict[str, dict[str, Tensor]]:
        """File → its tensors whole, as one rank would have committed them. Collective."""
        live, _ = self.trained.tensors()
        return {
            file: {name: whole(own[name]).detach().clone() for name in sorted(own)}
            for file, own in live.items()
        }
