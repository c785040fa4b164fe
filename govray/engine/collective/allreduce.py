"""The governed all-reduce: sum over ranks, divide each layer group by its own count.

For every parameter of layer group l, with this rank's gradient sum in ``.grad``:

    grad_l  =  (1 / N_l) · Σ_ranks grad_l,      or no gradient at all where N_l = 0

The masking was done in backward, before rows were summed; here it could no longer be.
`bucket_reducer.py` sends the buckets while backward still runs.

Invariants:

* A bucket holds parameters of one domain, and the buckets of a domain depend on that domain
  alone. From three ranks on, gloo's sums change when another tensor is concatenated; so a
  domain's bits are the same whatever else trains.
* Which buckets are reduced follows from the agreed N_l, hence is the same on all
  ranks. A bucket is skipped only if all of its groups have N_l = 0; in others an
  absent local gradient counts as zeros.
* Gradients are divided once, after the sum, by true division.

Sparse gradients are not reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from govray.errors import UsageError

BUCKET_BYTES = 25 * 2**20
"""The usual cap: large enough to use the network, small enough to overlap."""

BucketLayout = Callable[[Mapping[str, nn.Parameter]], Sequence[Sequence[str]]]
"""A domain's parameters by name, in model order → its buckets, by name."""


@dataclass(frozen=True)
class Domain:
    """Layer groups that some route links, with what is kept per domain.

    Attributes:
        name: Its first layer group.
        parameters: Theirs, by name, in model order.
        buckets: Every one of these names, once.
    """

    name: str
    groups: frozenset[str]
    parameters: Mapping[str, nn.Parameter]
    buckets: tuple[tuple[str, ...], ...]


def bucket_layout(parameters: Mapping[str, nn.Parameter]) -> list[list[str]]:
    """Last parameter first, in buckets of one dtype and device, full at ``BUCKET_BYTES``.

    The parameter that fills a bucket still goes into it, as in DDP. Otherwise large parameters
    would leave half-empty buckets, and every bucket costs a collective.
    """
    buckets: list[list[str]] = []
    last: dict[tuple[torch.dtype, torch.device], tuple[list[str], int]] = {}
    for name in reversed(list(parameters)):
        parameter = parameters[name]
        kind = (parameter.dtype, parameter.device)
        size = parameter.numel() * parameter.element_size()
        bucket, left = last.get(kind, ([], 0))
        if left <= 0:
            bucket, left = [], BUCKET_BYTES
            buckets.append(bucket)
        bucket.append(name)
        last[kind] = (bucket, left - size)
    return buckets


def lay_out(
    name: str,
    groups: frozenset[str],
    parameters: Mapping[str, nn.Parameter],
    layout: BucketLayout,
    streams: Mapping[str, frozenset[str]] | None = None,
) -> Domain:
    """A domain whose buckets are known to hold each of its parameters once.

    Args:
        parameters: Its parameters by name, in model order.
        streams: Parameter name → the route streams that may update it. Parameters that
            differ in this share no bucket, so what a silent stream alone would update
            is not sent, and is not waited for either.
    """
    alike: dict[frozenset[str], dict[str, nn.Parameter]] = {}
    for each, parameter in parameters.items():
        alike.setdefault(streams[each] if streams else frozenset(), {})[each] = parameter
    # The segment that ends last first: its gradients come first in backward.
    place = {each: index for index, each in enumerate(parameters)}
    segments = sorted(alike.values(), key=lambda part: -max(place[each] for each in part))
    buckets = tuple(tuple(bucket) for part in segments for bucket in layout(part))
    if sorted(name for bucket in buckets for name in bucket) != sorted(parameters):
        raise UsageError(
            "the buckets do not hold each parameter of the domain exactly once",
            where=f"domain {name}",
            do="Correct the bucket layout, or leave it out",
        )
    for bucket in buckets:
        if len({(parameters[p].dtype, parameters[p].device) for p in bucket}) > 1:
            raise UsageError(
                "a bucket mixes dtypes or devices",
                where=f"domain {name}",
                do="Correct the bucket layout, or leave it out",
            )
    return Domain(name, groups, parameters, buckets)


