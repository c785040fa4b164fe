"""How far a run whose number of workers changed is from one of fixed size: rounding, no more."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch

from govray.governance.attestation import model_folder

RELATIVE = 1e-4
"""Bound on ‖elastic - fixed‖ / ‖fixed‖ of each tensor: sums over ranks round differently."""


def ran(folder: Path, name: str) -> list[tuple[int, float]]:
    """(step, loss) in the order in which steps were done, those done again included."""
    lines = (folder / f"{name}.ran.jsonl").read_text().splitlines()
    return [(step, loss) for step, loss in map(json.loads, lines)]


def apart(folder: Path, other: Path) -> float:
    """The largest relative distance of any tensor."""
    one, two = (
        safetensors.torch.load_file(each / model_folder.WEIGHTS) for each in (folder, other)
    )
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).norm() / two[name].norm()) for name in one)
