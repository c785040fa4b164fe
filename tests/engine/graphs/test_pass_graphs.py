"""Passes that are graphs train as passes that run, and are graphs only if they do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from govray.engine import step as step_module
from govray.engine.collective.step_settings import StepSettings
from govray.engine.gradients import pass_planner
from govray.engine.graphs import pass_graphs
from govray.engine.graphs.pass_graphs import Holding
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.engine.steps import row_difference
from govray.errors import RankFailed, Refused, UsageError
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows


class RerunCapture:
    """Captures work that it does again at each launch."""

    def __init__(self, *_: object) -> None:
        self.captured = self.launched = 0

    def __call__(self, holding: Holding, work: Callable[[], Any]) -> tuple[Any, Any]:
        self.captured += 1
        with holding():
            found = work()
        tensors = _tensors(found)
        with torch.no_grad():
            for tensor in tensors:
                tensor.detach().fill_(7)  # a capture computes nothing

        def launch() -> None:
            self.launched += 1
            with holding():
                again = _tensors(work())
            with torch.no_grad():
                for tensor, new in zip(tensors, again, strict=True):
                    tensor.detach().copy_(new.detach())

        return found, launch


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if is_dataclass(found):
        return [t for f in fields(found) for t in _tensors(getattr(found, f.name))]
    if isinstance(found, dict):
        return [t for each in found.values() for t in _tensors(each)]
    return [t for each in found for t in _tensors(each)] if isinstance(found, tuple) else []


CONTEXT, VOCABULARY, STEPS = 6, 13, 11
UPPER = Route({"block.1": 0.5, "final_norm": 1.0, "head": 1.0})
OWN = Route({}, "own", 2)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Equal bits are asked for, and no pass is shared, which adds in another order."""
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: False)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[RerunCapture]:
    """Those of the steps that were made."""
    made: list[RerunCapture] = []

    def capture(model: nn.Module) -> RerunCapture:
        made.append(RerunCapture())
        return made[-1]

    monkeypatch.setattr(step_module, "CudaCapture", capture)
    return made


