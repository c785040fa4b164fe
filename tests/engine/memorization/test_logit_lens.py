"""The logit lens: found where a model is blocks, norm and head in a row, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.gpt import GPT

CONTEXT, VOCABULARY = 8, 20
TOKENS = torch.randint(VOCABULARY, (3, CONTEXT), generator=torch.Generator().manual_seed(1))


def gpt(blocks: int = 3) -> GPT:
    torch.manual_seed(0)
    model = GPT(blocks, 16, CONTEXT, VOCABULARY, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def hugging_face(**fields: Any) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(CONTEXT, VOCABULARY, config=fields).eval()


def gpt2() -> CausalLM:
    return hugging_face(
        model_type="gpt2",
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_positions=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )


def llama() -> CausalLM:
    return hugging_face(
        model_type="llama",
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        eos_token_id=None,
    )


def found(model: nn.Module) -> Lens:
    return find_lens(model, lambda: model(TOKENS))


@torch.no_grad()
def read(model: nn.Module, lens: Lens) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    with lens.logits(seen.__setitem__):
        seen["head"] = model(TOKENS)
    return seen


@pytest.mark.parametrize("build", [gpt, gpt2, llama])
def test_a_lens_reads_each_block_but_the_last(build: Callable[[], nn.Module]) -> None:
    model = build()
    lens = found(model)
    assert lens.missing is None
    assert lens.layers == ("block.0", "block.1")
    seen = read(model, lens)
    assert [*seen] == ["block.0", "block.1", "head"]
    assert all(each.shape == (3, CONTEXT, VOCABULARY) for each in seen.values())
    with torch.no_grad():
        assert torch.equal(seen["head"], model(TOKENS))


@torch.no_grad()
def test_it_is_the_final_norm_and_head_over_the_block_s_output() -> None:
    model = gpt()
    seen = read(model, found(model))
    hidden = model.embedding(TOKENS)
    for place, block in enumerate(model.blocks):
        hidden = block(hidden)
        layer = "head" if place == 2 else f"block.{place}"
        assert torch.equal(seen[layer], model.head(model.final_norm(hidden)))


def test_hooks_are_gone_afterwards() -> None:
    model = gpt()
    read(model, found(model))
    assert not any(module._forward_hooks for module in model.modules())


class Scaled(GPT):
    """Does something to the logits that is no module."""

    def forward(self, tokens: Tensor) -> Tensor:
        return 3 * super().forward(tokens)


class Twice(GPT):
    """Goes through its blocks twice."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in (*self.blocks, *self.blocks):
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))


class Functional(GPT):
    """Its head is a bare function."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.linear(self.final_norm(hidden), self.head.weight)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Scaled, "what follows the last block"),
        (Functional, "what follows the last block"),
        (Twice, "does not call each block once"),
    ],
)
def test_a_model_that_does_more_has_no_lens(kind: type[GPT], why: str) -> None:
    torch.manual_seed(0)
    lens = found(kind(3, 16, CONTEXT, VOCABULARY, heads=2).eval())
    assert lens.layers == ()
    assert why in (lens.missing or "")