@torch.no_grad()
def flat_gradient(domain: Domain, bucket: Sequence[str], out: Tensor | None = None) -> Tensor:
    """A copy of a bucket's local gradients behind each other; an absent one is zeros.

    Returns:
        Shape (numbers of the bucket,), of the parameters' dtype and on their device.
    """
    parameters = [domain.parameters[name] for name in bucket]
    return torch.cat(
        [
            torch.zeros_like(parameter).flatten()
            if parameter.grad is None
            else parameter.grad.flatten()
            for parameter in parameters
        ],
        out=out,
    )


def unflattened(domain: Domain, bucket: Sequence[str], flat: Tensor) -> dict[str, Tensor]:
    """Views of a flat bucket, by parameter name, each of its parameter's shape.
    ``flat``: shape (numbers of the bucket,), any dtype and device."""
    sizes = [domain.parameters[name].numel() for name in bucket]
    return {
        name: part.view(domain.parameters[name].shape)
        for name, part in zip(bucket, flat.split(sizes), strict=True)
    }


@torch.no_grad()
def largest_magnitudes(tensors: Sequence[Tensor]) -> Tensor:
    """The largest magnitude in each tensor, NaN where a NaN is.

    On a CPU by way of the extremes, which cost a fifteenth of torch's infinity norm there. A GPU
    starts one kernel for all norms, and one for the extremes of each tensor.

    Args:
        tensors: At least one, none empty; any shapes, of one floating dtype and device.

    Returns:
        Shape (tensors,), of their dtype and on their device.
    """
    if tensors[0].is_cuda:
        return torch.stack(torch._foreach_norm([*tensors], math.inf))
    low, high = zip(*map(torch.aminmax, tensors), strict=True)
    return torch.maximum(-torch.stack(low), torch.stack(high))


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor with an infinity or NaN, or None."""
    if not tensors:
        return None
    # One transfer from the device, not one for each tensor.
    first = next(iter(tensors.values())).device
    flags = torch.stack([tensor.isfinite().all().to(first) for tensor in tensors.values()])
    return next(
        (name for name, flag in zip(tensors, flags.tolist(), strict=True) if not flag), None
    )


@torch.no_grad()
def divide(
    domains: Sequence[Domain], sums: Mapping[str, Tensor], counts: Mapping[str, int]
) -> None:
    """Set every parameter's gradient to its sum over N_l, or to None where N_l = 0.

    Args:
        sums: By parameter name, of the parameter's shape and device, any floating dtype. They
            are used up: full-precision ones become the gradients.
    """
    alike: dict[tuple[int, type, torch.dtype, torch.device], list[tuple[nn.Parameter, Tensor]]] = {}
    for domain in domains:
        for name, parameter in domain.parameters.items():
            parameter.grad = None
            if count := counts[name]:
                total = sums[name]
                # Half precision can't hold the count.
                wide = total.float() if total.element_size() < 4 else total
                # One call divides many, but shards and whole tensors not together.
                kind = count, type(wide), wide.dtype, wide.device
                alike.setdefault(kind, []).append((parameter, wide))
    for (count, _, dtype, device), pairs in alike.items():
        # A tensor on the device, because CUDA multiplies by the reciprocal of a number. Filled
        # there: copying one from the host would wait.
        divisor = torch.full((), count, dtype=dtype, device=device)
        torch._foreach_div_([wide for _, wide in pairs], divisor)
        for parameter, quotient in pairs:
            # Laid out as the parameter: what plain training has.
            same_layout = quotient.dtype == parameter.dtype and parameter.is_contiguous()
            parameter.grad = (
                quotient if same_layout else torch.empty_like(parameter).copy_(quotient)
            )
