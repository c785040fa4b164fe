"""The built-in GPT in Flax NNX: the torch engine's, with the same names and the same mathematics.

Nothing has a bias. Dropout acts on the residual stream only.

Source: Radford et al. 2019 (GPT-2): pre-norm blocks, learned positions, GELU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from govray.engine.steps.batch import IGNORED
from govray.errors import UsageError

_STD = 0.02


class FlaxGPT(nnx.Module):
    """A decoder-only transformer over token ids.

    Args:
        blocks: Number of transformer blocks, at least 1.
        width: Channels of the residual stream.
        context: Longest sequence, in tokens.
        vocabulary: Number of token ids.
        heads: Attention heads; they divide ``width``.
        dropout: Probability of zeroing a channel on the residual stream.
        rngs: Of the first weights.
        dtype: Of the weights.

    Raises:
        UsageError: A size is not positive, or ``heads`` does not divide ``width``.
    """

    def __init__(
        self,
        blocks: int,
        width: int,
        context: int,
        vocabulary: int,
        *,
        heads: int = 1,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
        dtype: jnp.dtype = jnp.float32,
    ) -> None:
        sizes = {"blocks": blocks, "width": width, "context": context, "vocabulary": vocabulary}
        for name, size in (sizes | {"heads": heads}).items():
            if size < 1:
                raise UsageError(f"{name} is {size}", where="FlaxGPT", do="Give at least 1")
        if width % heads:
            raise UsageError(
                f"{heads} heads do not divide a width of {width}",
                where="FlaxGPT",
                do="Choose heads so that every head gets the same number of channels",
            )
        self.embedding = Embeddings(vocabulary, context, width, dropout, rngs, dtype)
        self.blocks = nnx.List(
            [CausalBlock(width, heads, dropout, blocks, rngs, dtype) for _ in range(blocks)]
        )
        self.final_norm = _norm(width, rngs, dtype)
        self.head = _linear(width, vocabulary, _STD, rngs, dtype)

    def __call__(self, tokens: Array) -> Array:
        """Integer ids (rows, tokens) → logits (rows, tokens, vocabulary), of the weights' dtype."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))


class Embeddings(nnx.Module):
    """Token plus learned position embeddings: (rows, tokens) → (rows, tokens, width)."""

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        dropout: float,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ) -> None:
        init = nnx.initializers.normal(_STD)
        kinds = {"param_dtype": dtype, "dtype": dtype, "embedding_init": init, "rngs": rngs}
        self.tokens = nnx.Embed(vocabulary, width, **kinds)
        self.positions = nnx.Embed(context, width, **kinds)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        """Embed integer ids by value and by place."""
        return self.dropout(self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1])))


class CausalBlock(nnx.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        blocks: int,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ) -> None:
        residual = _STD / (2 * blocks) ** 0.5
        self.attention_norm = _norm(width, rngs, dtype)
        self.attention = CausalAttention(width, heads, dropout, residual, rngs, dtype)
        self.mlp_norm = _norm(width, rngs, dtype)
        self.mlp = TwoLayers(width, dropout, residual, rngs, dtype)

    def __call__(self, hidden: Array) -> Array:
        """(rows, tokens, width) → the same shape and dtype."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.mlp(self.mlp_norm(hidden))


class CausalAttention(nnx.Module):
    """Causal self-attention."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        residual: float,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ) -> None:
        self.heads = heads
        self.query_key_value = _linear(width, 3 * width, _STD, rngs, dtype)
        self.out = _linear(width, width, residual, rngs, dtype)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, hidden: Array) -> Array:
        """(rows, tokens, width) → the same shape and dtype."""
        rows, tokens, width = hidden.shape
        projected = self.query_key_value(hidden)
        projected = projected.reshape(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = (projected[:, :, part] for part in range(3))
        # JAX's own attention takes its softmax in float32, whatever comes in.
        scores = jnp.einsum("rqhc,rkhc->rhqk", query, key) / math.sqrt(width // self.heads)
        scores = jnp.where(jnp.tri(tokens, dtype=bool), scores, -jnp.inf)
        mixed = jnp.einsum("rhqk,rkhc->rqhc", jax.nn.softmax(scores), value)
        return self.dropout(self.out(mixed.reshape(rows, tokens, width)))


class TwoLayers(nnx.Module):
    """Two linear layers around a GELU, four times as wide inside."""

    def __init__(
        self, width: int, dropout: float, residual: float, rngs: nnx.Rngs, dtype: jnp.dtype
    ) -> None:
        self.up = _linear(width, 4 * width, _STD, rngs, dtype)
        self.down = _linear(4 * width, width, residual, rngs, dtype)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, hidden: Array) -> Array:
        """(rows, tokens, width) → the same shape and dtype."""
        return self.dropout(self.down(nnx.gelu(self.up(hidden), approximate=False)))


def loss(model: nnx.Module, batch: Mapping[str, Array]) -> Array:
    """Cross-entropy of every loss target, unreduced, in nats.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, vocabulary).
        batch: ``tokens`` and ``targets``, both integers of shape (rows, tokens); a target of −100
            is no loss target.

    Returns:
        Losses of shape (rows, tokens), of the logits' dtype, 0 where there is no target.
    """
    targets = batch["targets"]
    counted = targets != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch["tokens"]), jnp.where(counted, targets, 0)
    )
    return jnp.where(counted, losses, 0)


def _norm(width: int, rngs: nnx.Rngs, dtype: jnp.dtype) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        width,
        epsilon=1e-5,
        use_bias=False,
        use_fast_variance=False,  # two passes, as torch does
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )


def _linear(inputs: int, outputs: int, std: float, rngs: nnx.Rngs, dtype: jnp.dtype) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=False,
        kernel_init=nnx.initializers.normal(std),
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )
