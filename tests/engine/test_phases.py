"""Rows whose route has phases: what is closed stays as it was, and other domains notice nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from govray.engine.batch import StepBatch
from govray.engine.collective.step_settings import AggregatorName
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import GovernedStep
from govray.errors import Refused
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.route import Route, RoutePhase
from govray.governance.record.gates import changed_routes
from govray.train.checkpoint.optimizer_state import optimizer_state
from tests.support.changing_routes import CONTEXT, VOCABULARY, build, digest, read
from tests.support.ranks import RankPool
from tests.support.violations import global_clip, zero_instead_of_absent

STEPS, BEGINS, ENDS = 5, 2, 4
CLOSED = ("embedding", "block.0")
UPPER = {"block.1": 1.0, "final_norm": 1.0, "head": 0.5}
WHOLE = {"embedding": 1.0, "block.0": 1.0, "block.1": 1.0, "final_norm": 1.0, "head": 1.0}
PHASED = Route(UPPER, phases=(RoutePhase(BEGINS, WHOLE), RoutePhase(ENDS, UPPER)))
OWN = Route({}, "notes", 2)
CORPORA = ("notes", "open")

States = list[dict[str, str]]
"""For each step, and before the first: name of a tensor → digest."""


def routes(phased: Route) -> CorpusRoutes:
    return CorpusRoutes({"open": phased, "notes": OWN})


def due(phased: Route, step: int) -> dict[str, str]:
    found = changed_routes([], {}, 0, step, routes(phased).phased)
    return {corpus: route.digest for corpus, route in found.items() if route}


def batch_of(step: int, phased: Route, corpora: Collection[str]) -> StepBatch:
    """This rank's rows, by the routes that are due."""
    streams = {route: [name] * 5 for name, route in routes(phased).items() if name in corpora}
    return read(step, streams, dist.get_rank(), dist.get_world_size()).rerouted(due(phased, step))


def build_phased(
    phased: Route, aggregator: AggregatorName
) -> tuple[GovernedStep, torch.optim.Optimizer]:
    alternatives = {phased.digest: [each.digest for each in phased.later]}
    every = [*routes(phased).by_digest.values()]
    return build(every, alternatives=alternatives, corpora=CORPORA, aggregator=aggregator)


def train(
    corpora: tuple[str, ...] = CORPORA,
    phased: Route = PHASED,
    violation: str | None = None,
    aggregator: AggregatorName = "governed",
) -> States:
    with pytest.MonkeyPatch.context() as patch:
        if violation is not None:
            VIOLATIONS[violation](patch)
        governed, optimizer = build_phased(phased, aggregator)
        names = {p: name for name, p in governed.routed.parameters.items()}
        states = [{name: digest(p) for p, name in names.items()}]
        for step in range(STEPS):
            governed.reroute(due(phased, step))
            governed(batch_of(step, phased, corpora), loss)
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
    governed, _ = build_phased(PHASED, "governed")
    batch = batch_of(BEGINS, PHASED, CORPORA)
    governed.reroute(due(PHASED, BEGINS))
    if dist.get_rank() == rank:
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
