"""``python -m benchmarks.sharded_commit``: copy a sharded model for a commit, by two methods.

Two processes share a GPT by FSDP2, with AdamW. ``gathered`` makes every tensor whole on all ranks,
one after another, and keeps it on rank 0. ``sharded`` is what a run does: each rank copies its own
rows. The two take turns. One figure is the seconds that the training loop waits for the slower
rank's copy. The other is rank 0's peak of tensor bytes while it copies, model and optimizer
included. Writing the files is not measured. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.cases import SEED, Shape
from benchmarks.command import positive, run
from benchmarks.intervals import paired_ratio
from benchmarks.memory import peak_bytes
from benchmarks.ranks import run_ranks
from govray.engine.model import gpt
from govray.train.checkpoint.optimizer_state import optimizer_state
from govray.train.checkpoint.tensor_shards import held_here, shard, whole

SHAPE = Shape(blocks=8, width=512, tokens=64, rows=2)
QUICK = Shape(blocks=2, width=32, tokens=16, rows=2)
_PROCESSES = 2
_WARM_UP = 2

Live = dict[str, Tensor]


@dataclass(frozen=True)
class Measured:
    """One rank's figures, by method.

    Attributes:
        seconds: Of each round, until the slowest rank had its copy.
        peak: Peak bytes of tensors.
        state: Bytes of the rank's model and optimizer.
    """

    seconds: dict[str, list[float]]
    peak: dict[str, int]
    state: int


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: A rank failed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sharded_commit", description=__doc__
    )
    parser.add_argument("--pairs", type=positive, help="rounds; 20 by default")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and 3 rounds")
    options = parser.parse_args(argv)
    shape = QUICK if options.quick else SHAPE
    pairs = options.pairs or (3 if options.quick else 20)
    print(f"torch {torch.__version__}; {shape}; {_PROCESSES} processes on gloo; {pairs} pairs")
    ranks = run_ranks(measure, _PROCESSES, "cpu", shape, pairs)
    report = _report(ranks[0])
    print(_table(report))
    print(json.dumps(report))


def measure(rank: int, shape: Shape, pairs: int) -> Measured:
    """Both methods in turn; run it on every rank."""
    live, state = _trained(shape)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for number in range(_WARM_UP + pairs):
        for name in sorted(METHODS, reverse=bool(number % 2)):
            dist.barrier()
            began = time.perf_counter()
            METHODS[name](live)
            slowest = torch.tensor(time.perf_counter() - began)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number >= _WARM_UP:
                seconds[name].append(float(slowest))
    peak = {name: _peak(shape, method) for name, method in METHODS.items()}
    return Measured(seconds, peak, state)


def gathered(live: Live) -> Live:
    """Every tensor whole, one after another; rank 0 keeps copies."""
    kept: Live = {}
    for name in sorted(live):  # one order on all ranks
        tensor = whole(live[name])
        if dist.get_rank() == 0:
            kept[name] = tensor.to("cpu", copy=True)
    return kept


def sharded(live: Live) -> Live:
    """Each rank's own rows."""
    return held_here(live)[0]


METHODS: dict[str, Callable[[Live], Live]] = {"gathered": gathered, "sharded": sharded}


def _trained(shape: Shape) -> tuple[Live, int]:
    """All tensors of a sharded model and its optimizer after one step, and this rank's bytes."""
    torch.manual_seed(SEED)
    model = gpt.GPT(
        blocks=shape.blocks, width=shape.width, context=shape.tokens, vocabulary=shape.vocabulary
    )
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, shape.vocabulary, (shape.rows, shape.tokens + 1))
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    gpt.loss(model, batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    moments, _ = optimizer_state(optimizer, {p: name for name, p in model.named_parameters()})
    live: Live = dict(model.named_parameters()) | moments
    return live, sum(tensor.nbytes for tensor in held_here(live)[0].values())


def _peak(shape: Shape, method: Callable[[Live], Live]) -> int:
    def prepare() -> Callable[[], object]:
        live, _ = _trained(shape)
        return lambda: method(live)

    return peak_bytes(prepare, torch.device("cpu"))


def _report(rank_0: Measured) -> dict[str, Any]:
    times = rank_0.seconds
    ratio = paired_ratio(times["sharded"], times["gathered"])
    assert ratio is not None
    return {
        "state_bytes": rank_0.state,
        "methods": {
            name: {"seconds": median(times[name]), "peak_bytes": rank_0.peak[name]}
            for name in METHODS
        },
        "vs_gathered": ratio.median,
        "interval": list(ratio.interval),
    }


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'method':<10} {'copy, ms':>10} {'peak of rank 0, MB':>20}"]
    for name, row in report["methods"].items():
        lines.append(f"{name:<10} {row['seconds'] * 1e3:>10.2f} {row['peak_bytes'] / 1e6:>20.2f}")
    low, high = report["interval"]
    lines.append(
        f"sharded / gathered {report['vs_gathered']:.3f}, 95 % interval {low:.3f} … {high:.3f}; "
        f"rank 0 holds {report['state_bytes'] / 1e6:.2f} MB of model and optimizer"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
