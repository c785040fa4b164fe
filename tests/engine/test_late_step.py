"""A step that is queued whole, and confirmed when the next one is queued.

On a GPU that is how steps run. Here the same code runs on the CPU: torch's fused AdamW leaves all
as it is where ``found_inf`` says so, and sums, norms and flags are the same operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from govray.engine.batch import AfterStep, StepBatch
from govray.engine.collective.gradient_clip import GradientClip
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.engine.steps.step_result import StepResult
from govray.errors import GovrayError, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from govray.train.checkpoint.optimizer_state import optimizer_state, restore_optimizer
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.drawn_rows import digest
from tests.support.ranks import RankPool

CONTEXT, VOCABULARY = 6, 11
NOTES = Route({}, "notes", 2)
STEPS = 5
WORLDS = ["one_rank", "two_ranks", "four_ranks"]


class Trained:
    """A model of two domains, its optimizer and its step function."""

    def __init__(self, *, late: bool = True, fused: bool = True, **settings: Any) -> None:
        torch.manual_seed(3)
        self.model = GPT(2, 8, CONTEXT, VOCABULARY, heads=2)
        adapters = Adapters(self.model, {"notes": 2}, seed=0)
        self.named = dict(self.model.named_parameters()) | dict(adapters.named_parameters())
        self.optimizer = torch.optim.AdamW(
            [*self.named.values()], lr=1e-2, weight_decay=0.1, fused=fused
        )
        self.run: GovernedStep = governed(
            self.model,
            self.optimizer,
            [allow_all(self.model), NOTES],
            adapters=adapters,
            late=late,
            **({"clip_norm": 0.5, "norms_every": 2} | settings),
        )

    def batch(self, step: int) -> StepBatch:
        """Two rows for all layers, and one row for the adapter."""
        rank = dist.get_rank()
        parts = [
            micro_batch(route, token_rows(rows, CONTEXT, VOCABULARY, step, rows, rank))
            for route, rows in ((allow_all(self.model), 2), (NOTES, 1))
        ]
        corpora = [replace(part, corpora=("corpus",) * len(part.positions)) for part in parts]
        return step_batch(step, corpora)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name."""
        names = {parameter: name for name, parameter in self.named.items()}
        return self.named | optimizer_state(self.optimizer, names)[0]

    def held(self) -> dict[str, str]:
        return {name: digest(tensor) for name, tensor in self.tensors().items()}


