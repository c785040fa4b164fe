"""Rows whose route a gate or a phase changes: only their own domain learns something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.step_settings import AggregatorName
from govray.engine.gradients.pass_planner import Pass
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.keyed_dropout import Keyed
from govray.engine.step import GovernedStep
from govray.engine.steps import routed
from govray.errors import Refused
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.route import Route, RoutePhase
from govray.governance.record.batch_plan import rank_slice
from govray.governance.record.gates import changed_routes
from govray.train.checkpoint.optimizer_state import optimizer_state
from tests.support.cases import governed
from tests.support.drawn_rows import VOCABULARY, digest, drawn_row
from tests.support.ranks import RankPool
from tests.support.violations import global_clip, zero_instead_of_absent

CONTEXT, STEPS = 4, 5
GATE, BEGINS, ENDS = 2, 2, 4
UPPER = {"block.1": 1.0, "final_norm": 1.0, "head": 0.5}
WHOLE = {"embedding": 1.0, "block.0": 1.0, "block.1": 1.0, "final_norm": 1.0, "head": 1.0}
EVERYTHING, OWN = Route(WHOLE), Route({}, "notes", 2)
TEAM, OTHER = Route({}, "team", 4), Route({}, "other", 4)
PHASED = Route(UPPER, phases=(RoutePhase(BEGINS, WHOLE), RoutePhase(ENDS, UPPER)))
BY_PHASE = CorpusRoutes({"open": PHASED, "notes": OWN})

Taken = dict[str, str]
"""Corpus → digest of the route that its rows take."""


def gated(step: int) -> Taken:
    return {"notes": OWN.digest} if step >= GATE else {}


def due(step: int) -> Taken:
    found = changed_routes([], {}, 0, step, BY_PHASE.phased)
    return {corpus: route.digest for corpus, route in found.items() if route}


@dataclass(frozen=True)
class Case:
    """A run: its routes, their alternatives, the rows of a step by corpus, and what they take."""

    routes: Sequence[Route]
    alternatives: Mapping[Route, Sequence[Route]]
    streams: Mapping[Route, Sequence[str]]
    taken: Callable[[int], Taken] = lambda step: {}

    def step(self, aggregator: AggregatorName = "governed") -> GovernedStep:
        """Of a GPT of two blocks, sharded if that is the aggregator; rows are not tried."""
        torch.manual_seed(3)
        model = GPT(2, 32, CONTEXT, VOCABULARY, dropout=0.1).double()
        for each in (*model.blocks, model) if aggregator == "fsdp2" else ():
            fully_shard(each)
        ranks = {route.adapter: route.rank for route in self.routes if route.adapter}
        adapters = Adapters(model, ranks, seed=5)
        parameters = [*model.parameters(), *dict(adapters.named_parameters()).values()]
        return governed(
            model,
            torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
            self.routes,
            adapters=adapters,
            alternatives={
                r.digest: [each.digest for each in a] for r, a in self.alternatives.items()
            },
            corpora=("friend", "notes", "open", "other"),
            seed=5,
            clip_norm=0.05,
            max_rows=2,
            tries_rows=False,
            aggregator=aggregator,
        )

    def batch(self, step: int) -> StepBatch:
        """This rank's slice of each stream, in order of positions, not rerouted yet."""
        parts, corpora = [], {}
        for route, names in self.streams.items():
            mine = rank_slice(range(len(names)), dist.get_rank(), dist.get_world_size())
            if held := sorted(mine, key=lambda position: names[position]):
                drawn = [drawn_row(step, names[p], p, context=CONTEXT) for p in held]
                rows = torch.stack(drawn)
                own = tuple(names[position] for position in held)
                tensors = {"tokens": rows[:, :-1], "targets": rows[:, 1:]}
                counted = (CONTEXT,) * len(held)
                parts.append(MicroBatch(route.digest, tensors, tuple(held), counted, own))
                corpora |= {name: (own.count(name), own.count(name) * CONTEXT) for name in own}
        return StepBatch(step, tuple(parts), corpora)


