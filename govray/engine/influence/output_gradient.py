"""Where the weights would have to move for one output to become less likely: its loss's gradient.

Only parameters that the output is read with have one: the base model's and those of the adapter
that is active. A parameter that does not require grad has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.memorization.scores import untouched
from govray.engine.model.adapters import Adapters


def output_gradient(
    model: nn.Module,
    adapters: Adapters,
    tokens: Sequence[int],
    start: int,
    *,
    adapter: str | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """The mean loss of an output's tokens, and its gradient.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), or to something with
            ``.logits``, causally. Gradients have its dtype and device.
        adapters: The model's.
        tokens: Prompt and output, at least two.
        start: Index of the output's first token, at least 1.
        adapter: The adapter that the output is read with; none by default.

    Returns:
        Nats a token, and for each parameter that the loss depends on its gradient, of its shape.
        Names are those of ``named_parameters``, of the model or of the adapters.

    Raises:
        Refused: The forward changed a buffer.
        ValueError: There is no output.
    """
    if not 1 <= start < len(tokens):
        raise ValueError("an output begins behind the first token and has at least one")
    named = dict(model.named_parameters())
    if adapter is not None:
        own = set(adapters.groups[f"adapter:{adapter}"])
        named |= {name: value for name, value in adapters.named_parameters() if name in own}
    learning = {name: value for name, value in named.items() if value.requires_grad}
    device = next((value.device for value in learning.values()), torch.device("cpu"))
    row = torch.tensor([list(tokens)], dtype=torch.long, device=device)
    with untouched(model), adapters.active(adapter), torch.enable_grad():
        output = model(row[:, :-1])
        logits = getattr(output, "logits", output)[0, start - 1 :]
        loss = F.cross_entropy(logits, row[0, start:])
        gradients = torch.autograd.grad(loss, list(learning.values()), allow_unused=True)
    found = {
        name: gradient.detach()
        for name, gradient in zip(learning, gradients, strict=True)
        if gradient is not None
    }
    return float(loss.detach()), found
