"""Rows of tokens that are a function of their key: a plan of them, and what a run left behind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from govray.engine.batch import IGNORED, MicroBatch, StepBatch
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan, rank_slice
from govray.governance.record.row_order import RowOrder

VOCABULARY = 17


def digest(tensor: Tensor) -> str:
    """Of all of it, whoever holds it."""
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    data = tensor.detach().cpu().contiguous()
    described = f"{data.dtype} {tuple(data.shape)}".encode()
    return hashlib.sha256(
        described + data.reshape(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def drawn_row(*key: object, context: int) -> Tensor:
    """A row of tokens, a function of its key."""
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")
    return torch.randint(VOCABULARY, (context + 1,), generator=torch.Generator().manual_seed(seed))


def planned(
    streams: Mapping[Route, tuple[Mapping[str, int], int, int]],
    *,
    steps: int,
    context: int,
    excluded: tuple[str, ...] = (),
) -> BatchPlan:
    """A plan of streams: route → rows of each corpus, the quota, and in each which step."""
    made = [
        StreamPlan(
            id=route.digest,
            profile="p",
            corpora=tuple(StreamCorpus(corpus=name, rows=rows) for name, rows in corpora.items()),
            phase=0,
            quota=quota,
            every=every,
        )
        for route, (corpora, quota, every) in streams.items()
    ]
    return BatchPlan(
        seed=5,
        max_steps=steps,
        manifest="sha256:" + "0" * 64,
        context=context,
        excluded=excluded,
        order=RowOrder(block=1, window=1 << 20),
        streams=tuple(sorted(made, key=lambda stream: stream.id)),
    )


def planned_batch(plan: BatchPlan, step: int, rank: int, world: int) -> StepBatch:
    """A rank's slice of every stream, rows of one corpus together. A row of odd number is short:
    its last token is no loss target."""
    parts, used = [], dict[str, tuple[int, int]]()
    for stream, positions in plan.positions(step).items():
        mine = rank_slice(positions, rank, world)
        rows = sorted(plan.read(stream, mine), key=lambda row: row[1])
        if not rows:
            continue
        tokens = torch.stack([drawn_row(name, row, context=plan.context) for _, name, row in rows])
        targets = tokens[:, 1:].clone()
        targets[[row % 2 == 1 for _, _, row in rows], -1] = IGNORED
        counts = tuple((targets != IGNORED).sum(1).tolist())
        own = tuple(corpus for _, corpus, _ in rows)
        places = tuple(position - positions.start for position, _, _ in rows)
        tensors = {"tokens": tokens[:, :-1], "targets": targets}
        parts.append(MicroBatch(stream, tensors, places, counts, own))
        for corpus, count in zip(own, counts, strict=True):
            before = used.get(corpus, (0, 0))
            used[corpus] = before[0] + 1, before[1] + count
    return StepBatch(step, tuple(parts), used)