class Training:
    """A small run of three streams, one of them with an adapter."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(3)
        self.model = GPT(2, 16, CONTEXT, VOCABULARY, dropout=0.2)
        adapters = Adapters(self.model, {"own": 2}, seed=0)
        own = [parameter for _, parameter in adapters.named_parameters()]
        self.parameters = [*self.model.parameters(), *own]
        self.routes = [allow_all(self.model), UPPER, OWN]
        optimizer = torch.optim.AdamW(self.parameters, lr=1e-2)
        self.run: GovernedStep = governed(
            self.model, optimizer, self.routes, adapters=adapters, tries_rows=False, **settings
        )
        self.norms: list[Any] = []
        self.losses: list[Mapping[str, float]] = []

    def step(self, step: int, loss_fn: Callable[..., Tensor] = loss) -> None:
        parts = []
        for place, route in enumerate(self.routes):
            if (step + place) % 4 == 3:
                continue  # a stream that falls silent
            rows = token_rows(3, CONTEXT, VOCABULARY, step, place)
            rows["targets"][: step % 2, :2] = -100  # in every second step
            parts.append(micro_batch(route, rows))
        result = self.run(step_batch(step, parts), loss_fn)
        self.norms.append(result.norms)
        self.losses.append(result.stream_losses)


def trained(loss_fn: Callable[..., Tensor] = loss, **settings: Any) -> Training:
    training = Training(**settings)
    for step in range(STEPS):
        training.step(step, loss_fn)
    return training


def differ(one: Training, other: Training) -> bool:
    return not all(map(torch.equal, one.parameters, other.parameters))


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_rows": 1}, {"max_rows": 2}, {"clip_norm": 0.1}, {"norms_every": 3}],
    ids=str,
)
def test_weights_are_those_of_passes_that_run(
    captures: list[RerunCapture], settings: dict[str, Any]
) -> None:
    launched = trained(cuda_graphs=True, **settings)
    assert captures[0].launched >= 2
    ran = trained(**settings)
    assert not differ(launched, ran)
    assert [each is None for each in launched.norms] == [each is None for each in ran.norms]
    assert len(captures) == 1  # a step without the setting makes none


@pytest.mark.parametrize("settings", [{}, {"max_rows": 4}, {"norms_every": 3}], ids=str)
def test_sliced_passes_are_launched_too(
    captures: list[RerunCapture], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    alone = trained(**settings)
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: True)
    ran = trained(**settings)
    assert differ(ran, alone)  # it adds in another order
    launched = trained(cuda_graphs=True, **settings)
    graphs = launched.run.accumulation.graphs
    assert graphs is not None
    assert any(graph.launches > 1 and len(graph.parts) > 1 for graph in graphs._graphs.values())
    assert not differ(launched, ran)
    assert launched.losses == ran.losses


@pytest.mark.parametrize("change", ["stale rows", "stale masks", "no gradients"])
def test_what_a_launch_lacks_later_shows(
    captures: list[RerunCapture], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controls: each is lost after the comparison, which would refuse it."""
    ran = trained()
    graphs = pass_graphs.PassGraphs
    if change == "no gradients":
        monkeypatch.setattr(graphs, "_add", lambda self, gradients: None)
        assert differ(trained(cuda_graphs=True), ran)
        return
    launched = graphs._launched

    def stale(self: Any, graph: Any, each: Any, step: int) -> Any:
        if graph.launches > 1:
            kept = graph.keys if change == "stale masks" else graph.tensors["tokens"]
            monkeypatch.setattr(kept, "copy_", lambda *_, **__: kept, raising=False)
        return launched(self, graph, each, step)

    monkeypatch.setattr(graphs, "_launched", stale)
    assert differ(trained(cuda_graphs=True), ran)


