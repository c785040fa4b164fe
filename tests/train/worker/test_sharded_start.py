"""`shard` given a function: each rank makes its rows, of the weights that every run begins with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from govray.engine.collective.step_settings import Precision
from govray.engine.gpt import GPT
from govray.errors import GovrayError, Refused
from govray.governance.formats import canonical_json
from govray.train.checkpoint import sharded_init
from govray.train.inputs.order import Assignment, current
from govray.train.inputs.pretrained_start import Start
from govray.train.worker.shard_model import shard
from tests.support.committing import an_experiment
from tests.support.flipped import flip
from tests.support.ranks import RankPool


def gpt() -> nn.Module:
    return GPT(2, 16, 8, 11)


@contextmanager
def assigned(
    precision: Precision = "fp32", start: Start | None = None, replicate: int = 1
) -> Iterator[Assignment]:
    sharding = {"replicate": replicate} if replicate > 1 else None
    experiment = an_experiment(
        aggregator="fsdp2",
        precision=precision,
        sharding=sharding,
        resources={"num_workers": 2 * replicate},
    )
    order: Any = SimpleNamespace(experiment=experiment, settings=experiment.settings, start=start)
    assignment = Assignment(
        order=order, shard=SimpleNamespace(checkpoint=None), on_step=lambda step, metrics: None
    )
    token = current.set(assignment)
    try:
        yield assignment
    finally:
        current.reset(token)


def begun(
    build: Callable[[], nn.Module],
    seeds: tuple[int, ...] = (5, 5, 5, 5),
    precision: Precision = "fp32",
    start: Start | None = None,
    replicate: int = 1,
) -> tuple[dict[str, Tensor], list[str], int]:
    """What all ranks begin with, what rank 0 warns of, and how often a whole model was built."""
    torch.manual_seed(seeds[dist.get_rank()])
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("govray.train.worker.shard_model")
    logger.addHandler(handler)
    wholes = 0

    def counting() -> nn.Module:
        nonlocal wholes
        model = build()
        wholes += type(next(model.parameters())) is nn.Parameter
        return model

    try:
        with assigned(precision, start, replicate) as assignment:
            model = shard(counting)
            assert assignment.sharded == [model]
    finally:
        logger.removeHandler(handler)
    weights = {name: p.detach().full_tensor() for name, p in model.named_parameters()}
    return weights, said, wholes


def plain(seed: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(gpt().named_parameters())


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_every_rank_has_its_rows_of_the_plain_model(two_ranks: RankPool) -> None:
    for weights, said, wholes in two_ranks.run(begun, gpt):
        assert_equal(weights, plain())
        assert not said
        assert wholes == 0


def test_ranks_that_draw_other_weights_begin_with_rank_0s(two_ranks: RankPool) -> None:
    outcomes = two_ranks.run(begun, gpt, (5, 6))
    for weights, _, _ in outcomes:
        assert_equal(weights, plain(5))
    assert "ranks drew different weights" in outcomes[0][1][0]


def unseen(build: Callable[[], nn.Module], seeds: tuple[int, ...]) -> dict[str, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_init, "_sum_of_bits", lambda tensor: 0)
        return begun(build, seeds)[0]


def test_without_the_sums_they_would_begin_with_a_mixture(two_ranks: RankPool) -> None:
    weights, _ = two_ranks.run(unseen, gpt, (5, 6))
    assert not torch.equal(weights["head.weight"], plain(5)["head.weight"])
    assert torch.equal(weights["head.weight"][:6], plain(5)["head.weight"][:6])


def start_of(folder: Path, seed: int) -> Start:
    """Files with the weights of another seed, in two parts."""
    tensors = {name: tensor.detach() for name, tensor in plain(seed).items()}
    names = sorted(tensors)
    files = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        path = folder / f"model-{number}-of-2.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, path)
        files[path.name] = canonical_json.sha256(path.read_bytes())
    return Start(folder=str(folder), files=files, taint={}, loaded_by_model=False)


def test_existing_weights_are_read_row_by_row(two_ranks: RankPool, tmp_path: Path) -> None:
    for weights, said, _ in two_ranks.run(begun, gpt, (5, 5), "fp32", start_of(tmp_path, 8)):
        assert_equal(weights, plain(8))
        assert not said


def test_a_file_that_changed_is_refused_by_all(two_ranks: RankPool, tmp_path: Path) -> None:
    start = start_of(tmp_path, 8)
    path = tmp_path / next(iter(start.files))
    flip(path)
    for error in two_ranks.outcomes(begun, gpt, (5, 5), "fp32", start):
        assert isinstance(error, Refused)
        assert "changed since the run began" in str(error)
        assert isinstance(error, GovrayError)
