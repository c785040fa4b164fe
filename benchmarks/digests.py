"""What weights a governed step leaves, as digests: a change that is meant to change no number
leaves these as they are.

They hold for one version of torch on one kind of processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from benchmarks.methods.governed import Governed
from benchmarks.timing import Setting


def weights_digests(
    rank: int, setting: Setting, cases: Sequence[str], steps: int
) -> dict[str, str]:
    """Case → SHA-256 of all weights after so many steps; run it on every rank.

    Each weight is hashed as its name, a zero byte, and its bytes in float64, in order of name.
    """
    return {case: _digest(setting, case, rank, steps) for case in cases}


def _digest(setting: Setting, case: str, rank: int, steps: int) -> str:
    method = Governed(setting.workload(case, rank))
    for step in range(steps):
        method.step(method.workload.batch(step))
    found = hashlib.sha256()
    for name, parameter in sorted(method.parameters.items()):
        found.update(name.encode() + b"\0")
        found.update(parameter.detach().cpu().to(torch.float64).numpy().tobytes())
    return found.hexdigest()
