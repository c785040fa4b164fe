"""The influence benchmark: its terms are the product's, its truth keeps what a route excludes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from benchmarks import influence as benchmark
from benchmarks.command import run
from benchmarks.influence import METHODS, RANKED, Output, by_group, main, summary
from benchmarks.influence_training import (
    CORPORA,
    QUICK,
    REMOVABLE,
    Bench,
    State,
    output_losses,
    shared_sequences,
)
from govray.engine.influence.loss_slopes import loss_slopes
from govray.engine.influence.optimizer_scale import optimizer_scale
from govray.engine.influence.output_gradient import output_gradient
from govray.engine.influence.routed_direction import routed_direction
from govray.engine.model.layer_groups import layer_groups


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(QUICK, 17)


@pytest.fixture(scope="module")
def states(bench: Bench) -> list[State]:
    return bench.train()


def test_its_terms_are_the_slopes_that_the_product_takes(bench: Bench, states: list[State]) -> None:
    state, steps, corpus = states[-1], range(11, 12), RANKED[0]
    output = bench.held_out[corpus]
    parts = by_group(bench, state, steps, output, scaled=True)
    model = bench.model()
    model.load_state_dict(dict(state.weights))
    model.double()
    adapters, groups = bench.adapters(model), layer_groups(model)
    _, gradient = output_gradient(model, adapters, output[0].tolist(), QUICK.prompt)
    targets = QUICK.rows * QUICK.context
    factors = {
        group: bench.rate(11) / (targets * len(by_corpus)) for group, by_corpus in parts.items()
    }
    scales = optimizer_scale(state.moments, state.values)
    direction = routed_direction(gradient, groups, factors, scales)
    slopes = loss_slopes(model, adapters, direction, bench.rows(corpus, steps).tolist())
    total = sum(float(each.sum()) for each in slopes)
    assert sum(each[corpus][0] for each in parts.values()) == pytest.approx(total, rel=1e-4)


def test_without_the_adapter_s_corpus_outputs_are_the_same_and_without_another_they_are_not(
    bench: Bench, states: list[State]
) -> None:
    rows = torch.cat([bench.held_out[corpus] for corpus in CORPORA])

    def losses(some: list[State]) -> torch.Tensor:
        model = bench.model()
        model.load_state_dict(dict(some[-1].weights))
        return output_losses(model, rows, QUICK.prompt)

    whole = losses(states)
    assert torch.equal(losses(bench.train(without=REMOVABLE[0])), whole)
    assert not torch.equal(losses(bench.train(without=RANKED[0])), whole)


def outputs() -> list[Output]:
    """Of which one method says the truth doubled, another the reverse."""
    truth = {corpus: float(place) for place, corpus in enumerate(RANKED)}
    said = dict.fromkeys(METHODS, truth)
    said["estimate"] = {corpus: 2 * value for corpus, value in truth.items()}
    said["random"] = {corpus: -value for corpus, value in truth.items()}
    said["sequences"] = dict.fromkeys(RANKED, 0.5)
    return [Output(RANKED[-1], truth, said)] * 3


def test_figures_are_those_of_the_rankings() -> None:
    found = summary(outputs())["methods"]
    assert found["estimate"]["spearman"] == pytest.approx(1)
    assert (found["estimate"]["ratio"], found["estimate"]["first"]) == (2, 1)
    assert found["random"]["spearman"] == pytest.approx(-1)
    assert found["random"]["own_first"] == 0
    assert found["sequences"]["spearman"] is None  # no order


def test_the_command_prints_a_table_and_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "run_seed", lambda recipe, seed: (outputs(), True))
    assert run(lambda: main(["--quick", "--seeds", "1", "2"])) == 0
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    assert [*report["methods"]] == [*METHODS]
    assert (report["outputs"], report["adapter_corpus_unmoved"]) == (6, True)
    assert lines[0].startswith("method")


def test_sequences_in_common_are_a_share_of_the_output_s() -> None:
    rows = torch.tensor([[1, 2, 3, 4, 5, 6]])
    assert shared_sequences([1, 2, 3, 4, 5], rows) == 1
    assert shared_sequences([1, 2, 3, 4, 9], rows) == 0.5
