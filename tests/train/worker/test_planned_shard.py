"""What Ray's controller deals to workers, without the process that Ray would start to do it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.data_integration.interfaces import DatasetShardMetadata

from govray.errors import Refused
from govray.train.driver.attempts import Trainer
from govray.train.worker.planned_shard import DATASET, Configured


class Numbers(ray.train.DataConfig):
    """Deals rank and world size; or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.calls = 0
        self._failure = failure

    def configure(self, datasets: Any, world_size: int, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self._failure:
            raise self._failure
        return [{DATASET: (rank, world_size)} for rank in range(world_size)]


def deal(config: Numbers, world: int) -> list[Any]:
    callback = Configured(SimpleNamespace(dataset_config=config), {})
    callback._data_config = config  # Ray keeps a copy
    workers: Any = [SimpleNamespace(metadata=SimpleNamespace(node_id="n"))] * world
    [(name, dealt)] = callback.before_init_train_context(workers).items()
    assert name == "dataset_shard_provider"
    return dealt


def test_each_rank_gets_its_own_share_of_one_resolution() -> None:
    config = Numbers()
    dealt = deal(config, 3)
    asked = [each.get_dataset_shard(DatasetShardMetadata(DATASET, 0)) for each in dealt]
    assert asked == [(0, 3), (1, 3), (2, 3)]
    assert config.calls == 1


def test_what_cannot_be_resolved_every_rank_raises() -> None:
    dealt = deal(Numbers(Refused("taken over")), 2)
    for each in dealt:
        with pytest.raises(Refused, match="taken over"):
            each.get_dataset_shard(DatasetShardMetadata(DATASET, 0))


def test_it_stands_where_ray_s_own_callback_would() -> None:
    """What is private in Ray is as it was when this was written."""
    rays = TorchTrainer(lambda: None)._create_default_callbacks()
    ours = Trainer(lambda: None)._create_default_callbacks()
    [place] = [n for n, each in enumerate(rays) if type(each) is DatasetsCallback]
    assert type(ours[place]) is Configured
    assert [type(each) for each in ours if type(each) is not Configured] == [
        type(each) for each in rays if type(each) is not DatasetsCallback
    ]
    assert "self.dataset_shard_provider.get_dataset_shard(dataset_info)" in inspect.getsource(
        inspect.getmodule(ray.train.v2._internal.execution.context.TrainContext)
    )
