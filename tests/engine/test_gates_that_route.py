"""A gate that sends rows to a narrower route changes its own domain, and no other row."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.collective.step_settings import AggregatorName
from govray.engine.gradients.pass_planner import Pass
from govray.engine.model.gpt import loss
from govray.engine.model.keyed_dropout import Keyed
from govray.engine.step import GovernedStep
from govray.engine.steps import routed
from govray.errors import Refused
from govray.governance.policy.route import Route
from govray.train.checkpoint.optimizer_state import optimizer_state
from tests.support.changing_routes import build, digest, read
from tests.support.ranks import RankPool
from tests.support.violations import global_clip

STEPS = 4
EVERYTHING = Route(dict.fromkeys(["embedding", "block.0", "block.1", "final_norm", "head"], 1.0))
TEAM = Route({}, "team", 4)
OTHER = Route({}, "other", 4)
OWN = Route({}, "notes", 2)
CORPORA = ("friend", "notes", "open", "other")
GATE = 2
STREAMS = {
    EVERYTHING: ["open"] * 5,
    TEAM: ["friend", "notes", "notes", "friend", "notes"],
    OTHER: ["other"] * 3,
}


@dataclass(frozen=True)
class Trained:
    """Digests of what a run left behind, its masks by (step, stream, position, module), and the
    domain of each layer group.
    """

    tensors: dict[str, str]
    first: dict[str, str]
    masks: dict[tuple[int, str, int, str], str]
    domains: dict[str, str]


def build_gated(**settings: Any) -> tuple[GovernedStep, torch.optim.Optimizer]:
    routes, alternatives = [EVERYTHING, TEAM, OTHER, OWN], {TEAM.digest: [OWN.digest]}
    return build(routes, alternatives=alternatives, corpora=CORPORA, **settings)


def train(
    gate: int | None, violation: str | None = None, aggregator: AggregatorName = "governed"
) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        if violation is not None:
            VIOLATIONS[violation](patch)
        return _train(gate, patch, aggregator)


def _train(gate: int | None, patch: pytest.MonkeyPatch, aggregator: AggregatorName) -> Trained:
    rank, world = dist.get_rank(), dist.get_world_size()
    governed, optimizer = build_gated(aggregator=aggregator)
    parameters = governed.routed.parameters
    first = {name: digest(tensor) for name, tensor in parameters.items()}
    masks: dict[tuple[int, str, int, str], str] = {}
    kept = Keyed.kept

    def noted(self: Keyed, fqn: str, p: float, inputs: Tensor) -> Tensor:
        drawn = kept(self, fqn, p, inputs)
        for (stream, position), mask in zip(self._rows or (), drawn, strict=True):
            masks[self._step, stream, position, fqn] = digest(mask)
        return drawn

    patch.setattr(Keyed, "kept", noted)
    for step in range(STEPS):
        gated = {"notes": OWN.digest} if gate is not None and step >= gate else {}
        governed.reroute(gated)
        governed(read(step, STREAMS, rank, world).rerouted(gated), loss)
    states, _ = optimizer_state(optimizer, {p: name for name, p in parameters.items()})
    return Trained(
        {name: digest(tensor) for name, tensor in (parameters | states).items()},
        first,
        masks,
        {group: each.name for each in governed.routed.domains for group in each.groups},
    )


def no_links(patch: pytest.MonkeyPatch) -> None:
    """Give a fallback a domain of its own, as if no gate decided what it learns."""
    linked = routed.domains
    patch.setattr(routed, "domains", lambda routes, groups, links: linked(routes, groups))


def keyed_by_the_fallback(patch: pytest.MonkeyPatch) -> None:
    """Draw masks for the route that rows take."""
    patch.setattr(
        Pass,
        "rows",
        property(lambda self: tuple((p.route, i) for p in self.parts for i in p.positions)),
    )


VIOLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global clip": global_clip,
    "no links": no_links,
    "keyed by the fallback": keyed_by_the_fallback,
}

Runs = Callable[..., Trained]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest) -> Runs:
    """(world size, gate, violation) → the run, done once."""
    runs: dict[tuple[int, int | None, str | None], Trained] = {}

    def get(world: int, gate: int | None, violation: str | None = None) -> Trained:
        key = world, gate, violation
        if key not in runs:
            pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
            found = pool.run(train, gate, violation)
            assert all(each.tensors == found[0].tensors for each in found)
            masks = {place: mask for each in found for place, mask in each.masks.items()}
            runs[key] = Trained(found[0].tensors, found[0].first, masks, found[0].domains)
        return runs[key]

    return get


def differing(one: Trained, other: Trained) -> set[str]:
    """The adapters, and the base as one, whose weights or moments differ."""
    names = one.tensors.keys() | other.tensors.keys()
    odd = [name for name in names if one.tensors.get(name) != other.tensors.get(name)]
    found = (re.search("adapter:[^/]*", name) for name in odd)
    return {each[0] if each else "base" for each in found}


@pytest.mark.parametrize("world", [2, 4])
def test_a_gate_changes_its_own_domain_only(trained: Runs, world: int) -> None:
    without, fallen = trained(world, None), trained(world, GATE)
    found = differing(without, fallen)
    assert found == {"adapter:team", "adapter:notes"}
    assert len({fallen.domains[group] for group in found}) == 1
    assert fallen.domains == without.domains
    own = [name for name in fallen.first if name.startswith("adapter:notes/")]
    assert all(without.tensors[name] == without.first[name] for name in own)
    assert any(fallen.tensors[name] != fallen.first[name] for name in own)


@pytest.mark.parametrize("world", [2, 4])
def test_no_row_gets_another_mask(trained: Runs, world: int) -> None:
    without, fallen = trained(world, None), trained(world, GATE)
    assert without.masks == fallen.masks
    assert len(without.masks) > STEPS * 13


def test_a_global_clip_would_change_the_base(trained: Runs) -> None:
    without, fallen = (trained(2, gate, "global clip") for gate in (None, GATE))
    assert "base" in differing(without, fallen)


@pytest.mark.story
def test_torchs_own_sums_keep_it_too(two_ranks: RankPool) -> None:
    without, fallen = (two_ranks.run(train, gate, None, "fsdp2")[0] for gate in (None, GATE))
    assert differing(without, fallen) == {"adapter:team", "adapter:notes"}
    # Padding rows, of which there may be others, teach nothing.
    both = without.masks.keys() & fallen.masks.keys()
    assert all(without.masks[place] == fallen.masks[place] for place in both)
    assert len(both) > STEPS


def test_without_links_a_gate_would_decide_for_another_domain(trained: Runs) -> None:
    without, fallen = (trained(2, gate, "no links") for gate in (None, GATE))
    found = differing(without, fallen)
    assert len({fallen.domains[group] for group in found}) == 2


def test_masks_keyed_by_the_fallback_would_move(trained: Runs) -> None:
    without, fallen = (trained(2, gate, "keyed by the fallback") for gate in (None, GATE))
    assert without.masks != fallen.masks


def one_rank_goes_on(rank: int) -> str:
    """After the gate, one rank still trains as before."""
    own = OTHER if dist.get_rank() == rank else OWN
    return _refused(lambda step: step.reroute({"notes": own.digest}), {"notes": own.digest})


def wide_rows(rank: int) -> str:
    """All agree on the gate, and one rank's rows still take the stream's own route."""
    rows = {} if dist.get_rank() == rank else {"notes": OWN.digest}
    return _refused(lambda step: step.reroute({"notes": OWN.digest}), rows)


def _refused(gate: Callable[..., None], rows: dict[str, str]) -> str:
    step, _ = build_gated()
    gate(step)
    try:
        step(read(0, STREAMS, dist.get_rank(), 2).rerouted(rows), loss)
    except Refused as error:
        return str(error)
    return "trained"


def test_ranks_that_differ_about_a_gate_stop_together(two_ranks: RankPool) -> None:
    assert two_ranks.run(wide_rows, 7) == ["trained", "trained"]
    first, second = two_ranks.run(wide_rows, 1)
    assert first == second
    assert "rows of corpus notes take route" in first
    first, second = two_ranks.run(one_rank_goes_on, 1)
    assert first == second
    assert "no fallback of it" in first
