"""Records of a row are kept apart: each is computed as if it stood alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from govray.engine.model import causal_lm
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.gpt import GPT, loss
from govray.errors import UsageError
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
