"""One result for all ranks, at any world size, and one error for all."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.errors import RankFailed, Refused
from govray.train.inputs.order import HeldOut
from govray.train.validation.evaluation import Evaluation, reduced
from govray.train.worker.planned_batch import row_tensors
from tests.support.cases import PLAN, POLICY
from tests.support.deployment import Deployment
from tests.support.held_out import hold_out, judged_trainer
from tests.support.ranks import RankPool
from tests.support.solo import run_here


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldOut:
    run_here(monkeypatch)
    here = Deployment(tmp_path / "here")
    hold_out(here)
    shared = judged_trainer(here, {}).share(datetime.now(UTC))
    assert shared.validation is not None
    prepared = shared.validation.prepared
    return HeldOut(prepared=str(prepared.folder), manifest=prepared.manifest)


def agreement() -> Agreement:
    return Agreement(Terms(policy_digest=POLICY, plan_digest=PLAN, corpora=("a",)))


def measure(data: HeldOut, fails_on: int = -1, *, autocast: bool = False) -> dict[str, float]:
    torch.manual_seed(3)
    model = GPT(2, 32, 32, 257, heads=2)
    evaluation = Evaluation(
        data,
        37,
        model,
        Adapters(model, {}, seed=0),
        agreement(),
        tensors=lambda rows: row_tensors(rows, None)[0],
        autocast=autocast,
        seed=1,
    )

    def loss_fn(model: Any, tensors: Any) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == fails_on:
            raise ZeroDivisionError("a user's bug")
        assert torch.is_autocast_enabled("cpu") == autocast
        return loss(model, tensors)

    assert len(evaluation) == 37
    return evaluation.measure(5, loss_fn)


def test_every_world_size_measures_the_same(
    data: HeldOut, two_ranks: RankPool, four_ranks: RankPool
) -> None:
    alone = measure(data)
    assert alone["loss"] == pytest.approx(5.6, abs=0.5)  # about log 257: it learnt nothing
    for pool in (two_ranks, four_ranks):
        first, *others = pool.run(measure, data)
        assert all(each == first for each in others)
        assert first == pytest.approx(alone, rel=1e-6)


def test_an_error_on_one_rank_is_raised_on_all(data: HeldOut, two_ranks: RankPool) -> None:
    for outcome in two_ranks.outcomes(measure, data, 1):
        assert isinstance(outcome, RankFailed)
        assert "rank 1" in str(outcome)
        assert "a user's bug" in str(outcome)


def reduce_here(by: Any, missing_on: int = -1) -> dict[str, float]:
    rank = dist.get_rank()
    metrics = {name: float(rank + 1) for name in "abcde"}
    if rank == missing_on:
        del metrics["c"]
    return reduced(agreement(), metrics, by[rank], where="here")


def test_ranks_that_report_or_reduce_other_metrics_stop_together(two_ranks: RankPool) -> None:
    by = {"a": "mean", "c": "sum"}
    for outcome in two_ranks.outcomes(reduce_here, [by, by], 1):
        assert isinstance(outcome, Refused)
        assert "rank 1: it reports no number 'c'" in str(outcome)
    for outcome in two_ranks.outcomes(reduce_here, [by, {"a": "max"}]):
        assert isinstance(outcome, Refused)
        assert "rank 0 reduces a by mean, c by sum, rank 1 a by max" in str(outcome)
