"""Records that share a row are kept apart: positions that begin anew, and a mask for attention.

A packed row holds several records, each behind a separator token. The separator counts as the first
token of the record that follows it. So the first token of a record is predicted from the separator
alone, and no token sees one of another record. A row may begin within a record. Its positions begin
at 0 there, too.

Both are functions of the row's tokens, so every place that runs the model masks alike.
"""

from __future__ import annotations

import torch
from torch import Tensor


def places(tokens: Tensor, separator: int) -> Tensor:
    """Each token's place in its record, from 0.

    Args:
        tokens: Integer ids of shape (rows, tokens).
        separator: The id that begins a record.

    Returns:
        int64 of shape (rows, tokens), on the tokens' device.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    begins = torch.where(tokens == separator, index, 0).cummax(dim=1).values
    return index - begins


def attention_mask(places: Tensor) -> Tensor:
    """Which tokens each token sees: itself, and those before it in its record.

    Args:
        places: From `places`, of shape (rows, tokens).

    Returns:
        bool of shape (rows, 1, tokens, tokens), on the same device: [row, 0, i, j] says whether
        token i sees token j.
    """
    index = torch.arange(places.shape[1], device=places.device)
    begins = (index - places).unsqueeze(2)
    return ((begins <= index) & (index <= index.unsqueeze(1))).unsqueeze(1)
