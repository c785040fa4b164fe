"""Real architectures under a mixed policy: gradients equal a float64 oracle, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from govray.engine.batch import IGNORED
from govray.engine.model import gpt
from govray.engine.model.adapters import Adapters
from govray.engine.model.causal_lm import loss as token_loss
from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import Route
from tests.support import cases
from tests.support.architectures import (
    CONTEXT,
    RANK,
    VOCABULARY,
    ResNet,
    Tensors,
    decoder,
    gpt2,
    image_batch,
    image_loss,
    upper_half,
    vit,
)
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.row_oracle import Gradients, by_definition, seen_by

TOLERANCE = 1e-10

Loss = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]


def token_batch(rows: int, *key: int) -> Tensors:
    batch = token_rows(rows, CONTEXT, VOCABULARY, *key)
    batch["targets"][0, :2] = IGNORED
    return batch


@dataclass(frozen=True)
class Architecture:
    """How to make a model, and what its groups must be called."""

    build: Callable[[], nn.Module]
    groups: str
    loss: Loss = token_loss
    batch: Callable[..., Tensors] = token_batch
    adapted: bool = True
    tolerance: float = TOLERANCE


UNTIED = "embedding block.0 block.1 final_norm head"
LLAMA4 = {"head_dim": 4, "num_local_experts": 4, "pad_token_id": 0}
ARCHITECTURES = {
    # Token 3 begins a record.
    "gpt, records apart": Architecture(
        lambda: GPT(2, 16, CONTEXT, VOCABULARY, heads=2, separator=3), UNTIED, gpt.loss
    ),
    "gpt2": Architecture(gpt2, "embedding embedding+head block.0 block.1 final_norm"),
    "gpt2-untied": Architecture(lambda: gpt2(tie_word_embeddings=False), UNTIED),
    "llama": Architecture(lambda: decoder("llama"), UNTIED),
    "llama-tied": Architecture(
        lambda: decoder("llama", tie_word_embeddings=True),
        "embedding+head block.0 block.1 final_norm",
    ),
    "qwen2": Architecture(lambda: decoder("qwen2"), UNTIED),
    "qwen3": Architecture(
        lambda: decoder("qwen3", num_hidden_layers=4, head_dim=8),
        "embedding block.0 block.1 block.2 block.3 final_norm head",
    ),
    # A row of the embedding that never learns, and a window shorter than the row.
    "mistral": Architecture(lambda: decoder("mistral", pad_token_id=3, sliding_window=3), UNTIED),
    # Experts that see tokens without rows, beside one with an adapter. It rotates in float32.
    "llama4": Architecture(lambda: decoder("llama4_text", **LLAMA4), UNTIED, tolerance=1e-6),
    "vit": Architecture(vit, UNTIED, image_loss, image_batch),
    "resnet": Architecture(
        ResNet,
        "embedding block.0 block.1 block.2 block.3 head",
        image_loss,
        image_batch,
        adapted=False,
    ),
}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


@dataclass(frozen=True)
class Step:
    """A model in float64, its adapters, and the rows of one step by route."""

    model: nn.Module
    adapters: Adapters
    rows: Mapping[Route, Tensors]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {**dict(self.model.named_parameters()), **dict(self.adapters.named_parameters())}


def mixed(architecture: Architecture) -> Step:
    torch.manual_seed(3)
    model = architecture.build().double()
    adapters = Adapters(model, {"supplier": RANK} if architecture.adapted else {}, seed=3)
    step = Step(
        model,
        adapters,
        {allow_all(model): architecture.batch(3, 1), upper_half(model): architecture.batch(4, 2)}
        | ({Route({}, "supplier", RANK): architecture.batch(2, 3)} if architecture.adapted else {}),
    )
    with torch.no_grad():  # large enough that every gradient is far above rounding
        for parameter in step.parameters.values():
            parameter.normal_(std=0.4)
    return step


def engine(architecture: Architecture, **settings: Any) -> Gradients:
    step = mixed(architecture)
    optimizer = torch.optim.SGD(step.parameters.values(), lr=0.1)
    seen = seen_by(optimizer, step.parameters)
    run = governed(step.model, optimizer, list(step.rows), adapters=step.adapters, **settings)
    batches = [micro_batch(route, rows) for route, rows in step.rows.items()]
    run(step_batch(0, batches), architecture.loss)
    return seen


def oracle(architecture: Architecture) -> Gradients:
    step = mixed(architecture)
    groups = {**layer_groups(step.model), **step.adapters.groups}
    group_of = {name: group for group, names in groups.items() for name in names}
    found = by_definition(
        step.model, step.rows.items(), architecture.loss, group_of.__getitem__, step.adapters
    )
    return found.gradients


def check(found: Gradients, expected: Gradients, tolerance: float = TOLERANCE) -> None:
    assert found.keys() == expected.keys()
    norms = [reference.norm() for reference in expected.values() if reference is not None]
    # A bias on attention's keys moves no softmax: its gradient is rounding, and
    # relative errors of rounding say nothing.
    smallest = 1e-6 * torch.stack(norms).norm()
    for name, reference in expected.items():
        gradient = found[name]
        if reference is None:
            assert gradient is None, f"{name} has a gradient, and should have none"
        else:
            assert gradient is not None, f"{name} has no gradient"
            error = (gradient - reference).norm() / reference.norm().clamp_min(smallest)
            assert error <= tolerance, f"{name}: {error.item()}"


def test_its_groups_have_the_canonical_names(architecture: Architecture) -> None:
    assert " ".join(layer_groups(architecture.build())) == architecture.groups


def test_a_mixed_policy_equals_the_oracle(architecture: Architecture) -> None:
    check(engine(architecture, max_rows=2), oracle(architecture), architecture.tolerance)


def test_the_oracle_sees_a_wrong_group(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES["llama"]

    def swapped(model: nn.Module) -> dict[str, tuple[str, ...]]:
        groups = layer_groups(model)
        last = max(group for group in groups if group.startswith("block."))
        return groups | {"block.0": groups[last], last: groups["block.0"]}

    expected = oracle(architecture)
    monkeypatch.setattr(cases, "layer_groups", swapped)
    with pytest.raises(AssertionError, match=r"(weight|bias): [0-9.e+-]+"):
        check(engine(architecture), expected)


STEPS = 3


def trained(architecture: Architecture, governing: str | None) -> Tensors:
    """Weights after AdamW in float32, by the engine or by torch alone."""
    torch.manual_seed(5)
    model = architecture.build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    batches = [architecture.batch(4, 9, step) for step in range(STEPS)]
    if governing is not None:
        route = allow_all(model) if governing == "everything" else upper_half(model)
        run = governed(model, optimizer, [route])
        for step, batch in enumerate(batches):
            run(step_batch(step, [micro_batch(route, batch)]), architecture.loss)
    else:
        for batch in batches:
            optimizer.zero_grad()
            architecture.loss(model, batch).sum().backward()
            for parameter in model.parameters():
                parameter.grad /= int((batch["targets"] != IGNORED).sum())
            optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def different(one: Tensors, other: Tensors) -> set[str]:
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_allow_all_is_plain_training_bit_for_bit(architecture: Architecture) -> None:
    plain = trained(architecture, None)
    assert different(plain, trained(architecture, "everything")) == set()
    # The control: a policy that restricts something gives other weights.
    assert different(plain, trained(architecture, "upper half"))


def dropped(build: Callable[[], nn.Module], max_rows: int | None) -> Gradients:
    """Gradients of four rows of one stream, with dropout."""
    torch.manual_seed(1)
    model = build().double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = seen_by(optimizer, dict(model.named_parameters()))
    route = allow_all(model)
    run = governed(model, optimizer, [route], max_rows=max_rows)
    run(step_batch(0, [micro_batch(route, token_batch(4, 4))]), token_loss)
    return seen


def test_dropout_inside_attention_does_not_and_so_causallm_switches_it_off() -> None:
    def attending() -> nn.Module:
        model = gpt2()
        for block in model.transformer.h:
            block.attn.attn_dropout.p = 0.3
        return model

    check(dropped(gpt2, 1), dropped(gpt2, None))
    with pytest.raises(AssertionError, match=r"weight: [0-9.e-]+"):
        check(dropped(attending, 1), dropped(attending, None))
