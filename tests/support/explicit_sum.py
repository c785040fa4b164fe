"""The reference for reducers: an explicit all-reduce of every bucket, after the last backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from govray.engine.collective.allreduce import Domain, flat_gradient, unflattened


def sum_over_ranks(domains: Sequence[Domain], counts: Mapping[str, int]) -> dict[str, Tensor]:
    """Σ_ranks of the local gradients, which stay as they are. Collective."""
    live = [
        (domain, bucket)
        for domain in domains
        for bucket in domain.buckets
        if any(map(counts.get, bucket))
    ]
    flats = [flat_gradient(domain, bucket) for domain, bucket in live]
    if dist.is_initialized():
        for work in [dist.all_reduce(flat, async_op=True) for flat in flats]:
            work.wait()
    return {
        name: total
        for (domain, bucket), flat in zip(live, flats, strict=True)
        for name, total in unflattened(domain, bucket, flat).items()
    }
