"""A small run whose rows may change their routes: how it is built, read and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.engine.step import GovernedStep
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import rank_slice
from tests.support.cases import governed

CONTEXT, VOCABULARY, CLIP = 4, 17, 0.05


def digest(tensor: Tensor) -> str:
    """Of all of it, whoever holds it."""
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    data = tensor.detach().cpu().contiguous()
    described = f"{data.dtype} {tuple(data.shape)}".encode()
    return hashlib.sha256(
        described + data.reshape(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def drawn_row(*key: object, context: int = CONTEXT) -> Tensor:
    """A row of tokens, a function of its key."""
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")
    return torch.randint(VOCABULARY, (context + 1,), generator=torch.Generator().manual_seed(seed))


def read(step: int, streams: Mapping[Route, Sequence[str]], rank: int, world: int) -> StepBatch:
    """A rank's slice of each stream, whose rows are of these corpora, in order of positions."""
    parts, corpora = [], {}
    for route, names in streams.items():
        mine = rank_slice(range(len(names)), rank, world)
        held = sorted(mine, key=lambda position: names[position])
        if not held:
            continue
        rows = torch.stack([drawn_row(step, names[position], position) for position in held])
        own = tuple(names[position] for position in held)
        parts.append(
            MicroBatch(
                route.digest,
                {"tokens": rows[:, :-1], "targets": rows[:, 1:]},
                positions=tuple(held),
                row_targets=(CONTEXT,) * len(held),
                corpora=own,
            )
        )
        corpora |= {name: (own.count(name), own.count(name) * CONTEXT) for name in own}
    return StepBatch(step, tuple(parts), corpora)


def build(routes: Sequence[Route], **settings: Any) -> tuple[GovernedStep, torch.optim.Optimizer]:
    """A step of a GPT of two blocks, sharded if that is the aggregator; rows are not tried."""
    torch.manual_seed(3)
    model = GPT(2, 32, CONTEXT, VOCABULARY, dropout=0.1).double()
    if settings.get("aggregator") == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    ranks = {route.adapter: route.rank for route in routes if route.adapter and route.rank}
    adapters = Adapters(model, ranks, seed=5)
    parameters = [*model.parameters(), *dict(adapters.named_parameters()).values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    kept = {"seed": 5, "clip_norm": CLIP, "max_rows": 2, "tries_rows": False} | settings
    return governed(model, optimizer, routes, adapters=adapters, **kept), optimizer
