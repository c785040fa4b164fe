"""The computed side: the ring model, and which messages a step sends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases import ADAPTER_NAME, ADAPTER_RANK, SEED, Shape
from benchmarks.ring import Link, Sample, all_reduce_bytes, fit
from benchmarks.scaling import compute
from benchmarks.traffic import MIX, STEPS, GovernedTraffic, ddp_buckets
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT

SHAPE = Shape(blocks=4, width=256, tokens=64, vocabulary=20_000)
TRAFFIC = GovernedTraffic(SHAPE)


def test_a_ring_by_hand() -> None:
    link = Link(per_message=1e-3, per_byte=1e-6)
    assert link.all_reduce(4000, 4) == pytest.approx(6 * 1e-3 + 6000 * 1e-6)
    assert link.all_gather(100, 4) == pytest.approx(3 * 1e-3 + 300 * 1e-6)
    assert all_reduce_bytes(4000, 4) == 6000


@given(per_message=st.floats(1e-7, 1e-2), per_byte=st.floats(1e-11, 1e-7))
def test_a_fit_finds_the_link_that_made_the_times(per_message: float, per_byte: float) -> None:
    link = Link(per_message, per_byte)
    samples = [
        Sample(size, world, link.all_reduce(size, world))
        for size in (2**10, 2**16, 2**22)
        for world in (2, 4)
    ]
    found = fit(samples)
    for sample in samples:
        assert found.all_reduce(sample.size, sample.world) == pytest.approx(sample.seconds, 1e-3)


def test_a_cost_that_the_times_do_not_show_is_nothing() -> None:
    # Larger messages that take less time.
    found = fit([Sample(2**10, 2, 2e-3), Sample(2**20, 2, 1e-3)])
    assert found.per_byte == 0
    assert found.per_message > 0


def test_every_parameter_is_sent_when_all_streams_are_there() -> None:
    with torch.device("meta"):
        model = GPT(SHAPE.blocks, SHAPE.width, SHAPE.tokens, SHAPE.vocabulary)
    base = sum(4 * p.numel() for p in model.parameters())
    adapters = Adapters(model, {ADAPTER_NAME: ADAPTER_RANK}, seed=SEED)
    own = sum(4 * p.numel() for _, p in adapters.named_parameters())
    assert sum(TRAFFIC.plain().all_reduces) == base
    assert sum(TRAFFIC.step(MIX).all_reduces) == base + own
    assert TRAFFIC.step(["removable"]).all_reduces == (own,)


def test_fewer_streams_send_less() -> None:
    sent = {kind: sum(TRAFFIC.step(profiles).all_reduces) for kind, profiles in STEPS.items()}
    assert sent["adapter_only"] < sent["upper_half_only"] < sent["upper_half_and_adapter"]
    assert sent["upper_half_and_adapter"] < sent["all_streams"]
    assert TRAFFIC.step([]).all_reduces == ()


def test_the_agreement_is_as_large_as_the_engine_makes_it(monkeypatch) -> None:
    sizes = []
    gather = Agreement._gather

    def record(self, row):
        sizes.append(row.numel() * row.element_size())
        return gather(self, row)

    with torch.device("meta"):
        model = GPT(SHAPE.blocks, SHAPE.width, SHAPE.tokens, SHAPE.vocabulary)
    groups = [
        "embedding",
        *(f"block.{i}" for i in range(len(model.blocks))),
        "final_norm",
        "head",
        f"adapter:{ADAPTER_NAME}",
    ]
    digest = "sha256:" + "0" * 64
    agreement = Agreement(
        Terms(policy_digest=digest, plan_digest=digest, corpora=tuple(MIX)), groups=groups
    )
    monkeypatch.setattr(Agreement, "_gather", record)
    agreement.start(0, {}, {}, None).wait()
    agreement.conclude(0, torch.zeros(len(MIX), 2, dtype=torch.float64), None)
    agreement.confirm(0, None)
    assert tuple(sizes) == TRAFFIC.step(MIX).all_gathers


def test_ddp_buckets_are_closed_when_they_reach_the_cap() -> None:
    mebi = 2**20
    assert ddp_buckets([mebi // 2] * 3) == [mebi, mebi // 2]
    assert ddp_buckets([100 * mebi, 20 * mebi, 20 * mebi, mebi]) == [100 * mebi, 40 * mebi, mebi]
    assert ddp_buckets([]) == []


def test_turns_are_the_mean_over_steps_of_one_stream() -> None:
    world, link = 8, Link(1e-4, 1e-9)
    kinds = compute(link, TRAFFIC, [world])[str(world)]
    by_hand = 0.0
    for profile, share in {"everything": 0.5, "upper_half": 0.3, "removable": 0.2}.items():
        traffic = TRAFFIC.step([profile])
        by_hand += share * (
            sum(all_reduce_bytes(size, world) for size in traffic.all_reduces)
            + 7 * sum(traffic.all_gathers)
        )
    assert kinds["by_turns"]["bytes"] == pytest.approx(by_hand)
    assert kinds["by_turns"]["seconds"] < kinds["plain_ddp"]["seconds"]
