"""``python -m benchmarks.step_parts``: which part of a governed step takes longer than its FLOPs.

One process without others, one thread. A governed step and a plain one take turns with the rows of
rank 0, as in ``benchmarks.step``. CPU seconds of this process are taken apart: forward and backward
of each pass, what follows the last backward, the optimizer, and the rest. What a pass is expected
to take is what plain training takes for as many rows, times the FLOP ratio of its route. Prints a
table and, as its last line, one JSON object.

Communication is not in it: there are no other ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.batch import Batch
from benchmarks.cases import CASES, Shape
from benchmarks.command import positive, run
from benchmarks.flops import gpt_operations
from benchmarks.methods.governed import Governed
from benchmarks.methods.method import Method
from benchmarks.workload import Workload
from govray.engine.batch import MicroBatch
from govray.engine.collective.accumulation import Accumulation
from govray.engine.collective.exchange import Exchange
from govray.engine.gradients.forward import LossFn, PartLoss
from govray.engine.gradients.pass_planner import Pass
from govray.train.watching.flops import flop_ratio

_WARM_UP = 2
_RANKS = 2
_AFTER, _OPTIMIZER, _REST = "sum, divide, norms", "optimizer", "rest"


class Clock:
    """CPU seconds of one step, by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = 0.0
        self._backward = ""

    def begin(self) -> None:
        """Of a step."""
        self.seconds = {}
        self._last = time.process_time()

    def end(self, part: str) -> None:
        """What ran since the last call was of this part."""
        now = time.process_time()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def forward_begins(self) -> None:
        """The pass before it, if any, is done."""
        self.end(self._backward or _REST)

    def forward_ends(self, rows: str) -> None:
        """Backward of these rows begins."""
        self.end(f"{rows}: forward")
        self._backward = f"{rows}: backward"

    def backward_ends(self) -> None:
        """There is no further pass."""
        self.end(self._backward)
        self._backward = ""

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Tell apart what an optimizer does."""
        optimizer.register_step_pre_hook(lambda *_: self.end(_AFTER))
        optimizer.register_step_post_hook(lambda *_: self.end(_OPTIMIZER))


class Plain(Method):
    """Plain training without other ranks."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.clock = Clock()
        self._model = workload.build_model()
        self.optimize(dict(self._model.named_parameters()))
        self.clock.watch(self.optimizer)

    def step(self, batch: Batch) -> None:
        """All rows into all parameters."""
        self.clock.begin()
        tensors = {"tokens": batch.tokens, "targets": batch.targets}
        losses = self.workload.losses(self._model, tensors)
        self.clock.forward_ends("all")
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self.clock.backward_ends()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.end(_REST)


class WatchedGoverned(Governed):
    """The governed step of the benchmark, taken apart."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.clock = Clock()
        self.clock.watch(self.optimizer)
        self._step.accumulation = _watched(self._step.accumulation, self.clock)

    def step(self, batch: Batch) -> None:
        """One governed step, without its ledger leaf."""
        names = {batch.rows(name)["tokens"].data_ptr(): name for name in batch.positions}

        def losses(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
            self.clock.forward_begins()
            found = self.workload.losses(model, tensors)
            self.clock.forward_ends(names.get(tensors["tokens"].data_ptr(), "several"))
            return found

        step_batch = self._step_batch(batch)
        self.clock.begin()
        self._step(step_batch, losses)
        self.clock.end(_REST)
        self._done += 1


def _watched(inner: Accumulation, clock: Clock) -> Accumulation:
    class Watched(Accumulation):
        def __call__(
            self,
            rows: Sequence[MicroBatch],
            planned: Sequence[Pass],
            exchange: Exchange,
            loss_fn: LossFn,
        ) -> tuple[list[Pass], list[PartLoss]]:
            done = super().__call__(rows, planned, exchange, loss_fn)
            clock.backward_ends()
            return done

    return Watched(**{field.name: getattr(inner, field.name) for field in fields(inner)})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_parts", description=__doc__)
    parser.add_argument("--case", choices=[*CASES], default="mix_50_30_20")
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--quick", action="store_true", help="a tiny shape")
    options = parser.parse_args(argv)
    shape = Shape(blocks=2, width=32, tokens=128, rows=8) if options.quick else Shape()
    torch.set_num_threads(1)
    workload = Workload(options.case, shape, 0, _RANKS)
    plain, governed = Plain(workload), WatchedGoverned(workload)
    taken: dict[str, list[dict[str, float]]] = {"plain": [], "governed": []}
    for step in range(_WARM_UP + options.steps):
        for name, method in (("plain", plain), ("governed", governed)):
            method.step(workload.batch(step))
            if step >= _WARM_UP:
                taken[name].append(method.clock.seconds)
    times = {name: _medians(steps) for name, steps in taken.items()}
    expected = _expected(workload, times["plain"])
    print(f"{shape}; {options.case}, rank 0; torch {torch.__version__}, one thread")
    print(f"{'part':<34}{'CPU ms':>9}{'expected':>10}{'more':>8}")
    for part, seconds in times["governed"].items():
        due = expected.get(part, 0.0)
        row = "".join(f"{1e3 * each:>9.1f}" for each in (seconds, due, seconds - due))
        print(f"{part:<34}{row}")
    print(json.dumps({**times, "expected": expected}))


def _medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: median(step[part] for step in steps) for part in steps[0]}


def _expected(workload: Workload, plain: Mapping[str, float]) -> dict[str, float]:
    """Part → seconds that its FLOPs explain."""
    operations = gpt_operations(workload.shape, workload.adapters)
    a_row = (plain["all: forward"] + plain["all: backward"]) / workload.shape.rows
    spans = workload.batch(0).spans
    counts = {name: span.stop - span.start for name, span in spans.items()}
    expected: dict[str, float] = {}
    for name, count in counts.items():
        route = workload.routes[name]
        both = a_row * count * flop_ratio(operations, [(count, route)])
        forward = plain["all: forward"] * count / workload.shape.rows
        expected |= {f"{name}: forward": forward, f"{name}: backward": both - forward}
    streams = [(count, workload.routes[name]) for name, count in counts.items()]
    expected[_OPTIMIZER] = plain[_OPTIMIZER] * flop_ratio(operations, streams)
    return expected


if __name__ == "__main__":
    sys.exit(run(main))
