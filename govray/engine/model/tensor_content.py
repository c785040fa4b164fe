"""64 bits of what a tensor holds, for telling whether anything wrote it.

A write through ``.data`` leaves no version, so the numbers themselves are looked at, where they
lie. That costs about as much as copying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_CHUNK = 1 << 20
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def contents(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """64 bits of what each tensor holds; equal tensors on one device have equal ones."""
    return {name: _content(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def _content(tensor: Tensor) -> int:
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    if own.layout is not torch.strided or type(own) not in (Tensor, nn.Parameter):
        return 0  # sparse, or another library's: identity and version must do
    if own.is_complex():
        own = torch.view_as_real(own)
    flat = own.contiguous().view(-1)
    if own.device.type == "cpu":
        octets: Any = flat.view(torch.uint8).numpy()
        return int.from_bytes(sha256(octets).digest()[:8])
    # Far from the CPU it is added up where it lies. Sums wrap around; odd factors lose nothing,
    # and differ, so that order counts.
    total = torch.zeros((), dtype=torch.int64, device=own.device)
    for place, chunk in enumerate(flat.view(_WORDS[own.element_size()]).split(_CHUNK)):
        total += (chunk * _factors(own.device)[: len(chunk)]).sum() * (2 * place + 1)
    return int(total)


@cache
def _factors(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=generator)
    return (2 * drawn + 1).to(device)
