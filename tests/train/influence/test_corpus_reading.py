"""What a run read between commits, and how strongly it trained on it: ledger and routes say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.policy.route import Route
from govray.governance.record.ledger import CorpusUse, Leaf
from govray.train.experiment.optimizer import Optimizer
from govray.train.influence.corpus_reading import CorpusReading, corpus_readings
from govray.train.influence.step_rates import step_rates
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.loop.cosine import learning_rate
from tests.support.deployment import Deployment

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
ROUTES = {
    "open": Route({"block.0": 1.0, "head": 1.0}),
    "weak": Route({"head": 0.5}),
    "acme": Route({}, "acme", 4),
}
LATER = Route({"head": 1.0})
targets = st.fixed_dictionaries(dict.fromkeys(ROUTES, st.integers(0, 40)))


def taken(corpus: str, digest: str | None) -> Route:
    return LATER if digest else ROUTES[corpus]


def leaf(step: int, read: dict[str, int], routes: dict[str, str] | None = None) -> Leaf:
    return Leaf(
        step=step,
        world_size=1,
        policy=DIGEST,
        plan=DIGEST,
        streams={},
        corpora={
            corpus: CorpusUse(rows=1, targets=count, route=(routes or {}).get(corpus))
            for corpus, count in read.items()
        },
    )


def readings(
    read: list[dict[str, int]], commits: list[int], rates: list[float] | None = None
) -> list[list[CorpusReading]]:
    leaves = {step: leaf(step, each) for step, each in enumerate(read)}
    return corpus_readings(leaves, taken, rates or [1.0] * len(read), commits)


@given(st.lists(targets, min_size=1, max_size=6))
def test_a_step_s_targets_share_one_learning_rate_in_each_layer_group(
    read: list[dict[str, int]],
) -> None:
    [found] = readings(read, [len(read)])
    # weak's weight scales the numerator alone, so it has half of its share.
    shares = {"block.0": 0.0, "head": 0.0, "adapter:acme": 0.0}
    for each in found:
        assert each.targets == sum(some[each.corpus] for some in read)
        assert each.factors.keys() <= {*ROUTES[each.corpus].groups}
        for group, factor in each.factors.items():
            weight = ROUTES[each.corpus].weights.get(group, 1.0)
            shares[group] += each.targets * factor / weight
    trained = {
        group: sum(
            any(count and group in ROUTES[corpus].groups for corpus, count in some.items())
            for some in read
        )
        for group in shares
    }
    assert shares == pytest.approx(trained)


@given(st.lists(targets, min_size=2, max_size=6), st.data())
def test_commits_cut_what_was_read_and_lose_nothing(
    read: list[dict[str, int]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(read) - 1))
    before, after = readings(read, [cut, len(read)])
    for corpus in ROUTES:
        parts = [each for some in (before, after) for each in some if each.corpus == corpus]
        assert sum(each.targets for each in parts) == sum(some[corpus] for some in read)
        assert all(step < cut for each in before for step in each.steps)
        assert all(step >= cut for each in after for step in each.steps)


def test_rates_weights_and_counts_make_the_factor() -> None:
    [found] = readings([{"open": 30, "weak": 10}, {"open": 10}], [2], [0.1, 0.4])
    factors = {each.corpus: each.factors for each in found}
    assert factors["open"] == pytest.approx(
        {
            "block.0": (30 * 0.1 / 30 + 10 * 0.4 / 10) / 40,
            "head": (30 * 0.1 / 40 + 10 * 0.4 / 10) / 40,
        }
    )
    assert factors["weak"] == pytest.approx({"head": 0.5 * 0.1 / 40})


def test_rows_that_a_gate_or_a_phase_sent_elsewhere_train_what_that_route_permits() -> None:
    leaves = {0: leaf(0, {"open": 4}), 1: leaf(1, {"open": 4}, {"open": OTHER})}
    early, late = corpus_readings(leaves, taken, [1.0, 1.0], [1, 2])
    assert {*early[0].factors} == {"block.0", "head"}
    assert {*late[0].factors} == {"head"}
    acme = corpus_readings({0: leaf(0, {"acme": 4})}, taken, [1.0], [1])[0][0]
    assert (acme.adapter, {*acme.factors}) == ("acme", {"adapter:acme"})


def test_rates_are_those_of_the_experiment_s_schedule(deployment: Deployment) -> None:
    cosine = parse_experiment(deployment.experiment(), where="test")
    assert step_rates(cosine, 12) == [
        learning_rate(Optimizer(lr=1e-2), step, 12) for step in range(12)
    ]
    linear = {
        "name": "torch.optim.lr_scheduler.LinearLR",
        "arguments": {"start_factor": 1.0, "end_factor": 0.5, "total_iters": 10},
    }
    found = step_rates(parse_experiment(deployment.experiment(schedule=linear), where="test"), 12)
    assert found == pytest.approx([1e-2 * (1 - min(s, 10) / 20) for s in range(12)])
