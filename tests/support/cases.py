"""Small governed runs for tests: one way to make a batch, and one to make a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.allreduce import BucketLayout, bucket_layout
from govray.engine.collective.step_settings import StepSettings
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import IGNORED
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import GovernedStep, build_step
from govray.governance.policy.route import Route

POLICY = "sha256:" + "a" * 64
PLAN = "sha256:" + "b" * 64
CORPUS = "corpus"


def micro_batch(route: Route, tensors: Mapping[str, Tensor], first: int = 0) -> MicroBatch:
    """Rows of one stream, the first of them at position ``first`` of its quota."""
    targets = tensors["targets"]
    counted = (targets != IGNORED).reshape(len(targets), -1).sum(1)
    return MicroBatch(
        stream=route.digest,
        tensors=tensors,
        positions=tuple(range(first, first + len(targets))),
        row_targets=tuple(counted.tolist()),
    )


def step_batch(step: int, micro_batches: Sequence[MicroBatch]) -> StepBatch:
    """A rank's part of a step, all of it of one corpus."""
    rows = sum(len(m.positions) for m in micro_batches)
    targets = sum(m.targets for m in micro_batches)
    return StepBatch(step, tuple(micro_batches), {CORPUS: (rows, targets)} if rows else {})


def batch_on(batch: StepBatch, device: torch.device | str) -> StepBatch:
    parts = (
        replace(part, tensors={name: rows.to(device) for name, rows in part.tensors.items()})
        for part in batch.micro_batches
    )
    return replace(batch, micro_batches=tuple(parts))


def governed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    routes: Sequence[Route],
    *,
    adapters: Adapters | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    alternatives: Mapping[str, Sequence[str]] | None = None,
    layout: BucketLayout = bucket_layout,
    tries_rows: bool = True,
    late: bool | None = None,
    **changed: Any,
) -> GovernedStep:
    """A governed step over the layer groups that are inferred."""
    terms: dict[str, Any] = {"policy_digest": POLICY, "plan_digest": PLAN, "corpora": (CORPUS,)}
    terms |= {f.name: changed.pop(f.name) for f in fields(Terms) if f.name in changed}
    run = build_step(
        model,
        optimizer,
        groups=layer_groups(model) if groups is None else groups,
        routes={route.digest: route for route in routes},
        alternatives=alternatives or {},
        adapters=adapters,
        terms=Terms(**terms),
        settings=StepSettings(**({"seed": 0, "clip_norm": None} | changed)),
        layout=layout,
        late=late,
    )
    if not tries_rows:
        run._try_rows = None
    return run


def allow_all(model: nn.Module) -> Route:
    return Route(dict.fromkeys(layer_groups(model), 1.0))


def token_rows(rows: int, length: int, vocabulary: int, *key: int) -> dict[str, Tensor]:
    """Random rows; equal keys give equal rows on every rank."""
    seed = hash(key) % 2**31  # of integers only: the same in every process
    drawn = torch.randint(
        vocabulary, (rows, length + 1), generator=torch.Generator().manual_seed(seed)
    )
    return {"tokens": drawn[:, :-1].clone(), "targets": drawn[:, 1:].clone()}
