"""What ranks compare when they start and at every step, and what they count together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

from govray.engine.batch import AfterStep
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.model.gpt import GPT, loss
from govray.errors import Refused
from tests.support.cases import (
    PLAN,
    POLICY,
    allow_all,
    governed,
    micro_batch,
    step_batch,
    token_rows,
)
from tests.support.ranks import RankPool

OTHER = "sha256:" + "f" * 64
START = datetime(2026, 11, 1, tzinfo=UTC)


def asked_to(by_rank: dict[int, AfterStep]) -> list[AfterStep]:
    """What each of two steps was told; only the second was asked."""
    torch.manual_seed(0)
    model = GPT(2, 16, 8, 13)
    route = allow_all(model)
    run = governed(model, torch.optim.AdamW(model.parameters()), [route])
    told = []
    for step in (0, 1):
        rows = token_rows(3, 8, 13, step, dist.get_rank())
        batch = step_batch(step, [micro_batch(route, rows)])
        asked = by_rank.get(dist.get_rank(), AfterStep.NOTHING) if step else AfterStep.NOTHING
        told.append(run(replace(batch, asked=asked), loss).asked)
    return told


def test_all_ranks_hear_in_the_same_step_the_most_that_one_was_asked(two_ranks: RankPool) -> None:
    commit, pause, stop = AfterStep.COMMIT, AfterStep.PAUSE, AfterStep.STOP
    for by_rank, heard in (
        ({0: stop}, stop),
        ({1: pause}, pause),
        ({0: commit}, commit),
        ({0: commit, 1: stop}, stop),
        ({}, AfterStep.NOTHING),
    ):
        assert two_ranks.run(asked_to, by_rank) == [[AfterStep.NOTHING, heard]] * 2


def agreement(**changed: Any) -> Agreement:
    settings: dict[str, Any] = {
        "groups": ("a", "b"),
        "corpora": ("x", "y"),
        "policy_digest": POLICY,
        "plan_digest": PLAN,
        "setup": {"rows": 1},
    } | changed
    shape = {name: settings.pop(name) for name in ("groups", "setup")}
    return Agreement(Terms(**settings), **shape)


def differ_at_start(changed: Mapping[str, Any]) -> str:
    try:
        agreement(**(changed if dist.get_rank() == 1 else {}))
    except Refused as error:
        return str(error)
    return "agreed"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"policy_digest": OTHER}, f"policy digest differs between ranks: {OTHER} here, {POLICY}"),
        ({"plan_digest": OTHER}, f"plan digest differs between ranks: {OTHER} here, {PLAN}"),
        # Sizes differ too: the gather of a step would not even fail cleanly.
        ({"groups": ("a", "b", "c")}, "digest of model, routes and settings differs"),
        ({"corpora": ("x",)}, "digest of model, routes and settings differs"),
        ({"setup": {"rows": 2}}, "digest of model, routes and settings differs"),
        ({"valid_until": {"policy": START}}, "digest of model, routes and settings differs"),
    ],
    ids=["policy", "plan", "groups", "corpora", "setup", "expiry"],
)
def test_ranks_that_start_differently_are_refused(
    two_ranks: RankPool, changed: Mapping[str, Any], what: str
) -> None:
    first, second = two_ranks.run(differ_at_start, changed)
    assert first == second
    assert first.startswith(f"rank 1: {what}")


def differ_later(field: str) -> str:
    """One rank's digest changes between two steps, as if it had swapped its policy."""
    made = agreement()
    made.start(0, {}, {}, None).wait()
    if dist.get_rank() == 1:
        made.terms = replace(made.terms, **{field: OTHER})
    try:
        made.start(1, {}, {}, None).wait()
    except Refused as error:
        return str(error)
    return "agreed"


@pytest.mark.parametrize("field", ["policy_digest", "plan_digest"])
def test_digests_are_compared_at_every_step(two_ranks: RankPool, field: str) -> None:
    first, second = two_ranks.run(differ_later, field)
    assert first == second
    assert first.startswith(f"rank 1: {field.replace('_', ' ')} differs")


def count() -> tuple[Any, Any]:
    rank = dist.get_rank()
    made = agreement(clock=lambda: START.timestamp() + 1000 * rank + 0.9)
    agreed = made.start(4, {"a": 2**40 + rank}, {"x": (1, 8 + rank)}, None).wait()
    sums = made.conclude(4, torch.tensor([[0.1, rank]], dtype=torch.float64), None)
    return agreed, sums.tolist()


def test_counts_are_exact_sums_and_the_time_is_rank_0s(four_ranks: RankPool) -> None:
    outcomes = four_ranks.run(count)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    agreed, sums = outcomes[0]
    assert agreed.group_targets == {"a": 4 * 2**40 + 6, "b": 0}
    assert agreed.corpus_counts == {"x": (4, 38)}
    assert agreed.time == int(START.timestamp())
    assert sums == [[pytest.approx(0.4), 6.0]]


def expire(until: Mapping[str, datetime], seconds: float) -> str:
    # Rank 1's own clock is a day behind, and must not matter.
    offset = -86400 * dist.get_rank()
    made = agreement(clock=lambda: START.timestamp() + seconds + offset, valid_until=until)
    try:
        made.start(7, {}, {}, None).wait()
    except Refused as error:
        return str(error)
    return "agreed"


def test_what_expires_in_flight_stops_all_ranks_by_rank_0s_clock(two_ranks: RankPool) -> None:
    until = {"policy licences": START, "credential of acme": datetime(2027, 1, 1, tzinfo=UTC)}
    assert two_ranks.run(expire, until, -1.0) == ["agreed", "agreed"]
    for seconds in (0.0, 1.0):
        first, second = two_ranks.run(expire, until, seconds)
        assert first == second
        assert first.startswith("step 7: policy licences expired: valid until 2026-11-01T00:00:00")
