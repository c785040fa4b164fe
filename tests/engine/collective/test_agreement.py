"""Whatever goes wrong on one rank up to the optimizer stops all with one error; no weight moves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.batch import AfterStep, StepBatch
from govray.engine.collective.agreement import Agreement, RankFailure, Terms
from govray.engine.model.gpt import GPT, loss
from govray.errors import GovrayError, InfrastructureFailed, RankFailed, Refused, UsageError
from tests.support.cases import (
    CORPUS,
    PLAN,
    POLICY,
    allow_all,
    governed,
    micro_batch,
    step_batch,
    token_rows,
)
from tests.support.ranks import RankPool

Fault = Callable[[StepBatch], tuple[StepBatch, Any]]

OTHER = "sha256:" + "f" * 64
START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Stopped:
    error: GovrayError | None
    cause: str
    moved: bool
    left_gradients: bool


def fingerprint(model: nn.Module) -> str:
    state = hashlib.sha256()
    for p in model.parameters():
        state.update(p.detach().numpy().tobytes())
    return state.hexdigest()


# Faults of one step: (batch, loss function) → what the faulty rank uses instead.


def cannot_load(batch: StepBatch) -> tuple[StepBatch, Any]:
    return StepBatch(batch.step, (), {}, error="shard 3: its digest is not the manifest's"), loss


def cannot_reach(batch: StepBatch) -> tuple[StepBatch, Any]:
    return StepBatch(batch.step, (), {}, error="shard 3: gone", unreachable=True), loss


def is_refused_its_batch(batch: StepBatch) -> tuple[StepBatch, Any]:
    return StepBatch(batch.step, (), {}, error="shard 3 changed", refused=True), loss


def is_cut_off(batch: StepBatch) -> tuple[StepBatch, Any]:
    def broken(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        raise InfrastructureFailed("storage is out of reach")

    return batch, broken


def raises_in_forward(batch: StepBatch) -> tuple[StepBatch, Any]:
    def broken(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        raise ValueError("no such token: ünknown")

    return batch, broken


def is_elsewhere(batch: StepBatch) -> tuple[StepBatch, Any]:
    return replace(batch, step=batch.step + 1), loss


def reduces_its_losses(batch: StepBatch) -> tuple[StepBatch, Any]:
    return batch, lambda model, rows: loss(model, rows).mean()


def detaches_its_losses(batch: StepBatch) -> tuple[StepBatch, Any]:
    return batch, lambda model, rows: loss(model, rows).detach()


def reads_an_unknown_stream(batch: StepBatch) -> tuple[StepBatch, Any]:
    (only,) = batch.micro_batches
    return replace(batch, micro_batches=(replace(only, stream=OTHER),)), loss


def reads_an_unknown_corpus(batch: StepBatch) -> tuple[StepBatch, Any]:
    return replace(batch, corpora={"contraband": batch.corpora[CORPUS]}), loss


def counts_a_row_too_few(batch: StepBatch) -> tuple[StepBatch, Any]:
    rows, targets = batch.corpora[CORPUS]
    return replace(batch, corpora={CORPUS: (rows - 1, targets)}), loss


def states_wrong_targets(batch: StepBatch) -> tuple[StepBatch, Any]:
    (only,) = batch.micro_batches
    stated = (only.row_targets[0] - 1, *only.row_targets[1:])
    rows, targets = batch.corpora[CORPUS]
    wrong = replace(only, row_targets=stated)
    return replace(batch, micro_batches=(wrong,), corpora={CORPUS: (rows, targets - 1)}), loss


FAULTS: dict[Fault, tuple[type[GovrayError], str]] = {
    cannot_load: (RankFailed, "rank 1, step 1: could not load its batch: shard 3: its digest"),
    cannot_reach: (InfrastructureFailed, "rank 1, step 1: could not load its batch: shard 3: gone"),
    is_refused_its_batch: (Refused, "rank 1, step 1: could not load its batch: shard 3 changed"),
    is_cut_off: (InfrastructureFailed, "rank 1, step 1: storage is out of reach"),
    raises_in_forward: (RankFailed, "rank 1, step 1: ValueError: no such token: ünknown"),
    is_elsewhere: (Refused, "rank 1: step differs between ranks: 2 here, 1 on rank 0"),
    reduces_its_losses: (UsageError, r"rank 1, step 1: loss_fn: .*shape \(\), .* \(3, 8\)"),
    detaches_its_losses: (UsageError, "rank 1, step 1: .*depend on no parameter"),
    reads_an_unknown_stream: (Refused, f"rank 1, step 1: .*{OTHER}, which no route"),
    reads_an_unknown_corpus: (Refused, "rank 1, step 1: .*contraband, which was not admitted"),
    counts_a_row_too_few: (Refused, "rank 1, step 1: .*its corpora count 2 rows"),
    states_wrong_targets: (Refused, "rank 1, step 1: .*24 loss targets, row_targets says 23"),
}


def attempt(
    fault: Callable[[StepBatch], tuple[StepBatch, Any]], faulty: tuple[int, ...]
) -> Stopped:
    """A good step, then one with the fault on the faulty ranks."""
    torch.manual_seed(0)
    model = GPT(2, 16, 8, 13)
    route = allow_all(model)
    run = governed(model, torch.optim.AdamW(model.parameters()), [route])

    def batch(step: int) -> StepBatch:
        rows = token_rows(3, 8, 13, step, dist.get_rank())
        return step_batch(step, [micro_batch(route, rows)])

    run(batch(0), loss)
    before = fingerprint(model)
    planted, loss_fn = fault(batch(1)) if dist.get_rank() in faulty else (batch(1), loss)
    error, cause = None, ""
    try:
        run(planted, loss_fn)
    except GovrayError as caught:
        error, cause = caught, repr(caught.__cause__)
    return Stopped(
        error,
        cause,
        fingerprint(model) != before,
        any(p.grad is not None for p in model.parameters()),
    )


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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.replace("_", " "))
def test_all_ranks_stop_with_one_error_that_names_the_rank(
    two_ranks: RankPool, fault: Fault
) -> None:
    kind, message = FAULTS[fault]
    outcomes = two_ranks.run(attempt, fault, (1,))
    for stopped in outcomes:
        assert type(stopped.error) is kind
        with pytest.raises(kind, match=message):
            raise stopped.error
        assert not stopped.moved
        assert not stopped.left_gradients
    assert len({str(stopped.error) for stopped in outcomes}) == 1


def test_the_rank_that_failed_keeps_the_cause(two_ranks: RankPool) -> None:
    healthy, failed = two_ranks.run(attempt, raises_in_forward, (1,))
    assert "ValueError" in failed.cause
    assert healthy.cause == "None"


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


# Routes and adapters belong to the set-up as well.


def without_second_status(fault: Fault, faulty: tuple[int, ...]) -> Stopped:
    """Take one's own failure as final, and the others' health for granted."""

    def alone(self: Agreement, step: int, sums: Tensor, failure: RankFailure | None) -> Tensor:
        if failure is not None:
            raise RankFailed(failure.text, where=f"rank {self.rank}, step {step}")
        return sums

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agreement, "conclude", alone)
        patch.setattr(Agreement, "confirm", lambda self, step, failure: None)
        stopped = attempt(fault, faulty)
    if dist.get_rank() in faulty and stopped.error is not None:
        raise stopped.error  # ends the process group, else the other rank would wait on
    return stopped


def test_without_the_second_status_the_others_do_not_learn_why(two_ranks: RankPool) -> None:
    healthy, failed = two_ranks.outcomes(without_second_status, raises_in_forward, (1,))
    assert "no such token" in str(failed)
    assert "no such token" not in str(healthy.error)
