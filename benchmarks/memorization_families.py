"""The model families of the memorization benchmark: fresh weights, about half a million each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from benchmarks.memorization_data import VOCABULARY, Recipe
from govray.engine.huggingface import CausalLM
from govray.engine.model.gpt import GPT

Family = Callable[[Recipe], nn.Module]
"""Recipe → model, its weights drawn from torch's global generator."""


def gpt(recipe: Recipe) -> nn.Module:
    """The product's own: learned positions, LayerNorm, GELU."""
    return GPT(recipe.blocks, recipe.width, recipe.context, VOCABULARY, heads=recipe.heads)


def llama(recipe: Recipe) -> nn.Module:
    """A Llama of transformers: rotary positions, RMSNorm, SwiGLU, no biases.

    Raises:
        CouldNotCheck: transformers is not installed.
    """
    return CausalLM(
        recipe.context,
        VOCABULARY,
        config={
            "model_type": "llama",
            "hidden_size": recipe.width,
            "intermediate_size": 8 * recipe.width // 3,
            "num_hidden_layers": recipe.blocks,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.heads,
            "max_position_embeddings": recipe.context,
        },
    )


FAMILIES: Mapping[str, Family] = MappingProxyType({"gpt": gpt, "llama": llama})
"""By name; the first is the one that the other figures are of."""
