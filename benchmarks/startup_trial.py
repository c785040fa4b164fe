"""``python -m benchmarks.startup_trial``: what the start-up trial costs.

One process trains three streams, as in the case ``mix_50_30_20``. The trial is timed in the first
step, and compared with 250 times the median of the steps after it. Seconds are CPU time over all
threads, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from unittest.mock import patch

import torch

from benchmarks.cases import Shape
from benchmarks.methods.governed import Governed
from benchmarks.workload import Workload
from govray.engine.startup.row_trial import StartupTrial
from govray.engine.startup.weight_watch import WeightWatch

RUN = 250
"""The cost is a share of a run of this many steps: the demo's."""

SHAPES: Mapping[str, Shape] = {
    "demo": Shape(blocks=4, width=96, tokens=255, rows=16, vocabulary=1024),
    "25M": Shape(blocks=8, width=512, tokens=128, rows=16, vocabulary=257),
}


def cost(shape: Shape, steps: int) -> dict[str, float]:
    """Parameters, seconds of the trial and of a step, and the share of ``RUN`` steps."""
    workload = Workload("mix_50_30_20", shape, rank=0, world_size=1)
    method = Governed(workload)
    spent = [0.0]

    def timed(trial: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **named: object) -> object:
            began = time.process_time()
            try:
                return trial(*arguments, **named)
            finally:
                spent[-1] += time.process_time() - began

        return run

    seconds = []
    with ExitStack() as patches:
        for kind, trial in ((StartupTrial, "__call__"), (WeightWatch, "try_optimizer")):
            patches.enter_context(patch.object(kind, trial, timed(getattr(kind, trial))))
        for step in range(steps + 1):
            began = time.process_time()
            method.step(workload.batch(step))
            seconds.append(time.process_time() - began)
            spent.append(0.0)
    typical = statistics.median(seconds[1:])
    parameters = sum(p.numel() for group in method.optimizer.param_groups for p in group["params"])
    return {
        "parameters": parameters,
        "trial": round(spent[0], 3),
        "step": round(typical, 3),
        "later": round(statistics.median(spent[1:-1]), 6),
        "share": round(spent[0] / (RUN * typical), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each shape, and one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup_trial")
    parser.add_argument("--steps", type=int, default=5, help="steps after the first")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    chosen = parser.parse_args(arguments)
    found = {}
    for name in chosen.shapes:
        found[name] = cost(SHAPES[name], chosen.steps)
        print(
            f"{name}: {found[name]['parameters'] / 1e6:.1f} M parameters, trial "
            f"{found[name]['trial']:.2f} s, step {found[name]['step']:.2f} s, "
            f"{found[name]['share']:.2%} of {RUN} steps"
        )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
