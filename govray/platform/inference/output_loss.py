"""What a served model's loss on one text is: by the base model, and with each adapter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from govray.errors import UsageError
from govray.platform.inference.served_model import ServedModel


def output_losses(served: ServedModel, prompt: str, output: str) -> dict[str | None, float]:
    """Nats a token of ``output`` behind ``prompt``: of the base model (None), of each adapter.

    The text is read as an answer is: a separator stands before it.

    Raises:
        UsageError: There is no output, or the model can't read both at once.
    """
    tokenizer = served.tokenizer
    before = [tokenizer.separator, *tokenizer.encode(prompt.encode()).tolist()]
    tokens = [tokenizer.separator, *tokenizer.encode((prompt + output).encode()).tolist()]
    start = min(len(before), len(tokens) - 1)
    if not output or len(tokens) < 2:
        raise UsageError("there is no output", where="--output", do="Give the text")
    if len(tokens) - 1 > served.context:
        raise UsageError(
            f"prompt and output have {len(tokens) - 1:,} tokens, and the model reads at most "
            f"{served.context:,}",
            where="--prompt, --output",
            do="Give the end of the prompt, or a part of the output",
        )
    shown = torch.tensor(tokens)
    losses: dict[str | None, float] = {}
    for adapter in (None, *served.names):
        with torch.inference_mode(), served.adapters.active(adapter):
            read = served.model(shown[None, :-1])
            logits: Tensor = getattr(read, "logits", read)[0, start - 1 :]
            losses[adapter] = float(functional.cross_entropy(logits.double(), shown[start:]))
    return losses