def poisoned(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    """A loss that is no number, in the adapter's pass alone."""
    found = loss(model, rows)
    return found * math.nan if len(rows["targets"]) == 1 else found


def both_ways(aggregator: str) -> dict[str, Any]:
    late = Trained(aggregator=aggregator)
    at_once = Trained(aggregator=aggregator, late=False)
    return {
        "queued": [late.run.queue(late.batch(step), loss) for step in range(STEPS)],
        "confirmed": [late.run.confirm(), late.run.confirm()],
        "at once": [at_once.run.queue(at_once.batch(step), loss) for step in range(STEPS)],
        "held": (late.held(), at_once.held()),
    }


@pytest.mark.parametrize(
    ("world", "aggregator"), [*((world, "governed") for world in WORLDS), ("two_ranks", "ddp")]
)
def test_steps_are_confirmed_in_order_and_each_once(
    world: str, aggregator: str, request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue(world)
    for found in pool.run(both_ways, aggregator):
        last, after = found["confirmed"]
        assert after is None
        assert found["queued"] == [[], *found["at once"][:-1]]
        assert [last] == found["at once"][-1]
        results = [each for (each,) in found["at once"]]
        assert [each.step for each in results] == [*range(STEPS)]
        assert {each.norms is not None for each in results} == {True, False}
        assert found["held"][0] == found["held"][1]


@dataclass(frozen=True)
class Ended:
    """How two steps ended on one rank, of which the first has a gradient that is no number."""

    results: list[int]
    error: BaseException | None
    again: list[BaseException]
    before: dict[str, str]
    after: dict[str, str]


def raised(do: Callable[[], object]) -> BaseException | None:
    try:
        do()
    except GovrayError as error:
        return error
    return None


def not_finite_at_step_2(control: bool = False) -> Ended:
    with pytest.MonkeyPatch.context() as patch:
        if control:
            patch.setattr(GradientClip, "stays", lambda self, norms: None)
        here = Trained()
        run = here.run
        results = [each.step for step in range(2) for each in run.queue(here.batch(step), loss)]
        before = here.held()
        faulty = poisoned if dist.get_rank() == dist.get_world_size() - 1 else loss
        results += [each.step for each in run.queue(here.batch(2), faulty)]
        error = raised(lambda: run.queue(here.batch(3), loss))
        again = [raised(run.confirm), raised(lambda: run(here.batch(3), loss))]
        return Ended(results, error, [each for each in again if each], before, here.held())


@pytest.mark.parametrize("world", WORLDS)
def test_a_gradient_that_is_not_finite_is_an_error_one_step_late(
    world: str, request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue(world)
    faulty = WORLDS.index(world) + (world == "four_ranks")
    for ended in pool.run(not_finite_at_step_2):
        assert ended.results == [0, 1]
        assert type(ended.error) is RankFailed
        assert f"rank {faulty}, step 2" in str(ended.error)
        assert "adapter:notes" in str(ended.error)
        assert "before any weight moved" in str(ended.error)
        # No domain moved, in that step or in the one queued after it.
        assert ended.after == ended.before
        assert len(ended.again) == 2
        assert all("step 2 was queued, and could not" in str(each) for each in ended.again)


def test_without_the_flag_on_the_device_weights_would_have_moved(two_ranks: RankPool) -> None:
    """The control: the error is the same, and the weights of both domains are others."""
    for ended in two_ranks.run(not_finite_at_step_2, True):
        assert type(ended.error) is RankFailed
        changed = {name for name in ended.before if ended.after[name] != ended.before[name]}
        assert any("adapter:notes" in name for name in changed)
        assert any("adapter:notes" not in name for name in changed)


def fails_here(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    raise ValueError("no loss today")


def host_error_at_step_2() -> dict[str, Any]:
    here = Trained()
    run = here.run
    results = [*run.queue(here.batch(0), loss), *run.queue(here.batch(1), loss)]
    before = here.held()
    faulty = fails_here if dist.get_rank() == 0 else loss
    error = raised(lambda: run.queue(here.batch(2), faulty))
    after = here.held()
    results += run.queue(here.batch(2), loss, now=True)
    return {"steps": [each.step for each in results], "error": error, "unmoved": after == before}


def test_a_host_error_comes_at_once_and_leaves_the_step_before_to_be_confirmed(
    two_ranks: RankPool,
) -> None:
    for found in two_ranks.run(host_error_at_step_2):
        assert "rank 0, step 2: ValueError: no loss today" in str(found["error"])
        assert found["unmoved"]
        assert found["steps"] == [0, 1, 2]


def miscounted() -> dict[str, Any]:
    here = Trained()
    batch = here.batch(0)
    if dist.get_rank() == 1:
        first, *others = batch.micro_batches
        wrong = replace(first, row_targets=(CONTEXT - 1,) * len(first.positions))
        batch = step_batch(0, [wrong, *others])
    queued = here.run.queue(batch, loss)
    return {
        "queued": queued,
        "error": raised(here.run.confirm),
        "again": raised(lambda: here.run(here.batch(1), loss)),
    }


def test_a_count_that_the_device_denies_ends_the_run_at_its_last_checkpoint(
    two_ranks: RankPool,
) -> None:
    for found in two_ranks.run(miscounted):
        assert found["queued"] == []
        assert type(found["error"]) is Refused
        assert "rank 1, step 0" in str(found["error"])
        assert "Go on from the last checkpoint" in str(found["error"])
        assert type(found["again"]) is RankFailed


def resumed_between() -> dict[str, Any]:
    """A commit after step 1. The process ends while step 2 is queued, and another goes on."""
    whole = Trained()
    for step in range(STEPS):
        whole.run(whole.batch(step), loss)

    first = Trained()
    recorded = [*first.run.queue(first.batch(0), loss)]
    recorded += first.run.queue(first.batch(1), loss, now=True)
    names = {parameter: name for name, parameter in first.named.items()}
    states, settings = optimizer_state(first.optimizer, names)
    commit = {name: tensor.detach().clone() for name, tensor in (first.named | states).items()}
    recorded += first.run.queue(first.batch(2), loss)
    ahead = any(not torch.equal(each, commit[name]) for name, each in first.named.items())

    second = Trained()
    with torch.no_grad():
        for name, parameter in second.named.items():
            parameter.copy_(commit[name])
    names = {parameter: name for name, parameter in second.named.items()}
    restore_optimizer(second.optimizer, names, {n: commit[n] for n in states}, settings)
    for step in range(2, STEPS):
        recorded += second.run.queue(second.batch(step), loss, now=step == STEPS - 1)
    steps = [each.step for each in recorded]
    return {"steps": steps, "ahead": ahead, "held": (whole.held(), second.held())}


@pytest.mark.parametrize("world", ["one_rank", "two_ranks"])
def test_a_resume_between_a_step_and_its_confirmation_does_it_once(
    world: str, request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue(world)
    for found in pool.run(resumed_between):
        assert found["ahead"]  # weights were past the commit when the process ended
        assert found["steps"] == [*range(STEPS)]
        assert found["held"][0] == found["held"][1]


def collectives(late: bool) -> list[tuple[str, int]]:
    """What one rank sends in three steps, and how many numbers."""
    here = Trained(late=late)
    sent: list[tuple[str, int]] = []
    gather, reduce = dist.all_gather, dist.all_reduce

    def noting_gather(rows: list[Tensor], row: Tensor, **options: Any) -> Any:
        sent.append(("gather", row.numel()))
        return gather(rows, row, **options)

    def noting_reduce(flat: Tensor, **options: Any) -> Any:
        sent.append(("reduce", flat.numel()))
        return reduce(flat, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", noting_gather)
        patch.setattr(dist, "all_reduce", noting_reduce)
        for step in range(1, 4):
            here.run.queue(here.batch(step), loss)
        here.run.confirm()
    return sent


def test_collectives_come_in_one_order_at_any_world_size(
    one_rank: RankPool, two_ranks: RankPool
) -> None:
    [alone] = one_rank.run(collectives, True)
    assert two_ranks.run(collectives, True) == [alone, alone]
    # Gradients travel as they do where a step is read at once.
    [at_once] = one_rank.run(collectives, False)
    sums = [each for each in alone if each[0] == "reduce"]
    assert sums == [each for each in at_once if each[0] == "reduce"]
    assert sums


def one_queued(fused: bool, stop: bool = False) -> dict[str, Any]:
    here = Trained(fused=fused)
    batch = replace(
        here.batch(0), asked=AfterStep.STOP if stop and dist.get_rank() == 1 else AfterStep.NOTHING
    )
    queued = here.run.queue(batch, loss)
    again = raised(lambda: here.run(here.batch(1), loss))
    return {"queued": queued, "again": again, "waited": here.run.confirm()}


def test_an_optimizer_that_cant_be_told_to_stay_is_read_for_at_once(two_ranks: RankPool) -> None:
    for found in two_ranks.run(one_queued, False):
        assert [each.step for each in found["queued"]] == [0]
        assert found["again"] is None
        assert found["waited"] is None


def one_sharded() -> list[StepResult]:
    torch.manual_seed(3)
    model = GPT(2, 8, CONTEXT, VOCABULARY, heads=2)
    for each in (*model.blocks, model):
        fully_shard(each)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    route = allow_all(model)
    run = governed(model, optimizer, [route], aggregator="fsdp2", late=True)
    rows = token_rows(2, CONTEXT, VOCABULARY, dist.get_rank())
    return [*run.queue(step_batch(0, [micro_batch(route, rows)]), loss)]


def test_so_is_a_model_that_ranks_share(two_ranks: RankPool) -> None:
    for queued in two_ranks.run(one_sharded):
        assert [each.step for each in queued] == [0]


def test_so_is_a_step_that_some_rank_asks_to_be_the_last(two_ranks: RankPool) -> None:
    for found in two_ranks.run(one_queued, True, True):
        assert [each.asked for each in found["queued"]] == [AfterStep.STOP]


def test_a_step_that_waits_is_never_passed_over(two_ranks: RankPool) -> None:
    for found in two_ranks.run(one_queued, True):
        assert found["queued"] == []
        assert type(found["again"]) is UsageError
        assert found["waited"].step == 0
