"""The built-in GPT with a loss that takes its time, so that a test can meet a run in the middle."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor, nn

from govray.engine.model import gpt

GPT = gpt.GPT


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    time.sleep(0.1)
    return gpt.loss(model, batch)