@pytest.mark.parametrize("stale", ["tensors", "keys"])
def test_a_graph_of_other_rows_or_masks_is_refused(
    captures: list[RerunCapture], monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    captured = pass_graphs.PassGraphs._captured

    def made(self: Any, each: Any, loss_fn: Any) -> Any:
        graph = captured(self, each, loss_fn)
        if stale == "keys":  # what is filled is not what is read
            graph.keys = graph.keys.clone()
        else:
            graph.tensors = {name: tensor.clone() for name, tensor in graph.tensors.items()}
        return graph

    monkeypatch.setattr(pass_graphs.PassGraphs, "_captured", made)
    with pytest.raises(Refused, match="is launched as a graph"):
        trained(cuda_graphs=True)


def test_a_graph_that_does_nothing_is_refused(
    captures: list[RerunCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = RerunCapture.__call__
    monkeypatch.setattr(RerunCapture, "__call__", lambda *given: (capture(*given)[0], lambda: None))
    with pytest.raises(Refused, match="the loss of part 1 differs by"):
        trained(cuda_graphs=True)


def scaled(monkeypatch: pytest.MonkeyPatch, factors: Mapping[str, float]) -> None:
    """Let every graph give other gradients of some parameters than its pass."""
    capture = RerunCapture.__call__

    def inexact(self: RerunCapture, holding: Any, work: Any) -> Any:
        def changed() -> Any:
            part, gradients = work()
            return part, {name: g * factors.get(name, 1.0) for name, g in gradients.items()}

        return capture(self, holding, changed)

    monkeypatch.setattr(RerunCapture, "__call__", inexact)


def test_a_graph_that_was_refused_is_not_kept(
    captures: list[RerunCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled(monkeypatch, {"head.weight": 2.0})
    training, refused = Training(cuda_graphs=True), 0
    for step in range(3 * STEPS):
        try:
            training.step(step)
        except Refused:
            refused += 1
    assert refused > 2  # captured and compared anew
    graphs = training.run.accumulation.graphs
    assert graphs is not None
    assert {kind[0] for kind in graphs._graphs} == {((OWN.digest, 3),)}  # it trains no head


def test_what_is_not_finite_is_the_step_s_to_say(captures: list[RerunCapture]) -> None:
    def infinite(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        return loss(model, rows) * factor

    factor, training = torch.ones(()), Training(cuda_graphs=True)
    for step in range(2):
        training.step(step, infinite)
    factor.fill_(math.inf)
    for step in range(2, 5):
        with pytest.raises(RankFailed, match="is not finite"):
            training.step(step, infinite)
    assert captures[0].launched


@pytest.mark.parametrize(
    ("draw", "whose"),
    [
        (random.random, "python"),
        (np.random.random, "numpy"),
        (lambda: float(torch.rand(())), "torch's CPU"),
    ],
    ids=["python", "numpy", "torch"],
)
def test_what_the_host_draws_is_refused(
    captures: list[RerunCapture], draw: Callable[[], float], whose: str
) -> None:
    """A choice may come out the same by chance; the generator shows it."""

    def choosing(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        return loss(model, rows) * (1.0 if draw() < 2 else 0.0)

    with pytest.raises(Refused, match=f"draws from the generator of {whose}"):
        trained(choosing, cuda_graphs=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.eval(),
        lambda block: setattr(block, "extra", torch.zeros(3)),
        lambda block: setattr(block, "kept", [torch.ones(3), {"scale": torch.zeros(3)}]),
        lambda block: setattr(block, "scale", 0.5),
    ],
    ids=["mode", "tensor", "tensor in a list", "number"],
)
def test_a_module_that_changes_is_captured_anew(
    captures: list[RerunCapture], change: Callable[[nn.Module], object]
) -> None:
    training, same, ran = trained(cuda_graphs=True), trained(cuda_graphs=True), trained()
    for each in (training, ran):
        change(each.model.blocks[0])
    for step in range(STEPS, STEPS + 5):
        for each in (training, same, ran):
            each.step(step)
    assert captures[0].captured > captures[1].captured
    assert not differ(training, ran)


def test_what_changes_later_is_refused_at_the_next_comparison(
    captures: list[RerunCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph keeps what Python chose when it was captured; the stand-in would follow it."""
    held = SimpleNamespace(factor=1.0)  # no container, so nobody looks into it
    capture = RerunCapture.__call__

    def frozen(self: RerunCapture, holding: Any, work: Any) -> Any:
        found, launch = capture(self, holding, work)

        def as_captured() -> None:
            now, held.factor = held.factor, 1.0
            launch()
            held.factor = now

        return found, as_captured

    def choosing(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
        return loss(model, rows) * held.factor

    monkeypatch.setattr(RerunCapture, "__call__", frozen)
    monkeypatch.setattr(row_difference, "_FIRST_AGAIN", 4)
    training = Training(cuda_graphs=True)
    for step in range(8):
        training.step(step, choosing)
    held.factor = 0.5

    def later() -> None:
        for step in range(8, 40):
            training.step(step, choosing)

    with pytest.raises(
        Refused, match=r"the loss of part 1 differs by .*depend on their tensors alone"
    ):
        later()


@pytest.mark.parametrize(
    ("beside", "where"),
    [
        ({"aggregator": "ddp"}, "cuda_graphs: with aggregator ddp"),
        ({"aggregator": "fsdp2"}, "cuda_graphs: with aggregator fsdp2"),
        ({"compile": True}, "cuda_graphs: compile beside it"),
        ({"activation_checkpointing": True}, "cuda_graphs: activation_checkpointing beside it"),
        ({"framework": "jax"}, "framework: jax: cuda_graphs is True"),
    ],
)
def test_what_no_graph_can_follow_is_refused(beside: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError, match=where):
        StepSettings(cuda_graphs=True, **beside)


def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(UsageError, match="the model is on cpu, and graphs are of a GPU"):
        Training(cuda_graphs=True)
