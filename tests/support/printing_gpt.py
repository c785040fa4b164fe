"""The built-in GPT with a loss that prints, and once prints what a log policy looks for."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from torch import Tensor, nn

from govray.engine.model import gpt
from govray.storage.place import place
from govray.train.inputs.order import Assignment, current
from govray.train.run_folder.requests import STOP

GPT = gpt.GPT
MARK = 5
"""The call that prints it, and waits until the run is told to stop for it."""

calls = [0]


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    calls[0] += 1
    print(f"call {calls[0]}")
    if calls[0] == MARK:
        print("CUDA error: out of memory, token govr_0123456789ab_abc", file=sys.stderr)
        assignment = current.get()
        assert isinstance(assignment, Assignment)
        deadline = time.monotonic() + 240
        while not STOP.made(place(assignment.order.folder)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return gpt.loss(model, batch)