GATES = Case(
    [EVERYTHING, TEAM, OTHER, OWN],
    {TEAM: [OWN]},
    {
        EVERYTHING: ["open"] * 5,
        TEAM: ["friend", "notes", "notes", "friend", "notes"],
        OTHER: ["other"] * 3,
    },
    gated,
)
OPEN = {PHASED: ["open"] * 5}
PHASES = Case(
    [*BY_PHASE.by_digest.values()], {PHASED: PHASED.later}, OPEN | {OWN: ["notes"] * 5}, due
)
CASES = {
    "ungated": replace(GATES, taken=lambda step: {}),
    "gated": GATES,
    "phased": PHASES,
    "phased alone": replace(PHASES, streams=OPEN),
}


@dataclass(frozen=True)
class Trained:
    """Digests of weights and moments before the first step and after each, masks by (step, stream,
    position, module), and the domain of each layer group."""

    states: list[dict[str, str]]
    masks: dict[tuple[int, str, int, str], str]
    domains: dict[str, str]


def train(case: str, violation: str | None = None, host: AggregatorName = "governed") -> Trained:
    masks: dict[tuple[int, str, int, str], str] = {}
    kept = Keyed.kept

    def noted(self: Keyed, fqn: str, p: float, inputs: Tensor) -> Tensor:
        drawn = kept(self, fqn, p, inputs)
        for (stream, position), mask in zip(self._rows or (), drawn, strict=True):
            masks[self._step, stream, position, fqn] = digest(mask)
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        if violation is not None:
            VIOLATIONS[violation](patch)
        patch.setattr(Keyed, "kept", noted)
        run = CASES[case].step(host)
        named = run.routed.parameters
        states = [{name: digest(p) for name, p in named.items()}]
        for step in range(STEPS):
            taken = CASES[case].taken(step)
            run.reroute(taken)
            run(CASES[case].batch(step).rerouted(taken), loss)
            moments, _ = optimizer_state(run.optimizer, {p: name for name, p in named.items()})
            states.append({name: digest(each) for name, each in (named | moments).items()})
    domains = {group: each.name for each in run.routed.domains for group in each.groups}
    return Trained(states, masks, domains)


# How to lose it. Each replaces one small piece of the engine.


def no_links(patch: pytest.MonkeyPatch) -> None:
    """Give a fallback a domain of its own, as if no gate decided what it learns."""
    linked = routed.domains
    patch.setattr(routed, "domains", lambda routes, groups, links: linked(routes, groups))


def keyed_by_the_fallback(patch: pytest.MonkeyPatch) -> None:
    """Draw masks for the route that rows take."""

    def rows(self: Pass) -> tuple[tuple[str, int], ...]:
        return tuple((p.route, i) for p in self.parts for i in p.positions)

    patch.setattr(Pass, "rows", property(rows))


VIOLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global clip": global_clip,
    "no links": no_links,
    "keyed by the fallback": keyed_by_the_fallback,
    "zero gradients": zero_instead_of_absent,
}

Runs = Callable[..., Trained]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Runs:
    """(world size, arguments of `train`) → the run, done once; states are equal on all ranks."""
    done: dict[tuple[object, ...], Trained] = {}

    def get(world: int, *args: object) -> Trained:
        if (world, *args) not in done:
            pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
            found = pool.run(train, *args)
            assert all(each.states == found[0].states for each in found)
            masks = {place: mask for each in found for place, mask in each.masks.items()}
            done[(world, *args)] = replace(found[0], masks=masks)
        return done[(world, *args)]

    return get


def differing(one: Trained, other: Trained) -> set[str]:
    """The adapters, and the base as one, whose weights or moments differ at the end."""
    ours, theirs = one.states[-1], other.states[-1]
    odd = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    found = (re.search("adapter:[^/]*", name) for name in odd)
    return {each[0] if each else "base" for each in found}


def base(run: Trained) -> list[dict[str, str]]:
    return [{n: each for n, each in s.items() if "adapter:" not in n} for s in run.states]


def changes(run: Trained) -> list[bool]:
    """In which steps anything moves, moments included, that only the middle phase trains."""
    lower = ("embedding.", "blocks.0.")
    states = [{n: each for n, each in s.items() if any(p in n for p in lower)} for s in base(run)]
    return [one != other for one, other in pairwise(states)]


