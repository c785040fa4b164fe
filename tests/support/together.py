"""An entrypoint whose runs begin together and take their time, so that they can be compared."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from govray.engine.model import gpt

GPT = gpt.GPT

TOGETHER = "GOVRAY_TEST_TOGETHER"
"""Names a folder; nobody takes a step before two processes have been there."""

_met = False


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    global _met
    if not _met:
        folder = Path(os.environ[TOGETHER])
        (folder / str(os.getpid())).touch()
        deadline = time.monotonic() + 240
        while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        _met = True
    time.sleep(0.5)
    return gpt.loss(model, batch)
