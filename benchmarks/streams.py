"""``python -m benchmarks.streams``: what hundreds of adapters cost a step that trains few of them.

Equal models with 0, 10, 100 and 300 adapters do the same steps in turn, on two processes. ``idle``
trains none of the adapters. ``due`` trains one of them, by one row on one rank. A due adapter costs
a pass of its own, whatever their number. The cost of idle adapters is the ratio between steps of
equal rows. Prints a table and, as its last line, one JSON object by number of adapters.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import ADAPTER_RANK, SEED, Shape
from benchmarks.command import run
from benchmarks.intervals import paired_ratio
from benchmarks.ranks import run_ranks
from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.model import gpt
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.governance.formats.canonical_json import sha256
from govray.governance.policy.route import Route

SHAPE = Shape(blocks=4, width=128, tokens=256, rows=8)
QUICK = Shape(blocks=2, width=32, tokens=16, rows=2)
_WARM_UP = 2
_TRUNK = "trunk"
_PROCESSES = 2


Seconds = dict[str, list[float]]
"""Kind of step → seconds by round, of the slowest rank."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--adapters", type=int, nargs="+", default=[10, 100, 300])
    parser.add_argument("--pairs", type=int, help="rounds; 20 by default")
    parser.add_argument("--rows", type=int, help="of a rank; 8 by default")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and 2 rounds")
    options = parser.parse_args(argv)
    shape = QUICK if options.quick else SHAPE
    shape = replace(shape, rows=options.rows or shape.rows)
    pairs = options.pairs or (2 if options.quick else 20)
    counts = [0, *sorted(set(options.adapters) - {0})]
    print(f"{shape}; {_PROCESSES} processes on gloo, one thread each; {pairs} pairs", flush=True)
    found = run_ranks(measure, _PROCESSES, "cpu", shape, counts, pairs)[0]
    report = {count: _row(found[count], found[0]) for count in counts}
    print(_table(report))
    print(json.dumps(report))


def measure(rank: int, shape: Shape, counts: Sequence[int], pairs: int) -> dict[int, Seconds]:
    """Number of adapters → times; run it on every rank."""
    _Case(rank, shape, 0)  # one-time costs
    made = {count: _Case(rank, shape, count) for count in counts}
    for number in range(_WARM_UP + pairs):
        first = number % len(counts)
        for count in [*counts[first:], *counts[:first]]:
            made[count].round(number, timed=number >= _WARM_UP)
    return {count: case.seconds for count, case in made.items()}


class _Case:
    """A governed step over a trunk and some adapters."""

    def __init__(self, rank: int, shape: Shape, adapters: int) -> None:
        self._rank, self._shape = rank, shape
        torch.manual_seed(SEED)
        model = gpt.GPT(shape.blocks, shape.width, shape.tokens, shape.vocabulary)
        groups = layer_groups(model)
        names = [f"customer-{number:03d}" for number in range(adapters)]
        self._trunk = Route(dict.fromkeys(groups, 1.0))
        self._routes = [Route({}, name, ADAPTER_RANK) for name in names]
        beside = Adapters(model, dict.fromkeys(names, ADAPTER_RANK), seed=SEED)
        tensors = dict(beside.named_parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        for members in beside.groups.values():
            optimizer.add_param_group({"params": [tensors[name] for name in members]})
        self._step = build_step(
            model,
            optimizer,
            groups=groups,
            routes={route.digest: route for route in (self._trunk, *self._routes)},
            adapters=beside,
            terms=Terms(
                policy_digest=sha256(b"benchmark policy"),
                plan_digest=sha256(b"benchmark plan"),
                corpora=(_TRUNK, *names),
            ),
            settings=StepSettings(seed=SEED, norms_every=10**9),
        )
        self.seconds: Seconds = {"idle": [], "due": []}

    def round(self, number: int, *, timed: bool) -> None:
        """One step of each kind."""
        for kind in ("idle", "due") if self._routes else ("idle",):
            batch = self._batch(1 + 2 * number + (kind == "due"), due=kind == "due")
            dist.barrier()
            began = time.perf_counter()
            self._step(batch, gpt.loss)
            slowest = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if timed:
                self.seconds[kind].append(float(slowest))

    def _batch(self, step: int, *, due: bool) -> StepBatch:
        parts = [self._rows(step, self._trunk, self._shape.rows)]
        corpora = {_TRUNK: (self._shape.rows, self._shape.rows * self._shape.tokens)}
        if due and self._rank == 0:
            # Always the same adapter: its optimizer state exists after the warm-up.
            parts.append(self._rows(step, self._routes[0], 1))
            corpora["customer-000"] = (1, self._shape.tokens)
        return StepBatch(step, tuple(parts), corpora)

    def _rows(self, step: int, route: Route, rows: int) -> MicroBatch:
        shape = self._shape
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randint(shape.vocabulary, (rows, shape.tokens + 1), generator=generator)
        return MicroBatch(
            stream=route.digest,
            tensors={"tokens": drawn[:, :-1], "targets": drawn[:, 1:]},
            positions=tuple(range(rows)),
            row_targets=(shape.tokens,) * rows,
        )


def _row(seconds: Seconds, none: Seconds) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for kind, own in seconds.items():
        if own:
            ratio = paired_ratio(own, none["idle"])
            assert ratio is not None
            row[kind] = {
                "seconds": median(own),
                "vs_none": ratio.median,
                "vs_none_interval": list(ratio.interval),
            }
    return row


def _table(report: Mapping[int, Mapping[str, Any]]) -> str:
    lines = [f"{'adapters':>8}{'kind':>6}{'step':>10}{'÷ none':>9}  95 % interval"]
    for count, row in report.items():
        for kind, found in row.items():
            low, high = found["vs_none_interval"]
            lines.append(
                f"{count:>8}{kind:>6}{found['seconds'] * 1e3:>7.1f} ms{found['vs_none']:>9.3f}  "
                f"{low:.3f} … {high:.3f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
