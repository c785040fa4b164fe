"""On a GPU too, where there is one, a policy that allows everything is plain training."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from govray.engine import step as step_module
from govray.engine.collective.allreduce import largest_magnitudes
from govray.engine.collective.step_settings import Precision
from govray.engine.gradients import pass_planner
from govray.engine.model.gpt import GPT
from govray.errors import Refused
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.deterministic import deterministic

pytestmark = pytest.mark.gpu

STEPS = 20
ROWS, CONTEXT, VOCABULARY = 4, 16, 61
"""64 loss targets: dividing a sum by a power of two rounds nothing."""
CLIP = 0.5


def fresh() -> tuple[GPT, torch.optim.AdamW]:
    torch.manual_seed(7)
    model = GPT(2, 32, CONTEXT, VOCABULARY, tied=True).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)


def rows_of(step: int) -> dict[str, Tensor]:
    rows = token_rows(ROWS, CONTEXT, VOCABULARY, 1, step)
    return {name: tensor.cuda() for name, tensor in rows.items()}


def losses(model: torch.nn.Module, rows: dict[str, Tensor], reduction: str = "none") -> Tensor:
    logits = model(rows["tokens"]).flatten(0, 1)
    found = F.cross_entropy(logits, rows["targets"].flatten(), reduction=reduction)
    return found.view(rows["targets"].shape) if reduction == "none" else found


def plain(precision: Precision) -> dict[str, Tensor]:
    model, optimizer = fresh()
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
            mean = losses(model, rows_of(step), "mean")
        mean.backward()
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return model.state_dict()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    found: list[torch.cuda.CUDAGraph] = []
    launch = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        found.append(graph)
        launch(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    return found


def ours(precision: Precision, *, cuda_graphs: bool) -> dict[str, Tensor]:
    model, optimizer = fresh()
    route = allow_all(model)
    chosen = {"precision": precision, "cuda_graphs": cuda_graphs}
    run = governed(model, optimizer, [route], clip_norm=CLIP, **chosen)
    for step in range(STEPS):
        run(step_batch(step, [micro_batch(route, rows_of(step))]), losses)
    return model.state_dict()


def different(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["kernels", "graphs"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_allow_all_is_plain_training_bit_for_bit(
    precision: Precision,
    cuda_graphs: bool,
    launches: list[torch.cuda.CUDAGraph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with deterministic():
        expected = plain(precision)
        assert different(expected, plain(precision)) == []  # so equal bits mean something here
        assert different(expected, ours(precision, cuda_graphs=cuda_graphs)) == []
        assert len(launches) == (STEPS - 2 if cuda_graphs else 0)
        divide = step_module.divide
        monkeypatch.setattr(  # the control
            step_module,
            "divide",
            lambda domains, sums, targets: divide(
                domains, sums, {name: count and count + 1 for name, count in targets.items()}
            ),
        )
        assert different(expected, ours(precision, cuda_graphs=cuda_graphs)) != []


def test_a_sliced_pass_is_launched_as_it_runs(
    launches: list[torch.cuda.CUDAGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: True)

    def trained(*, cuda_graphs: bool) -> dict[str, Tensor]:
        model, optimizer = fresh()
        routes = [allow_all(model), Route({"block.1": 0.5, "final_norm": 1.0})]
        run = governed(model, optimizer, routes, cuda_graphs=cuda_graphs)
        for step in range(6):
            parts = [micro_batch(route, rows_of(step)) for route in routes]
            run(step_batch(step, parts), losses)
        return model.state_dict()

    with deterministic():
        assert different(trained(cuda_graphs=False), trained(cuda_graphs=True)) == []
    assert len(launches) == 4  # of both routes together


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_the_largest_magnitudes_are_those_of_a_cpu(odd: float) -> None:
    """Infinities show whose gradient is not finite."""
    tensors = [torch.randn(3, 5), torch.tensor([1.0, odd, -3.0]), torch.tensor(-5.0)]
    found = largest_magnitudes([tensor.cuda() for tensor in tensors])
    assert torch.equal(found.cpu().nan_to_num(7), largest_magnitudes(tensors).nan_to_num(7))


def waiting(model: torch.nn.Module, rows: dict[str, Tensor]) -> Tensor:
    found = losses(model, rows)
    return found * (1.0 if float(found.detach().sum()) > 0 else 0.0)


def test_a_loss_that_waits_for_the_device_is_refused_by_name() -> None:
    model, optimizer = fresh()
    route = allow_all(model)
    run = governed(model, optimizer, [route], cuda_graphs=True)
    for step in range(2):  # in the first, norms are sampled
        run(step_batch(step, [micro_batch(route, rows_of(step))]), waiting)
    with pytest.raises(Refused, match="can't be captured") as refused:
        run(step_batch(2, [micro_batch(route, rows_of(2))]), waiting)
    assert "cuda_graphs" in str(refused.value)
    run = governed(*fresh(), [route], cuda_graphs=True)  # and the device still works
    for step in range(4):
        run(step_batch(step, [micro_batch(route, rows_of(step))]), losses)


def test_what_python_draws_is_not_launched_unseen() -> None:
    def drawing(model: torch.nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return losses(model, rows) * random.random()

    model, optimizer = fresh()
    route = allow_all(model)
    run = governed(model, optimizer, [route], cuda_graphs=True, tries_rows=False)
    for step in range(2):
        run(step_batch(step, [micro_batch(route, rows_of(step))]), drawing)
    with pytest.raises(Refused, match="draws from the generator of python"):
        run(step_batch(2, [micro_batch(route, rows_of(2))]), drawing)


def test_what_torch_draws_is_drawn_anew_in_every_launch(
    launches: list[torch.cuda.CUDAGraph],
) -> None:
    def drawing(model: torch.nn.Module, rows: dict[str, Tensor]) -> Tensor:
        found = losses(model, rows)
        return found * torch.rand_like(found)

    def trained(*, cuda_graphs: bool) -> dict[str, Tensor]:
        model, optimizer = fresh()
        route = allow_all(model)
        chosen = {"cuda_graphs": cuda_graphs, "tries_rows": False}
        run = governed(model, optimizer, [route], **chosen)
        for step in range(6):
            run(step_batch(step, [micro_batch(route, rows_of(step))]), drawing)
        return model.state_dict()

    with deterministic():
        assert different(trained(cuda_graphs=False), trained(cuda_graphs=True)) == []
    assert len(launches) == 4