IN_THE_MIDDLE = [BEGINS <= step < ENDS for step in range(STEPS)]


@pytest.mark.parametrize("world", [2, 4])
def test_a_gate_changes_its_own_domain_only_and_no_mask(runs: Runs, world: int) -> None:
    without, fallen = runs(world, "ungated"), runs(world, "gated")
    found = differing(without, fallen)
    assert found == {"adapter:team", "adapter:notes"}
    assert len({fallen.domains[group] for group in found}) == 1
    assert fallen.domains == without.domains
    own = [name for name in fallen.states[0] if name.startswith("adapter:notes/")]
    assert all(without.states[-1][name] == without.states[0][name] for name in own)
    assert any(fallen.states[-1][name] != fallen.states[0][name] for name in own)
    assert without.masks == fallen.masks
    assert len(without.masks) > STEPS * 13


@pytest.mark.parametrize("world", [2, 4])
def test_a_phase_moves_what_it_opens_and_no_other_domain_notices(runs: Runs, world: int) -> None:
    both, alone = runs(world, "phased"), runs(world, "phased alone")
    assert base(both) == base(alone)
    assert differing(both, alone) == {"adapter:notes"}
    assert changes(both) == IN_THE_MIDDLE
    assert all(one != other for one, other in pairwise(base(both)))


def test_each_violation_shows(runs: Runs) -> None:
    def pair(violation: str, *cases: str) -> tuple[Trained, Trained]:
        one, other = (runs(2, case, violation) for case in cases)
        return one, other

    assert "base" in differing(*pair("global clip", "ungated", "gated"))
    assert "base" in differing(*pair("global clip", "phased", "phased alone"))
    without, fallen = pair("no links", "ungated", "gated")
    assert len({fallen.domains[group] for group in differing(without, fallen)}) == 2
    without, fallen = pair("keyed by the fallback", "ungated", "gated")
    assert without.masks != fallen.masks
    assert any(changes(runs(2, "phased", "zero gradients"))[:BEGINS])


@pytest.mark.story
def test_torchs_own_sums_keep_it_too(runs: Runs) -> None:
    without, fallen, both, alone = (runs(2, case, None, "fsdp2") for case in CASES)
    assert differing(without, fallen) == {"adapter:team", "adapter:notes"}
    # Padding rows, of which there may be others, teach nothing.
    shared = without.masks.keys() & fallen.masks.keys()
    assert all(without.masks[place] == fallen.masks[place] for place in shared)
    assert len(shared) > STEPS
    assert base(both) == base(alone)
    assert changes(both) == IN_THE_MIDDLE


# Ranks that differ about a gate or a phase.


def goes_on(rank: int) -> tuple[Case, Taken, Taken]:
    """After the gate, one rank still trains as before."""
    own = {"notes": (OTHER if dist.get_rank() == rank else OWN).digest}
    return GATES, own, own


def wide_rows(rank: int) -> tuple[Case, Taken, Taken]:
    """All agree on the gate, and one rank's rows still take the stream's own route."""
    return GATES, gated(GATE), {} if dist.get_rank() == rank else gated(GATE)


def late_rank(rank: int) -> tuple[Case, Taken, Taken]:
    """When the phase begins, one rank stays in the one before."""
    return PHASES, due(BEGINS), {} if dist.get_rank() == rank else due(BEGINS)


def refused(ranks_differ: Callable[[int], tuple[Case, Taken, Taken]], rank: int) -> str:
    case, agreed, rows = ranks_differ(rank)
    run = case.step()
    run.reroute(agreed)
    try:
        run(case.batch(BEGINS).rerouted(rows), loss)
    except Refused as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize(
    ("ranks_differ", "says"),
    [
        (goes_on, "no fallback of it"),
        (wide_rows, "rows of corpus notes take route"),
        (late_rank, "rows of corpus open take route"),
    ],
)
def test_ranks_that_differ_stop_together(
    two_ranks: RankPool, ranks_differ: Callable[[int], tuple[Case, Taken, Taken]], says: str
) -> None:
    assert two_ranks.run(refused, ranks_differ, 7) == ["trained", "trained"]
    first, second = two_ranks.run(refused, ranks_differ, 1)
    assert first == second
    assert says in first
