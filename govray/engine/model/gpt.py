"""The built-in model: a small pre-norm GPT, and its unreduced loss.

It exists so that a run needs no code from the user, and so that tests have a
real transformer. Parameters sit where the layer groups are: ``embedding``
(tokens and positions), ``blocks``, ``final_norm``, ``head``. Nothing has a
bias. Weights come from torch's global generator, so ``torch.manual_seed`` fixes
them; under ``torch.device("meta")`` nothing is drawn or allocated.

Dropout acts on the residual stream only, through ``nn.Dropout`` modules, which
govray can key by row. The fused attention kernel has no dropout: its
masks come from a generator that all rows of a call share.

A packed row is of one class. Attention crosses its records, unless the model is told which token
begins one (``document_mask.py``).

Source: Radford et al. 2019 (GPT-2): pre-norm blocks, learned positions, GELU,
and residual projections initialised smaller by the square root of their number.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.batch import IGNORED
from govray.engine.model import document_mask
from govray.engine.model.past import LayerPast, Past
from govray.errors import UsageError

_HEAD_WIDTH = 64
_STD = 0.02


class GPT(nn.Module):
    """A decoder-only transformer over token ids.

    Args:
        blocks: Number of transformer blocks, at least 1.
        width: Channels of the residual stream.
        context: Longest sequence, in tokens.
        vocabulary: Number of token ids.
        tied: Use the token embedding as the head. One tensor then, and one
            layer group ``embedding+head``.
        heads: Attention heads; by default one for every 64 channels, fewer if that
            does not divide ``width``.
        dropout: Probability of zeroing a channel on the residual stream.
        separator: The token id that begins a record, if records of a row are kept apart.

    Raises:
        UsageError: If a size is not positive, ``heads`` does not divide
            ``width``, or ``dropout`` is not in [0, 1).
    """

    may_change = ("dropout",)
    """Hyperparameters that shape no weight: a search may change them while a trial runs."""

    def __init__(
        self,
        blocks: int,
        width: int,
        context: int,
        vocabulary: int,
        tied: bool = False,
        heads: int | None = None,
        dropout: float = 0.0,
        separator: int | None = None,
    ) -> None:
        super().__init__()
        if heads is None:
            most = max(1, width // _HEAD_WIDTH)
            heads = next(count for count in range(most, 0, -1) if width % count == 0)
        sizes = {"blocks": blocks, "context": context, "vocabulary": vocabulary}
        require_sizes("GPT", sizes, width, heads, dropout)
        self.context = context
        self.separator = separator
        self.embedding = Embedding(vocabulary, context, width, dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.final_norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.reset_parameters()
        if tied:
            self.head.weight = self.embedding.tokens.weight

    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's global generator."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            elif name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=_STD / (2 * len(self.blocks)) ** 0.5)
            else:
                nn.init.normal_(parameter, std=_STD)

    def forward(self, tokens: Tensor, past: Past | None = None) -> Tensor:
        """Logits of the next token.

        Args:
            tokens: Integer ids of shape (rows, tokens), at most ``context`` long, on the
                parameters' device.
            past: What these tokens come after, in every row; an empty one is filled. It holds no
                separator, and the tokens neither.

        Returns:
            Logits of shape (rows, tokens, vocabulary), of the parameters' dtype.

        Raises:
            UsageError: If the rows are longer than the context.
        """
        before = past.length if past else 0
        if before + tokens.shape[1] > self.context:
            raise UsageError(
                f"rows of {before + tokens.shape[1]} tokens exceed the context of {self.context}",
                where="GPT",
                do="Prepare the data with the model's context",
            )
        if past is not None:
            return self._after(tokens, past)
        places, apart = None, {}
        if self.separator is not None:
            places = document_mask.places(tokens, self.separator)
            apart = {"mask": document_mask.attention_mask(places)}
        hidden = self.embedding(tokens, places)
        for block in self.blocks:
            hidden = block(hidden, **apart)  # without a mask, as blocks of others take it
        return self.head(self.final_norm(hidden))

    def _after(self, tokens: Tensor, past: Past) -> Tensor:
        places = torch.arange(past.length, past.length + tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens, places.expand_as(tokens))
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, past=LayerPast(past, index))
        past.length = past.length or tokens.shape[1]
        return self.head(self.final_norm(hidden))


def require_sizes(
    model: str, sizes: Mapping[str, object], width: int, heads: int, dropout: float
) -> None:
    """Refuse sizes that make no transformer. ``sizes``: those that must be 1 or more, beside the
    width and the number of heads."""
    for name, size in {**sizes, "width": width, "heads": heads}.items():
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"{name} is {size}", where=model, do="Give 1 or more")
    if width % heads:
        raise UsageError(
            f"{heads} heads do not divide a width of {width}",
            where=model,
            do="Choose heads so that every head gets the same number of channels",
        )
    if not 0.0 <= dropout < 1.0:
        raise UsageError(f"dropout is {dropout}", where=model, do="Give a probability in [0, 1)")


class Embedding(nn.Module):
    """Token plus learned position embeddings: (rows, tokens) → (rows, tokens, width)."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """Embed integer ids by value and by place, in the parameters' dtype and device.

        Args:
            tokens: Of shape (rows, tokens).
            places: Of the same shape; by default those in the row.
        """
        # Looked up for every row, so that a row's part of the gradient can be told apart.
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.dropout(self.tokens(tokens) + self.positions(places))


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, dropout, causal=causal)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = MLP(width, dropout)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, past: LayerPast | None = None
    ) -> Tensor:
        """(rows, tokens, width) → the same shape, dtype and device; the rest as in `Attention`."""
        hidden = hidden + self.attention(self.attention_norm(hidden), mask, past)
        return hidden + self.mlp(self.mlp_norm(hidden))


class Attention(nn.Module):
    """Self-attention through torch's fused kernel, causal unless said otherwise."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, past: LayerPast | None = None
    ) -> Tensor:
        """(rows, tokens, width) → the same shape, dtype and device.

        Args:
            hidden: The residual stream, normalised.
            mask: bool of shape (rows, 1, tokens, tokens), on the same device: which tokens a token
                sees. By default those before it, and itself; if not causal, all.
            past: What the tokens come after, as this layer keeps it. Instead of a mask.
        """
        rows, tokens, width = hidden.shape
        projected = self.query_key_value(hidden)
        projected = projected.view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        if past is not None:
            mask = past.mask(tokens, hidden.device)
            key, value = past.joined(key, value)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal and mask is None
        )
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(rows, tokens, width)))


class MLP(nn.Module):
    """Two linear layers around a GELU, four times as wide inside."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, tokens, width) → the same shape, dtype and device."""
        return self.dropout(self.down(F.gelu(self.up(hidden))))


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of every loss target, unreduced, in nats.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, vocabulary).
        batch: ``tokens`` and ``targets``, both of shape (rows, tokens), int64, on the model's
            device; a target of −100 is no loss target.

    Returns:
        Losses of shape (rows, tokens), of the logits' dtype, 0 where there is no target.
    """
    targets = batch["targets"]
    logits = model(batch["tokens"])
    # Flat, because the kernel is several times faster when classes are contiguous.
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return losses.view(targets.shape)
