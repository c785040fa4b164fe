"""A policy that allows everything trains, bit for bit, what plain training trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from govray.engine import step as step_module
from govray.engine.collective import bucket_reducer as reducer_module
from govray.engine.collective import gradient_clip
from govray.engine.collective.bucket_reducer import Reducer
from govray.engine.collective.routed_model import RoutedModel
from govray.engine.model.gpt import GPT, IGNORED
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.ranks import RankPool

STEPS = 10
ROWS, MICRO_ROWS, CONTEXT, VOCABULARY = 4, 2, 16, 61
CLIP = 0.5
BUCKET_MB = 0.03  # several buckets for this model
SMALLEST = 2.0**-100  # far above float32's subnormal numbers, where halving rounds

Weights = dict[str, Tensor]
Layout = list[list[str]]


def fresh(fused: bool = False) -> tuple[GPT, torch.optim.AdamW]:
    torch.manual_seed(7)
    model = GPT(2, 32, CONTEXT, VOCABULARY, tied=True)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=fused)


def flat_loss(model: nn.Module, rows: Mapping[str, Tensor], reduction: str) -> Tensor:
    logits = model(rows["tokens"]).flatten(0, 1)
    return F.cross_entropy(logits, rows["targets"].flatten(), reduction=reduction)


def unreduced(model: nn.Module, rows: Mapping[str, Tensor]) -> Tensor:
    return flat_loss(model, rows, "none").view(rows["targets"].shape)


def rows_of(step: int) -> dict[str, Tensor]:
    return token_rows(ROWS, CONTEXT, VOCABULARY, 1, step, dist.get_rank())


def pieces(rows: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    return [
        {name: tensor[start : start + MICRO_ROWS] for name, tensor in rows.items()}
        for start in range(0, len(rows["targets"]), MICRO_ROWS)
    ]


def weights_of(model: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain(fused: bool, layouts: list[Layout] | None = None) -> tuple[Weights, Weights, float]:
    """Stock DDP with accumulation, clipping and AdamW."""
    model, optimizer = fresh(fused)
    before = weights_of(model)
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    parallel = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)

    def hook(state, bucket):  # without annotations: DDP wants them unquoted
        if bucket.index() == 0:
            layouts.append([])
        layouts[-1].append([names[p.data_ptr()] for p in bucket.parameters()])
        buffer = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0])

    if layouts is not None:
        parallel.register_comm_hook(None, hook)
    smallest = 1.0
    for step in range(STEPS):
        optimizer.zero_grad()
        *first, last = pieces(rows_of(step))
        for piece in first:
            with parallel.no_sync():
                (flat_loss(parallel, piece, "mean") / (len(first) + 1)).backward()
        (flat_loss(parallel, last, "mean") / (len(first) + 1)).backward()
        clip_grad_norm_(model.parameters(), CLIP)
        for p in model.parameters():
            smallest = min(smallest, float(p.grad[p.grad != 0].abs().min()))
        optimizer.step()
    return before, weights_of(model), smallest


def ours(late: bool, layouts: Sequence[Layout]) -> Weights:
    """The same training under an allow-all policy; ``layouts[i]`` from step i on."""
    model, optimizer = fresh(late)
    route = allow_all(model)
    for start, layout in enumerate(layouts):
        run = governed(
            model,
            optimizer,
            [route],
            clip_norm=CLIP,
            max_rows=MICRO_ROWS,
            layout=lambda parameters, layout=layout: layout,
            late=late,
        )
        stop = STEPS if start == len(layouts) - 1 else start + 1
        for step in range(start, stop):
            run.queue(step_batch(step, [micro_batch(route, rows_of(step))]), unreduced)
        assert (run.confirm() is not None) == late
    return weights_of(model)


def against_ddp(late: bool) -> dict[str, object]:
    """``late``: both with torch's fused AdamW, and steps that are confirmed one later."""
    before, stock, smallest = plain(late)
    layouts: list[Layout] = []
    plain(late, layouts)
    # DDP rebuilds its buckets once, after the first step, in the order of gradients.
    first, rebuilt, *later = layouts
    assert all(layout == rebuilt for layout in later)
    return {
        "before": before,
        "stock": stock,
        "ours": ours(late, [first, rebuilt]),
        "ours, one bucket": ours(late, [[list(chain.from_iterable(rebuilt))]]),
        "buckets": len(rebuilt),
        "smallest": smallest,
    }


