"""Rows whose route has phases: what is closed stays as it was, and other domains notice nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import AggregatorName, StepSettings
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import GovernedStep, build_step
from govray.errors import Refused
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.route import Route, RoutePhase
from govray.governance.record.batch_plan import rank_slice
from govray.governance.record.gates import changed_routes
from govray.train.checkpoint.optimizer_state import optimizer_state
from tests.support.cases import PLAN as PLAN_DIGEST
from tests.support.cases import POLICY
from tests.support.ranks import RankPool
from tests.support.violations import global_clip, zero_instead_of_absent

STEPS, BEGINS, ENDS = 5, 2, 4
CONTEXT, VOCABULARY, CLIP = 4, 17, 0.05
CLOSED = ("embedding", "block.0")
UPPER = {"block.1": 1.0, "final_norm": 1.0, "head": 0.5}
WHOLE = {"embedding": 1.0, "block.0": 1.0, "block.1": 1.0, "final_norm": 1.0, "head": 1.0}
PHASED = Route(UPPER, phases=(RoutePhase(BEGINS, WHOLE), RoutePhase(ENDS, UPPER)))
OWN = Route({}, "notes", 2)
CORPORA = ("notes", "open")

States = list[dict[str, str]]
"""For each step, and before the first: name of a tensor → digest."""


def digest(tensor: Tensor) -> str:
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def routes(phased: Route) -> CorpusRoutes:
    return CorpusRoutes({"open": phased, "notes": OWN})


def due(phased: Route, step: int) -> dict[str, str]:
    found = changed_routes([], {}, 0, step, routes(phased).phased)
    return {corpus: route.digest for corpus, route in found.items() if route}


def read(step: int, phased: Route, corpora: Collection[str], rank: int, world: int) -> StepBatch:
    """A rank's slice of each stream; a row is a function of step, corpus and position."""
    parts, counts = [], {}
    for corpus, route in routes(phased).items():
        mine = rank_slice(range(5), rank, world)
        if not mine or corpus not in corpora:
            continue
        rows = torch.stack([row(step, corpus, position) for position in mine])
        parts.append(
            MicroBatch(
                route.digest,
                {"tokens": rows[:, :-1], "targets": rows[:, 1:]},
                positions=tuple(mine),
                row_targets=(CONTEXT,) * len(mine),
                corpora=(corpus,) * len(mine),
            )
        )
        counts[corpus] = (len(mine), len(mine) * CONTEXT)
    return StepBatch(step, tuple(parts), counts).rerouted(due(phased, step))


def row(*key: object) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")
    return torch.randint(VOCABULARY, (CONTEXT + 1,), generator=torch.Generator().manual_seed(seed))


