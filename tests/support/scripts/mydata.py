"""The user's own data in the scripts of docs/own-loop.md: made up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

CONTEXT = 64


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows under the names that a model of transformers or the built-in one takes.

    A file ``fail`` in the folder holds a number of reads; rank 1 raises at the next, once.
    """

    def __init__(self, folder: str, inputs: str, targets: str) -> None:
        self._fail = Path(folder) / "fail"
        self._names = inputs, targets
        self._reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self._reads += 1
        if os.environ.get("RANK") == "1" and self._fail.exists():  # noqa: SIM102
            if self._reads > int(self._fail.read_text()):
                self._fail.unlink()
                self._wait_for_a_commit()
                raise RuntimeError("a user's bug")
        tokens = (torch.arange(CONTEXT + 1) * (index + 3)) % 256
        inputs, targets = self._names
        # A causal language model of transformers shifts its labels itself.
        return {inputs: tokens[:-1], targets: tokens[:-1] if targets == "labels" else tokens[1:]}

    def _wait_for_a_commit(self) -> None:
        """Let the attempt leave something to resume from: commits are written behind the loop."""
        runs, deadline = self._fail.parents[1] / "runs", time.monotonic() + 60
        while not any(runs.rglob("manifest.json")) and time.monotonic() < deadline:
            time.sleep(0.05)


def rows(folder: str) -> Rows:
    return Rows(folder, "input_ids", "labels")


def loader(folder: str) -> DataLoader[dict[str, torch.Tensor]]:
    return DataLoader(Rows(folder, "tokens", "targets"), batch_size=4)
