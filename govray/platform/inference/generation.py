"""Text from a served model, token by token: bounded in tokens and in time, equal for equal seeds.
And the loss of one text.

The text goes on from the prompt as a record of its own would: a separator stands before it. Of a
longer text the model sees the last ``context`` tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from govray.errors import UsageError
from govray.platform.inference.served_model import ServedModel

Finish = Literal["separator", "tokens", "time"]
"""Why a text ends: its record ends, or a bound was reached."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What a model answered. ``text``: behind the prompt."""

    text: str
    tokens: int
    finish: Finish


def generate(
    served: ServedModel,
    prompt: str,
    *,
    adapter: str | None = None,
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    seconds: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
) -> Generated:
    """Let the model go on with a text. One thread at a time: an adapter is active in the model.

    Args:
        adapter: The adapter that the model reads with; the base alone by default.
        temperature: 0 takes the likeliest token each time.
        seconds: After which no further token is begun.
    """
    tokenizer = served.tokenizer
    ids = [tokenizer.separator, *tokenizer.encode(prompt.encode()).tolist()]
    first = len(ids)
    finish: Finish = "tokens"
    draw = torch.Generator().manual_seed(seed)
    until = clock() + seconds
    with torch.inference_mode(), served.adapters.active(adapter):
        while len(ids) - first < max_tokens:
            if clock() >= until:
                finish = "time"
                break
            shown = torch.tensor([ids[-served.context :]])
            output = served.model(shown)
            logits: Tensor = getattr(output, "logits", output)[0, -1, : tokenizer.vocabulary]
            token = _next(logits.double(), temperature, draw)
            if token == tokenizer.separator:
                finish = "separator"
                break
            ids.append(token)
    answer = ids[first:]
    return Generated(text=tokenizer.decode(answer), tokens=len(answer), finish=finish)


def _next(logits: Tensor, temperature: float, draw: torch.Generator) -> int:
    """The next token of (vocabulary,) logits."""
    if temperature == 0:
        return int(logits.argmax())
    # From the largest down: divided by the smallest temperature, none is infinite.
    below = (logits - logits.max()) / temperature
    return int(torch.multinomial(below.softmax(0), 1, generator=draw))


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
