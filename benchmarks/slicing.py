"""``python -m benchmarks.slicing``: sliced passes against a pass for each stream.

Several route streams share a step of the built-in GPT. Each may update two neighbouring blocks and
the head. The same rows go through two equal models in turn. One model slices, the other routes each
stream by itself. CPU seconds of this process are compared, so other processes matter less. Prints a
table and, as its last line, one JSON object by number of streams.

`govray.engine.gradients.pass_planner.WRITE_TOKENS` was chosen after looking at this.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.cases import SEED, Shape
from benchmarks.command import run
from benchmarks.intervals import paired_ratio
from benchmarks.methods.governed import always_slicing
from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.model import gpt
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.governance.formats.canonical_json import sha256
from govray.governance.policy.route import Route

_WARM_UP = 2
_CORPUS = "rows"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slicing", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[3, 5, 8])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="a tiny shape")
    options = parser.parse_args(argv)
    shape = Shape(blocks=8, width=32, tokens=16, rows=16) if options.quick else Shape()
    torch.set_num_threads(1)
    print(f"{shape}; torch {torch.__version__}, one thread; {options.pairs} pairs")
    report = {}
    for count in options.streams:
        ratio = paired_ratio(*_seconds(shape, count, options.pairs))
        assert ratio is not None
        low, high = ratio.interval
        print(f"{count} streams   sliced ÷ alone {ratio.median:.3f}   {low:.3f} … {high:.3f}")
        report[count] = {"sliced_vs_alone": ratio.median, "interval": [low, high]}
    print(json.dumps(report))


def _seconds(shape: Shape, count: int, pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of each round's sliced step, and of the step stream by stream."""
    with always_slicing():
        sliced = _stepper(shape, count)
        alone = _stepper(shape, count, sliced=False)
        times: tuple[list[float], list[float]] = ([], [])
        for step in range(_WARM_UP + pairs):
            for one, seconds in zip((sliced, alone), times, strict=True):
                began = time.process_time()
                one(step)
                if step >= _WARM_UP:
                    seconds.append(time.process_time() - began)
    return times


def _stepper(shape: Shape, count: int, *, sliced: bool = True) -> Callable[[int], None]:
    torch.manual_seed(SEED)
    model = gpt.GPT(shape.blocks, shape.width, shape.tokens, shape.vocabulary)
    groups = layer_groups(model)
    routes = [
        Route(dict.fromkeys((f"block.{i % (shape.blocks - 1)}", *_above(i, shape.blocks)), 1.0))
        for i in range(count)
    ]
    governed = build_step(
        model,
        torch.optim.AdamW(model.parameters()),
        groups=groups,
        routes={route.digest: route for route in routes},
        terms=Terms(
            policy_digest=sha256(b"benchmark policy"),
            plan_digest=sha256(b"benchmark plan"),
            corpora=(_CORPUS,),
        ),
        settings=StepSettings(seed=SEED, clip_norm=None),
    )
    if not sliced:
        governed.accumulation.planner.unsliced = "chosen by the benchmark"

    def step(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        drawn = torch.randint(shape.vocabulary, (shape.rows, shape.tokens + 1), generator=generator)
        parts = []
        for index, rows in enumerate(torch.arange(shape.rows).tensor_split(count)):
            own = drawn[rows]
            parts.append(
                MicroBatch(
                    stream=routes[index].digest,
                    tensors={"tokens": own[:, :-1], "targets": own[:, 1:]},
                    positions=tuple(range(len(rows))),
                    row_targets=(shape.tokens,) * len(rows),
                )
            )
        corpora = {_CORPUS: (shape.rows, shape.rows * shape.tokens)}
        governed(StepBatch(number, tuple(parts), corpora), gpt.loss)

    return step


def _above(index: int, blocks: int) -> tuple[str, ...]:
    return (f"block.{index % (blocks - 1) + 1}", "head")


if __name__ == "__main__":
    sys.exit(run(main))
