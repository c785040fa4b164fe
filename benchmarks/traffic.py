"""Which messages a step sends: plain DDP's, and the governed step's by what it trained.

A governed step sends a bucket if any of its layer groups was trained on any rank. A step whose rows
may only update the upper half sends only that half's buckets. A step of an adapter's class sends
the adapter. A batch plan has such steps if a stream is read every k steps, or is silent after its
epochs. Plain DDP sends every gradient in every step.

The agreement is counted: two all-gathers a step, on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.cases import (
    ADAPTER_NAME,
    ADAPTER_RANK,
    EVERYTHING,
    REMOVABLE,
    SEED,
    UPPER_HALF,
    Shape,
    route,
)
from govray.engine.collective.allreduce import BUCKET_BYTES, bucket_layout, lay_out
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import domains

STEPS: Mapping[str, tuple[str, ...]] = {
    "all_streams": (EVERYTHING, UPPER_HALF, REMOVABLE),
    "upper_half_and_adapter": (UPPER_HALF, REMOVABLE),
    "upper_half_only": (UPPER_HALF,),
    "adapter_only": (REMOVABLE,),
}
"""Kind of step → profiles that have rows in it."""

MIX: Mapping[str, float] = {EVERYTHING: 0.5, UPPER_HALF: 0.3, REMOVABLE: 0.2}
"""Share of the steps, if streams take turns instead of sharing steps."""

_DDP_FIRST_BUCKET_BYTES = 2**20
_WORD = 8
_DIGEST_WORDS = 4


@dataclass(frozen=True)
class Traffic:
    """What one step communicates.

    Attributes:
        all_reduces: Bytes of each gradient bucket.
        all_gathers: Bytes that each rank sends in each exchange.
    """

    all_reduces: tuple[int, ...]
    all_gathers: tuple[int, ...] = ()


class GovernedTraffic:
    """The governed step's traffic for the built-in GPT under the mixed policy.

    Args:
        shape: Of the model; weights and gradients are float32.
    """

    def __init__(self, shape: Shape) -> None:
        with torch.device("meta"):
            model = GPT(shape.blocks, shape.width, shape.tokens, shape.vocabulary)
        self._groups = layer_groups(model)
        self._routes = {profile: route(profile, self._groups) for profile in MIX}
        adapters = Adapters(model, {ADAPTER_NAME: ADAPTER_RANK}, seed=SEED)
        self._base = dict(model.named_parameters())
        parameters = self._base | dict(adapters.named_parameters())
        group_of = {
            name: group
            for group, names in (self._groups | adapters.groups).items()
            for name in names
        }
        streams = {
            name: frozenset(p for p, r in self._routes.items() if group_of[name] in r.groups)
            for name in parameters
        }
        self._buckets = [
            ({group_of[name] for name in bucket}, sum(_bytes(parameters[n]) for n in bucket))
            for members in domains(self._routes.values(), tuple(self._groups))
            for bucket in lay_out(
                min(members),
                members,
                {name: p for name, p in parameters.items() if group_of[name] in members},
                bucket_layout,
                streams,
            ).buckets
        ]

    def step(self, profiles: Collection[str]) -> Traffic:
        """A step in which these profiles have rows somewhere."""
        live = {group for profile in profiles for group in self._routes[profile].groups}
        return Traffic(
            tuple(size for groups, size in self._buckets if groups & live), self._agreement()
        )

    def plain(self) -> Traffic:
        """Plain DDP on the same model, without adapters."""
        return Traffic(tuple(ddp_buckets([_bytes(p) for p in reversed(list(self._base.values()))])))

    def _agreement(self) -> tuple[int, int, int]:
        groups, corpora = len(self._groups) + 1, len(self._routes)
        # Status, step, time, what is left out, two digests, a count per group, two per corpus.
        start = 4 + 2 * _DIGEST_WORDS + groups + 2 * corpora
        # Status, and two sums per stream.
        conclude = 1 + 2 * len(self._routes)
        # Status.
        confirm = 1
        return _WORD * start, _WORD * conclude, _WORD * confirm


def ddp_buckets(sizes: Iterable[int]) -> list[int]:
    """Bytes of DDP's buckets: whole gradients up to a cap, which is small for the first.

    Args:
        sizes: Bytes of the gradients, in the order in which backward makes them.
    """
    buckets, filling, cap = [], 0, _DDP_FIRST_BUCKET_BYTES
    for size in sizes:
        filling += size
        if filling >= cap:
            buckets.append(filling)
            filling, cap = 0, BUCKET_BYTES
    return [*buckets, filling] if filling else buckets


def _bytes(parameter: nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()
