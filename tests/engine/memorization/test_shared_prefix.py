"""A beginning that goes through the model once: the losses are those of whole sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from govray.engine.memorization import exposure
from govray.engine.memorization.exposure import end_losses
from govray.engine.memorization.sequence_loss import target_losses
from govray.engine.model.adapters import Adapters
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.gpt import GPT
from govray.engine.model.past import Past

PREFIX = list(b"the code of bcd is ")
ENDS = [list(f"{number}".encode()) for number in (4711, 4712, 4811, 9, 90)]


def gpt(**changes: Any) -> GPT:
    torch.manual_seed(3)
    model = GPT(**{"blocks": 2, "width": 32, "context": 40, "vocabulary": 258} | changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that attention matters
    return model


def library(**config: Any) -> CausalLM:
    torch.manual_seed(3)
    return CausalLM(context=40, vocabulary=258, config=config)


GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}


def whole(model: torch.nn.Module) -> list[Tensor]:
    return target_losses(model, [PREFIX + end for end in ENDS], [len(PREFIX)] * len(ENDS))


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return [len(each) for each in found] == [len(each) for each in expected] and all(
        torch.allclose(a, b, atol=2e-5) for a, b in zip(found, expected, strict=True)
    )


MODELS = {
    "gpt": gpt,
    "tied": lambda: gpt(tied=True, heads=4),
    "records apart": lambda: gpt(separator=257),
    "gpt2": lambda: library(**GPT2),
    "llama": lambda: library(**LLAMA),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [2, 64])
def test_losses_after_a_past_are_those_of_whole_sequences(
    name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    expected = whole(model)
    # Only the one sequence that the past is checked by is read whole.
    read: list[int] = []

    def counted(model: Any, sequences: Any, starts: Any, **rest: Any) -> list[Tensor]:
        read.append(len(sequences))
        return target_losses(model, sequences, starts, **rest)

    monkeypatch.setattr(exposure, "target_losses", counted)
    assert same(end_losses(model, PREFIX, ENDS, batch=batch), expected)
    assert read == [1]


def test_an_adapter_is_read_in_the_beginning_too() -> None:
    model = gpt()
    base = whole(model)
    adapters = Adapters(model, {"own": 2}, seed=1)
    with torch.no_grad():
        for _, parameter in adapters.named_parameters():
            parameter.add_(0.1)
    with adapters.active("own"):
        assert same(end_losses(model, PREFIX, ENDS), whole(model))
        assert not same(end_losses(model, PREFIX, ENDS), base)
    assert same(end_losses(model, PREFIX, ENDS), base)


class Forgetful(GPT):
    """A model whose past is wrong: positions begin anew behind it."""

    def forward(self, tokens: Tensor, past: Past | None = None) -> Tensor:
        if past is not None and past.length:
            return super().forward(tokens)
        return super().forward(tokens, past)


def test_a_past_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    model = Forgetful(blocks=2, width=32, context=40, vocabulary=258)
    assert same(end_losses(model, PREFIX, ENDS), whole(model))
    monkeypatch.setattr(exposure, "_ROUNDING", 1e9)  # the control: without the check
    assert not same(end_losses(model, PREFIX, ENDS), whole(model))
