"""Leaving a corpus out from one step on: the weights as if the plan had never read it since."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.steps.expiry import NoLongerValid, ends_of_validity
from govray.errors import Refused
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan
from tests.support.cases import governed
from tests.support.drawn_rows import VOCABULARY, digest, planned, planned_batch
from tests.support.ranks import RankPool

STEPS, GATED_AT, CONTEXT = 6, 3, 3
BOTH_READ_TWO = 1
"""A step in which both of two ranks have rows of corpus ``two``."""
START = datetime(2026, 11, 1, tzinfo=UTC)
GROUPS = ("embedding", "block.0", "block.1", "final_norm", "head")
EVERYTHING = Route(weights=dict.fromkeys(GROUPS, 1.0))
UPPER_HALF = Route(weights={"block.1": 0.5, "final_norm": 1.0, "head": 1.0})
NOTES = Route(weights={}, adapter="notes", rank=2)
ROUTES = {"one": EVERYTHING, "two": EVERYTHING, "weak": UPPER_HALF, "notes": NOTES}
CORPORA = tuple(sorted(ROUTES))
NAMES = {corpus: f"credential {corpus}" for corpus in CORPORA}


def plan(*excluded: str) -> BatchPlan:
    streams = {
        EVERYTHING: ({"one": 40, "two": 40}, 6, 1),
        UPPER_HALF: ({"weak": 40}, 4, 1),
        NOTES: ({"notes": 40}, 3, 1),
    }
    return planned(streams, steps=STEPS, context=CONTEXT, excluded=excluded)


def read(batch_plan: BatchPlan, step: int) -> StepBatch:
    return planned_batch(batch_plan, step, dist.get_rank(), dist.get_world_size())


def make(**settings: Any) -> Any:
    torch.manual_seed(0)
    model = GPT(vocabulary=VOCABULARY, context=CONTEXT, blocks=2, width=8, heads=2, dropout=0.1)
    adapters = Adapters(model, {"notes": 2}, seed=0)
    parameters = [*model.parameters(), *(p for _, p in adapters.named_parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    assert tuple(layer_groups(model)) == GROUPS
    step = governed(
        model,
        optimizer,
        [EVERYTHING, UPPER_HALF, NOTES],
        adapters=adapters,
        corpora=CORPORA,
        clip_norm=0.1,
        norms_every=2,
        **settings,
    )
    named = {**dict(model.named_parameters()), **dict(adapters.named_parameters())}
    return step, named


def train(gated: str | None, how: str) -> tuple[dict[str, str], dict[int, list[str]]]:
    """Digests of all parameters, and per step the corpora that were counted."""
    step_now = [0]
    end = START + timedelta(seconds=GATED_AT)
    settings: dict[str, Any] = {
        "clock": lambda: START.timestamp() + step_now[0] + 0.5,
        "tries_rows": how == "expires",
    }
    if how == "expires":
        settings["valid_until"] = {NAMES[gated]: end} if gated else {}
    if how == "revoked":
        # Only rank 0 knows; it hears in the middle of the run, of a time that has gone by.
        def revoked() -> dict[str, datetime]:
            return {NAMES[gated or ""]: START} if step_now[0] >= GATED_AT else {}

        settings["valid_until"] = {NAMES[gated or ""]: datetime(2099, 1, 1, tzinfo=UTC)}
        if dist.get_rank() == 0:
            settings["revoked"] = revoked
    step, named = make(**settings)
    left_out: dict[str, str] = {}
    used: dict[int, list[str]] = {}
    for number in range(STEPS):
        step_now[0] = number
        tombstones = gated is not None and how == "plan" and number >= GATED_AT
        batch = read(plan(gated) if tombstones and gated else plan(), number)
        try:
            result = step(batch.without(left_out), loss)
        except NoLongerValid as error:
            left_out = {end.name.split()[1]: end.name for end in error.ends}
            step.leave_out(left_out)
            result = step(batch.without(left_out), loss)
        used[number] = sorted(result.corpus_counts)
    return {name: digest(parameter) for name, parameter in named.items()}, used


Outcome = tuple[dict[str, str], dict[int, list[str]]]


@pytest.fixture(scope="module")
def planned_run(request: pytest.FixtureRequest) -> Callable[[str, str | None], Outcome]:
    """(ranks, corpus that the plan leaves out) → the run on rank 0, done once."""

    @cache
    def run(pool: str, corpus: str | None) -> Outcome:
        ranks: RankPool = request.getfixturevalue(pool)
        found: Outcome = ranks.run(train, corpus, "plan")[0]
        return found

    return run


@pytest.mark.parametrize(
    ("pool", "corpus", "how"),
    [
        ("two_ranks", "notes", "revoked"),
        pytest.param("two_ranks", "two", "expires", marks=pytest.mark.story),
        ("four_ranks", "weak", "expires"),
        pytest.param("four_ranks", "two", "revoked", marks=pytest.mark.story),
    ],
)
def test_a_gate_gives_the_weights_of_a_plan_without_the_rows(
    request: pytest.FixtureRequest,
    planned_run: Callable[[str, str | None], Outcome],
    pool: str,
    corpus: str,
    how: str,
) -> None:
    ranks: RankPool = request.getfixturevalue(pool)
    outcomes = ranks.run(train, corpus, how)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    gated, used = outcomes[0]
    planned, planned_use = planned_run(pool, corpus)
    ungated, all_use = planned_run(pool, None)
    assert gated == planned
    assert used == planned_use
    assert all(corpus not in used[step] for step in range(GATED_AT, STEPS))
    assert all(used[step] == all_use[step] for step in range(GATED_AT))
    # Without an effect the test would show nothing. The adapter's forward reads the base, so it
    # follows what moves the base; the base follows nothing of the adapter's.
    moved = {name.startswith("adapter:") for name in gated if gated[name] != ungated[name]}
    assert moved == ({True} if corpus == "notes" else {True, False})


def gate_alone() -> str:
    """One rank leaves a corpus out that the other still reads."""
    step, _ = make()
    if dist.get_rank() == 1:
        step.leave_out({"two": NAMES["two"]})
    try:
        step(read(plan("two"), 0), loss)
    except Refused as error:
        return str(error)
    return "agreed"


def test_a_rank_that_gates_alone_is_refused_by_all(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(gate_alone)
    assert first == second
    assert "what is left out differs between ranks" in first


def use_gated(rank: int) -> str:
    """One rank still brings rows of a corpus that all leave out."""
    step, _ = make()
    step.leave_out({"two": NAMES["two"]})
    batch = read(plan(), BOTH_READ_TWO)
    try:
        step(batch if dist.get_rank() == rank else batch.without({"two"}), loss)
    except Refused as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_a_gated_corpus_are_refused(two_ranks: RankPool, rank: int) -> None:
    first, second = two_ranks.run(use_gated, rank)
    assert first == second
    assert f"rank {rank}, step {BOTH_READ_TWO}" in first
    assert "corpus two, whose credential no longer holds" in first
    assert two_ranks.run(use_gated, 7) == ["trained", "trained"]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9).map(sorted), st.sampled_from("abc"))
def test_rows_that_stay_are_those_of_the_other_corpora(corpora: list[str], left_out: str) -> None:
    rows = torch.arange(3 * len(corpora)).reshape(-1, 3)
    places = tuple(range(len(corpora)))
    whole = MicroBatch("s", {"targets": rows}, places, (3,) * len(places), tuple(corpora))
    stay = [i for i in places if corpora[i] != left_out]
    left = whole.without({left_out})
    assert left is None if not stay else left and torch.equal(left.tensors["targets"], rows[stay])
    for part in whole.rerouted({left_out: "elsewhere"}):
        kept = [i for i in places if (corpora[i] == left_out) == (part.taken == "elsewhere")]
        assert part.positions == tuple(kept)
        assert torch.equal(part.tensors["targets"], rows[kept])


TIMES = st.integers(0, 20).map(lambda seconds: START + timedelta(seconds=seconds))
DATES = st.dictionaries(st.sampled_from("abcdef"), TIMES, max_size=6)


@given(TIMES, DATES, DATES, st.sets(st.sampled_from("abcdef")))
def test_what_is_found_is_what_ended_by_then(
    time: datetime,
    until: dict[str, datetime],
    revoked: dict[str, datetime],
    left_out: set[str],
) -> None:
    found = ends_of_validity(time, until, revoked, left_out)
    ends = {name: min(end, revoked.get(name, end)) for name, end in until.items()}
    assert [end.name for end in found] == sorted(
        name for name, end in ends.items() if end <= time and name not in left_out
    )
    assert all(end.since == ends[end.name] <= time for end in found)
    for end in found:
        first = revoked.get(end.name)
        assert (end.reason == "revoked") == (first is not None and first < until[end.name])
