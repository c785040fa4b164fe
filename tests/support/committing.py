"""A training loop that only commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from govray.engine.model.adapters import Adapters
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.row_order import RowOrder
from govray.train.checkpoint.retention import DEFAULT
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.order import Order
from govray.train.run_folder.run_lock import Fence, begin_attempt, take_over
from govray.train.state.committer import Commits
from govray.train.state.snapshot import TrainingState
from govray.train.state.trained_model import TorchModel
from tests.support.leaves import DIGEST, leaf


def an_experiment(**changes: Any) -> Experiment:
    """What an order needs of one: its files are nowhere."""
    value: dict[str, Any] = {
        "name": "tiny",
        "hyperparameters": {"context": 4},
        "data": {"corpora": "corpora", "rows_per_step": {}},
        "governance": {"policy": "policy.json", "trust_root": "root.json"},
        "max_steps": 9,
        "seed": 0,
        "optimizer": {"clip_norm": None},
        "checkpoint": {"every_steps": 1},
    }
    return parse_experiment(value | changes, where="test")


def a_plan(**changes: Any) -> BatchPlan:
    """A plan that reads nothing."""
    fields: dict[str, Any] = {
        "seed": 0,
        "max_steps": 9,
        "manifest": DIGEST,
        "context": 4,
        "order": RowOrder(block=1, window=1 << 20),
        "streams": (),
    }
    return BatchPlan(**fields | changes)


def an_order(folder: Path, **changes: Any) -> Order:
    fields: dict[str, Any] = {
        name: {} for name in ("routes", "groups", "policy_groups", "expiries")
    }
    keep = changes.pop("keep", DEFAULT)
    kept = {"every_steps": 1, "save_trial_best": keep.best, "save_trial_latest": keep.latest}
    fields |= {
        "run_id": "run-1",
        "experiment": an_experiment(checkpoint=kept),
        "folder": str(folder),
        "prepared": "",
        "manifest": None,  # a commit binds its digest alone
        "manifest_digest": DIGEST,
        "plan": a_plan(streams=changes.pop("streams", ())),
        "policy_digest": DIGEST,
    }
    return Order(**fields | changes)


def attempt(folder: Path) -> Fence:
    """A new attempt of a new driver, the same one on all ranks."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    fence = [begin_attempt(folder, take_over(folder)) if first else None]
    if dist.is_initialized():
        dist.broadcast_object_list(fence, src=0)
    assert fence[0] is not None
    return fence[0]


class Training:
    """A model that moves a little with every step."""

    def __init__(self, folder: Path, *, resumed: int = 0, **changes: Any) -> None:
        torch.manual_seed(3)
        self.folder = folder
        self.order = an_order(folder, **changes)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state = TrainingState(
            TorchModel(self.model, self.optimizer, Adapters(self.model, {}, seed=0))
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.commits = Commits(self.state, self.order, resumed, attempt(folder))

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def begin(self, step: int, *, loss: float | None = 1.0, stopping: bool = False) -> None:
        leaves = [leaf(i) for i in range(step)]
        self.commits.begin(step, leaves, loss=loss, stopping=stopping)