def different(a: Weights, b: Weights) -> set[str]:
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("world", [2, 4])
def test_allow_all_is_stock_ddp_bit_for_bit(
    world: int, late: bool, request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
    results = pool.run(against_ddp, late)
    for result in results:
        assert different(result["ours"], result["stock"]) == set()
        assert different(result["stock"], result["before"]) == set(result["stock"])
        assert result["smallest"] > SMALLEST
        assert result["buckets"] > 1
    assert different(results[0]["ours"], results[-1]["ours"]) == set()
    if world > 2:
        # Why the buckets must be DDP's own: from three ranks on, they are part of the sum.
        assert different(results[0]["ours, one bucket"], results[0]["stock"])


def ragged_rows(step: int) -> dict[str, Tensor] | None:
    """From 0 to 4 rows, some with −100 targets, no two ranks alike."""
    count = (step * 3 + dist.get_rank() * 2) % 5
    if not count:
        return None
    rows = token_rows(count, CONTEXT, VOCABULARY, 2, step, dist.get_rank())
    rows["targets"][: count // 2, -(step % 5 + 1) :] = IGNORED
    return rows


def sum_then_divide() -> Weights:
    """The mathematics, spelled out with torch alone: one all-reduce for each tensor."""
    model, optimizer = fresh()
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = ragged_rows(step)
        count = torch.tensor(0 if rows is None else int((rows["targets"] != IGNORED).sum()))
        for piece in pieces(rows) if rows else []:
            flat_loss(model, piece, "sum").backward()
        dist.all_reduce(count)
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= count
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return weights_of(model)


def ragged_ours(violation: str | None) -> Weights:
    model, optimizer = fresh()
    route = allow_all(model)
    with pytest.MonkeyPatch.context() as patch:
        if violation is not None:
            VIOLATIONS[violation](patch)
        run = governed(
            model,
            optimizer,
            [route],
            clip_norm=CLIP,
            max_rows=MICRO_ROWS,
            layout=lambda parameters: [[name] for name in parameters],
        )
        for step in range(STEPS):
            rows = ragged_rows(step)
            run(step_batch(step, [micro_batch(route, rows)] if rows else []), unreduced)
    return weights_of(model)


@pytest.mark.parametrize("world", [2, 4])
def test_allow_all_is_sum_then_divide_for_any_counts(
    world: int, request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
    references = pool.run(sum_then_divide)
    for reference, weights in zip(references, pool.run(ragged_ours, None), strict=True):
        assert different(weights, reference) == set()


# How to lose it. Each replaces one small piece of the engine.


def mean_per_rank(patch: pytest.MonkeyPatch) -> None:
    """Divide on each rank by its own count, then average over ranks, as DDP would."""
    flat_gradient, divide = reducer_module.flat_gradient, step_module.divide
    counted = RoutedModel.targets
    own: dict[str, int] = {}

    def remember(self, micro_batches):
        own.update(counted(self, micro_batches))
        return dict(own)

    def by_world(domains, sums, counts):
        divide(domains, sums, {name: n and dist.get_world_size() for name, n in counts.items()})

    patch.setattr(RoutedModel, "targets", remember)
    patch.setattr(
        reducer_module,
        "flat_gradient",
        lambda domain, bucket, out: flat_gradient(domain, bucket) / max(*own.values(), 1),
    )
    patch.setattr(step_module, "divide", by_world)


def divide_before_summing(patch: pytest.MonkeyPatch) -> None:
    """Divide by N_l on each rank: the same in mathematics, not in bits."""
    send_ready, divide = Reducer._send_ready, step_module.divide

    def early(self):
        counts = self._counts()
        for place, (domain, bucket) in enumerate(self._buckets):
            if place >= self._next and not self._missing[place]:
                for name in bucket:
                    if domain.parameters[name].grad is not None:
                        domain.parameters[name].grad /= counts[name]
        send_ready(self)

    patch.setattr(Reducer, "_send_ready", early)
    patch.setattr(
        step_module,
        "divide",
        lambda domains, sums, counts: divide(
            domains, sums, {n: c and 1 for n, c in counts.items()}
        ),
    )


def no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gradient_clip, "clip_grads_with_norm_", lambda *arguments: None)


VIOLATIONS = {
    "mean per rank": mean_per_rank,
    "divide before summing": divide_before_summing,
    "no clip": no_clip,
}


def test_the_reference_sees_each_violation(two_ranks: RankPool) -> None:
    reference = two_ranks.run(sum_then_divide)[0]
    for violation in VIOLATIONS:
        assert different(two_ranks.run(ragged_ours, violation)[0], reference), violation
