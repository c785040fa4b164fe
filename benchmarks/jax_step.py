"""``python -m benchmarks.jax_step``: a governed step over JAX against plain data-parallel JAX.

Prints a table and, as its last line, one JSON object by case. ``vs_fused`` is the median of paired
ratios to one program of loss, gradient, sum and AdamW. ``ratio`` is the work by count
(`benchmarks.flops`). Neither torch nor Ray is imported.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import govray
from benchmarks.cases import CASES
from benchmarks.command import run
from benchmarks.flops import case_ratio
from benchmarks.jax_methods import METHODS
from benchmarks.jax_ranks import run_jax_ranks
from benchmarks.jax_timing import EVERY_ROUND, time_methods
from benchmarks.jax_workload import JaxWorkload
from benchmarks.machine import processor
from benchmarks.rounds import LEDGER, baseline_rounds
from benchmarks.step_options import add_step_options, settle_step_options
from benchmarks.step_table import Row, by_method, rows_of, table
from govray.errors import UsageError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or a rank failed.
    """
    jax.config.update("jax_platforms", "cpu")  # GPUs are for the ranks
    options = _options(argv)
    shape, world_size = options.shape, options.processes
    ratios = {case: _ratio(JaxWorkload(case, shape, 0, world_size)) for case in options.cases}
    print(_environment(options), flush=True)
    seconds = run_jax_ranks(
        time_methods,
        world_size,
        options.device,
        world_size,
        shape,
        options.cases,
        options.methods,
        options.pairs,
    )[0]
    tokens = shape.tokens * shape.rows * world_size
    report = {case: rows_of(times, {}, tokens, "fused") for case, times in seconds.items()}
    print(table(report, ratios, "fused"))
    print(json.dumps({case: _case(rows, ratios[case]) for case, rows in report.items()}))


def _ratio(workload: JaxWorkload) -> float:
    """F of a case. Too few rows are refused here, before any process starts."""
    return case_ratio(workload.shape, workload.counts(0), workload.routes)


def _case(rows: Mapping[str, Row], ratio: float) -> dict[str, Any]:
    """One case of the last line."""
    governed = rows["governed"]
    return {
        "vs_fused": governed.time.median,
        "vs_fused_interval": list(governed.time.interval),
        "ratio": ratio,
        "ledger": rows[LEDGER].seconds / governed.seconds,
        "pairs": governed.time.pairs,
        "methods": by_method(rows, "vs_fused"),
    }


def _environment(options: argparse.Namespace) -> str:
    kind = "NCCL" if options.device == "cuda" else "gloo, one thread each"
    return (
        f"{', '.join([processor(), *options.gpus[:1]])}; Python {platform.python_version()}, "
        f"jax {jax.__version__}, govray {govray.__version__}\n"
        f"{options.shape}; {options.processes} processes on {kind}; {options.pairs} pairs, "
        f"{baseline_rounds(options.pairs)} of each baseline"
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jax_step", description=__doc__)
    add_step_options(parser, CASES, METHODS)
    options = parser.parse_args(argv)
    settle_step_options(options, CASES, METHODS, EVERY_ROUND)
    options.gpus = run_jax_ranks(_gpus, 1, "cuda")[0] if options.device == "cuda" else []
    if options.device == "cuda" and len(options.gpus) < options.processes:
        raise UsageError(
            f"{len(options.gpus)} GPUs for {options.processes} processes",
            where="--device cuda",
            do="Run on a machine with a GPU for each process, with JAX's extra for it",
        )
    return options


def _gpus(rank: int) -> list[str]:
    """What the GPUs are, asked in a process that then lets go of them."""
    try:
        return [device.device_kind for device in jax.devices()]
    except (RuntimeError, AssertionError):  # without the extra it asserts that there is one
        return []


if __name__ == "__main__":
    sys.exit(run(main))
