"""Profiles on several ranks: one for all, whoever holds the rows, and one error for all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.memorization.probe_sharing import Probe, own_probe_rows
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.errors import RankFailed
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.route import Route
from govray.governance.record.entropy_profile import EntropyProfile
from govray.train.checkpoint.tensor_shards import shard
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

CONTEXT, VOCABULARY, ROWS = 8, 17, 6

SECTION = Monitoring(every=100, probe_rows=8, odds={"head": 1.5})
BY_ENTROPY = SECTION.model_copy(update={"statistic": "entropy"})


def monitor(
    model: nn.Module | None = None, rows_per_pass: int = 4, adapters: Adapters | None = None
) -> Monitor:
    torch.manual_seed(0)
    model = model or GPT(2, 16, CONTEXT, VOCABULARY, heads=2)
    agreement = Agreement(Terms(policy_digest=POLICY, plan_digest=PLAN, corpora=("notes", "open")))
    if adapters is None:
        adapters = Adapters(model, {"notes": 2}, seed=0)
        with torch.no_grad():
            for _, parameter in adapters.named_parameters():
                parameter.add_(0.2)
    return Monitor(
        model, adapters, agreement, logits=logits_in(loss), seed=0, rows_per_pass=rows_per_pass
    )


def probe(corpus: str, key: int, adapter: str | None = None, error: str | None = None) -> Probe:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own = own_probe_rows(ROWS, rank, world)
    rows = token_rows(ROWS, CONTEXT, VOCABULARY, key)
    return Probe(
        corpus=corpus,
        adapter=adapter,
        probe_units=("a", "b", "c"),
        reserve_units=("d", "e", "f"),
        tensors=None
        if error
        else {name: each[own.start : own.stop] for name, each in rows.items()},
        error=error,
    )


def profile() -> EntropyProfile:
    return monitor().profile(99, [probe("open", 1), probe("notes", 2, "notes")], section=SECTION)


def test_a_profile_has_a_measure_for_each_corpus_and_layer() -> None:
    found = profile()
    assert [measure.place for measure in found.measures] == [
        ("notes", "block.0"),
        ("notes", "head"),
        ("open", "block.0"),
        ("open", "head"),
    ]
    assert (found.step, found.statistic) == (99, "composite")
    assert EntropyProfile.from_json(found.to_json()) == found
    assert profile() == found


def close(one: EntropyProfile, other: EntropyProfile) -> bool:
    return all(
        a.place == b.place
        and a.probe.entropy == pytest.approx(b.probe.entropy, rel=1e-5)
        and a.reserve.min_k == pytest.approx(b.reserve.min_k, rel=1e-3, abs=1e-4)
        and a.top == b.top
        for a, b in zip(one.measures, other.measures, strict=True)
    )


@pytest.mark.parametrize("pool", ["two_ranks", "four_ranks"])
def test_all_ranks_make_the_profile_that_one_makes(
    pool: str, request: pytest.FixtureRequest
) -> None:
    ranks: RankPool = request.getfixturevalue(pool)
    first, *others = ranks.run(profile)
    assert all(each == first for each in others)
    assert close(first, profile())


def sharded_profile() -> EntropyProfile:
    torch.manual_seed(0)
    model = GPT(2, 16, CONTEXT, VOCABULARY, heads=2)
    shard(model)
    return monitor(model).profile(99, [probe("open", 1)], section=SECTION)


def test_a_sharded_model_is_measured_like_a_whole_one(two_ranks: RankPool) -> None:
    """Its forward is collective, and the lens reads weights that are whole only in it."""
    first, second = two_ranks.run(sharded_profile)
    assert first == second
    whole = monitor().profile(99, [probe("open", 1)], section=SECTION)
    assert close(first, whole)


def trained(monitored: bool) -> list[Tensor]:
    """Weights of base model and adapter after four steps on this rank."""
    torch.manual_seed(0)
    model = GPT(2, 16, CONTEXT, VOCABULARY, heads=2, dropout=0.2)
    adapters = Adapters(model, {"notes": 2}, seed=0)
    parameters = [*model.parameters(), *(each for _, each in adapters.named_parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    routes = [allow_all(model), Route(weights={}, adapter="notes", rank=2)]
    step = governed(model, optimizer, routes, adapters=adapters)
    made = monitor(model, adapters=adapters)
    for place in range(4):
        batches = [
            micro_batch(
                route,
                token_rows(2, CONTEXT, VOCABULARY, place, key, dist.get_rank()),
                first=2 * dist.get_rank(),
            )
            for key, route in enumerate(routes)
        ]
        step(step_batch(place, batches), loss)
        if monitored:
            probes = [probe("open", 1), probe("notes", 2, "notes")]
            made.profile(place, probes, section=SECTION)
    return [each.detach().clone() for each in parameters]


def test_a_run_that_is_measured_has_the_weights_of_one_that_is_not(two_ranks: RankPool) -> None:
    for with_it, without in zip(
        two_ranks.run(trained, True), two_ranks.run(trained, False), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


class Counted(GPT):
    """Says how often it was called."""

    calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(tokens)


def calls() -> int:
    """Forward passes of this rank, of rows that don't divide evenly by ranks and passes."""
    model = Counted(2, 16, CONTEXT, VOCABULARY, heads=2)
    monitor(model, rows_per_pass=1).profile(0, [probe("open", 1)], section=BY_ENTROPY)
    return model.calls


def failing(how: str) -> None:
    rank = dist.get_rank()
    if how == "unread":
        bad = probe("open", 1, error="shard 3 is damaged" if rank == 1 else None)
        monitor().profile(5, [bad], section=BY_ENTROPY)
        return
    made = monitor()
    if rank == 1:
        made._logits = lambda model, tensors: (_ for _ in ()).throw(ZeroDivisionError("oh"))
    made.profile(5, [probe("open", 1)], section=BY_ENTROPY)


@pytest.mark.parametrize(
    ("how", "said"), [("unread", "shard 3 is damaged"), ("raises", "ZeroDivisionError: oh")]
)
def test_one_rank_that_fails_stops_all_with_its_error(
    two_ranks: RankPool, how: str, said: str
) -> None:
    for outcome in two_ranks.outcomes(failing, how):
        assert isinstance(outcome, RankFailed)
        assert said in str(outcome)
        assert "rank 1" in str(outcome)


def test_scores_that_are_not_finite_are_an_error_that_names_the_corpus() -> None:
    made = monitor()
    with torch.no_grad():
        next(made._model.parameters()).fill_(torch.nan)
    with pytest.raises(RankFailed, match="corpus open is not finite"):
        made.profile(5, [probe("open", 1)], section=BY_ENTROPY)
