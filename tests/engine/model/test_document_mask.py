"""Records of a row are kept apart: each is computed as if it stood alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from govray.engine.gradients import pass_planner
from govray.engine.model import causal_lm
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.errors import UsageError
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch
from tests.support.table import each_row

SEPARATOR, VOCABULARY, CONTEXT = 10, 11, 12


RECORDS = [[3, 1, 4], [SEPARATOR, 1, 5, 9], [SEPARATOR], [SEPARATOR, 2, 6, 5]]


def gpt(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    model = GPT(2, 16, CONTEXT, VOCABULARY, heads=2, separator=SEPARATOR, **options)
    return drawn(model.double())


def drawn(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def transformer(kind: str, **fields: Any) -> nn.Module:
    torch.manual_seed(1)
    config = {"model_type": kind, "hidden_size": 16, "num_hidden_layers": 2} | fields
    return drawn(CausalLM(CONTEXT, VOCABULARY, config=config, separator=SEPARATOR).double())


HEADS = {"num_attention_heads": 2}
GATED = HEADS | {"intermediate_size": 32, "num_key_value_heads": 1}
MODELS = {
    "gpt": gpt,
    "gpt2": lambda: transformer("gpt2", n_positions=16, **HEADS),
    "llama": lambda: transformer("llama", **GATED),
    "qwen2": lambda: transformer("qwen2", **GATED),
    "mistral, a window of 3": lambda: transformer("mistral", sliding_window=3, **GATED),
    "gemma3": lambda: transformer("gemma3_text", sliding_window=3, **GATED),
}


@each_row("make", MODELS.values())
def test_a_record_in_a_row_is_computed_as_if_alone(make: Any) -> None:
    model = make().eval()
    row = torch.tensor([[token for record in RECORDS for token in record]])
    packed = model(row)[0]
    start = 0
    for record in RECORDS:
        alone = model(torch.tensor([record]))[0]
        here = packed[start : start + len(record)]
        assert torch.allclose(here, alone, rtol=1e-6, atol=1e-6 * float(alone.abs().max()))
        start += len(record)
    # The control: with another first token, what follows in that record changes, and nothing else.
    other = row.clone()
    other[0, 3 + 1] = 7
    changed = (model(other)[0] != packed).any(1).tolist()
    assert changed == [False] * 4 + [True] * 3 + [False] * 5


def test_without_a_separator_records_see_each_other() -> None:
    """The control: the same weights, and a row as one text."""
    apart, together = gpt(), gpt()
    together.separator = None
    row = torch.tensor([[token for record in RECORDS for token in record]])
    other = row.clone()
    other[0, 0] = 7
    assert torch.equal(apart(row)[0, 3:], apart(other)[0, 3:])
    assert not torch.equal(together(row)[0, 3:], together(other)[0, 3:])


def test_no_gradient_crosses_records() -> None:
    model = gpt()
    row = torch.tensor([[token for record in RECORDS for token in record]])
    seen: list[Tensor] = []
    model.embedding.register_forward_hook(lambda *given: seen.append(given[2]))
    losses = loss(model, {"tokens": row, "targets": row.roll(-1, 1)})
    (gradient,) = torch.autograd.grad(losses[0, 3:7].sum(), seen)
    assert not gradient[0, :3].any()
    assert gradient[0, 3:7].any(1).all()
    assert not gradient[0, 7:].any()


@pytest.mark.parametrize(("kind", "fields"), [("bloom", {"n_head": 2}), ("mamba", {})])
def test_a_model_whose_records_meet_is_refused(kind: str, fields: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="does not keep the records of a row apart"):
        transformer(kind, **fields)


def test_a_model_that_forgot_its_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library says: positions that never begin anew mask nothing."""
    monkeypatch.setattr(
        causal_lm.document_mask, "places", lambda tokens, _: torch.arange(tokens.shape[1])[None]
    )
    with pytest.raises(UsageError, match="does not keep the records of a row apart"):
        transformer("llama", **GATED)


def rows(seed: int, count: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, VOCABULARY, (count, CONTEXT + 1), generator=generator)
    return {"tokens": drawn[:, :-1], "targets": drawn[:, 1:]}


def test_with_everything_allowed_it_is_plain_training_bit_for_bit() -> None:
    weights = []
    for plain in (True, False):
        model = gpt(dropout=0.0).float()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = None if plain else governed(model, optimizer, [allow_all(model)])
        for step in range(3):
            batch = rows(step)
            if run is not None:
                run(step_batch(step, [micro_batch(allow_all(model), batch)]), loss)
                continue
            (loss(model, batch).sum()).backward()
            for parameter in model.parameters():
                parameter.grad.div_(batch["targets"].numel())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        weights.append(dict(model.named_parameters()))
    for name, expected in weights[0].items():
        assert torch.equal(weights[1][name], expected), name


@pytest.mark.parametrize("sliced", [True, False])
def test_routes_hold_as_without_a_mask(sliced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients against one backward for each stream, over its own rows."""
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: sliced)
    model = gpt()
    everything = allow_all(model)
    upper = Route(dict.fromkeys(["block.1", "final_norm", "head"], 1.0))
    batches = {everything: rows(1, 3), upper: rows(2, 2)}
    seen: dict[str, Tensor] = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: seen.update(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
    )
    run = governed(model, optimizer, [everything, upper])
    run(step_batch(0, [micro_batch(route, batch) for route, batch in batches.items()]), loss)

    parameters = dict(model.named_parameters())
    group_of = {name: group for group, names in layer_groups(model).items() for name in names}
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    counts = dict.fromkeys(parameters, 0)
    for route, batch in batches.items():
        found = torch.autograd.grad(loss(model, batch).sum(), [*parameters.values()])
        for name, gradient in zip(parameters, found, strict=True):
            if group_of[name] in route.weights:
                sums[name] += gradient
                counts[name] += batch["targets"].numel()
    expected = {name: value / counts[name] for name, value in sums.items()}
    for name, value in expected.items():
        assert (seen[name] - value).norm() <= 1e-12 * value.norm(), name