def build(phased: Route, aggregator: AggregatorName) -> tuple[GovernedStep, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = GPT(2, 32, CONTEXT, VOCABULARY, dropout=0.1).double()
    if aggregator == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    adapters = Adapters(model, {"notes": 2}, seed=5)
    parameters = [*model.parameters(), *dict(adapters.named_parameters()).values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    governed = build_step(
        model,
        optimizer,
        groups=layer_groups(model),
        routes=routes(phased).by_digest,
        alternatives={phased.digest: [each.digest for each in phased.later]},
        adapters=adapters,
        terms=Terms(policy_digest=POLICY, plan_digest=PLAN_DIGEST, corpora=CORPORA),
        settings=StepSettings(seed=5, clip_norm=CLIP, max_rows=2, aggregator=aggregator),
    )
    governed._try_rows = None  # it changes no number
    return governed, optimizer


def train(
    corpora: tuple[str, ...] = CORPORA,
    phased: Route = PHASED,
    violation: str | None = None,
    aggregator: AggregatorName = "governed",
) -> States:
    with pytest.MonkeyPatch.context() as patch:
        if violation is not None:
            VIOLATIONS[violation](patch)
        rank, world = dist.get_rank(), dist.get_world_size()
        governed, optimizer = build(phased, aggregator)
        names = {p: name for name, p in governed.routed.parameters.items()}
        states = [{name: digest(p) for p, name in names.items()}]
        for step in range(STEPS):
            governed.reroute(due(phased, step))
            governed(read(step, phased, corpora, rank, world), loss)
            moments, _ = optimizer_state(optimizer, names)
            tensors = {name: p for p, name in names.items()} | moments
            states.append({name: digest(tensor) for name, tensor in tensors.items()})
        return states


VIOLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global clip": global_clip,
    "zero gradients": zero_instead_of_absent,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Callable[..., States]:
    """(world size, arguments of `train`) → the states, equal on all ranks; each trained once."""
    done: dict[tuple[object, ...], States] = {}

    def get(world: int, *args: object) -> States:
        if (world, *args) not in done:
            pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
            found = pool.run(train, *args)
            assert all(each == found[0] for each in found)
            done[(world, *args)] = found[0]
        return done[(world, *args)]

    return get


Runs = Callable[..., States]


def base(state: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in state.items() if "adapter:" not in name}


def of_closed(state: dict[str, str]) -> dict[str, str]:
    """Weights, and moments if there are any, of the layers that only the middle phase trains."""
    groups = layer_groups(GPT(2, 32, CONTEXT, VOCABULARY))
    names = [fqn for group in CLOSED for fqn in groups[group]]
    return {name: each for name, each in state.items() if any(fqn in name for fqn in names)}


@pytest.mark.parametrize("world", [2, 4])
def test_a_corpus_of_another_domain_is_not_noticed_in_any_phase(runs: Runs, world: int) -> None:
    both, alone = runs(world), runs(world, ("open",))
    assert [base(state) for state in both] == [base(state) for state in alone]
    assert both[-1] != alone[-1]  # its adapter


def test_a_global_clip_would_be_noticed(runs: Runs) -> None:
    both, alone = (runs(2, corpora, PHASED, "global clip") for corpora in (CORPORA, ("open",)))
    assert base(both[-1]) != base(alone[-1])


@pytest.mark.parametrize("world", [2, 4])
def test_what_a_phase_closes_stays_as_it_was(runs: Runs, world: int) -> None:
    states = [of_closed(state) for state in runs(world)]
    assert states[: BEGINS + 1] == [states[0]] * (BEGINS + 1)  # no weight moves, no moment is made
    changes = [one != other for one, other in pairwise(states)]
    assert changes == [BEGINS <= step < ENDS for step in range(STEPS)]
    upper = [base(state) for state in runs(world)]
    assert all(one != other for one, other in pairwise(upper))


def test_zero_gradients_would_move_what_is_closed(runs: Runs) -> None:
    states = [of_closed(state) for state in runs(2, CORPORA, PHASED, "zero gradients")]
    assert states[0] != states[BEGINS]


@pytest.mark.story
def test_torchs_own_sums_keep_it_too(two_ranks: RankPool) -> None:
    both, alone = (
        two_ranks.run(train, corpora, PHASED, None, "fsdp2")[0] for corpora in (CORPORA, ("open",))
    )
    assert [base(state) for state in both] == [base(state) for state in alone]
    states = [of_closed(state) for state in both]
    changes = [one != other for one, other in pairwise(states)]
    assert changes == [BEGINS <= step < ENDS for step in range(STEPS)]


def late_rank(rank: int) -> str:
    """When the phase begins, one rank stays in the one before."""
    governed, _ = build(PHASED, "governed")
    here, world = dist.get_rank(), dist.get_world_size()
    batch = read(BEGINS, PHASED, CORPORA, here, world)
    governed.reroute(due(PHASED, BEGINS))
    if here == rank:
        parts = tuple(replace(each, taken=None) for each in batch.micro_batches)
        batch = replace(batch, micro_batches=parts)
    try:
        governed(batch, loss)
    except Refused as error:
        return str(error)
    return "trained"


def test_ranks_that_differ_about_a_phase_stop_together(two_ranks: RankPool) -> None:
    assert two_ranks.run(late_rank, 7) == ["trained", "trained"]
    first, second = two_ranks.run(late_rank, 1)
    assert first == second
    assert "rows of corpus open take route" in first
