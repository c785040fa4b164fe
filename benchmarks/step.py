"""``python -m benchmarks.step``: a governed step against plain DDP and hand-made routing.

All methods are built side by side from equal weights. In every round each does one step with the
same rows, in an order that rotates. A step is timed from a barrier to its end on the slowest rank.

Prints a table and, as its last line, one JSON object by case:

``vs_ddp``            median over the rounds of a method's seconds by plain DDP's in the same round
``vs_ddp_interval``   its 95 % bootstrap interval; it knows nothing of other machines
``ratio``             work by count, relative to plain training (`benchmarks.flops`)
``memory``            peak live tensor bytes by plain DDP's, in processes of their own
``vs_detach_where``   as ``vs_ddp``, by routing with masks in the forward pass

With ``--digests`` it times nothing, and prints the SHA-256 of each case's weights after
so many governed steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import govray
from benchmarks.cases import ALL_CASES
from benchmarks.command import positive, run
from benchmarks.digests import weights_digests
from benchmarks.flops import case_ratio
from benchmarks.intervals import paired_ratio
from benchmarks.machine import processor
from benchmarks.memory import measure_memory
from benchmarks.methods import METHODS
from benchmarks.methods.governed import SAMPLED_EVERY
from benchmarks.ranks import run_ranks
from benchmarks.rounds import LEDGER, WARM_UP, Seconds, baseline_rounds
from benchmarks.step_options import add_step_options, settle_step_options
from benchmarks.step_table import Row, by_method, rows_of, table
from benchmarks.timing import EVERY_ROUND, Setting, time_methods
from govray.errors import RankFailed, UsageError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or a rank failed.
    """
    options = _options(argv)
    setting = Setting(options.shape, options.device, options.processes, options.warm_up)
    for case in options.cases:
        _ = setting.workload(case, 0).row_counts  # too few rows: say so before any process starts
    print(_environment(setting, options.pairs), flush=True)
    if options.digests:
        print(json.dumps(_digests(setting, options.cases, options.pairs)))
        return
    seconds = run_ranks(
        time_methods,
        setting.world_size,
        setting.device,
        setting,
        options.cases,
        options.methods,
        options.pairs,
    )[0]
    memory = _memory(setting, options.cases, options.methods) if options.memory else {}
    tokens = setting.shape.tokens * setting.shape.rows * setting.world_size
    report = {
        case: rows_of(times, memory.get(case, {}), tokens, "ddp") for case, times in seconds.items()
    }
    ratios = {case: analytic_ratio(setting, case) for case in report}
    print(table(report, ratios, "DDP"))
    print(
        json.dumps(
            {case: _case(seconds[case], rows, ratios[case]) for case, rows in report.items()}
        )
    )


def analytic_ratio(setting: Setting, case: str) -> float:
    """F of the case, with the rows as split."""
    workload = setting.workload(case, 0)
    return case_ratio(setting.shape, workload.row_counts, workload.routes)


def _digests(setting: Setting, cases: Sequence[str], steps: int) -> dict[str, str]:
    """Case → SHA-256 of the weights, which all ranks hold alike."""
    first, *others = run_ranks(
        weights_digests, setting.world_size, setting.device, setting, cases, steps
    )
    if any(other != first for other in others):
        raise RankFailed("ranks hold different weights", where="--digests")
    return dict(first)


def _memory(
    setting: Setting, cases: Sequence[str], methods: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Case → method → peak bytes relative to plain DDP's. Each method has its own processes."""
    peaks: dict[str, dict[str, int | None]] = {}
    for method in methods:
        print(f"memory of {method}", file=sys.stderr, flush=True)
        # Plain DDP does the same whatever the policy.
        asked = list(cases)[:1] if method == "ddp" else list(cases)
        peaks[method] = run_ranks(
            measure_memory, setting.world_size, setting.device, setting, asked, method
        )[0]
    (plain,) = peaks["ddp"].values()
    assert plain
    return {
        case: {
            method: 1.0 if method == "ddp" else peak and peak / plain
            for method in methods
            for peak in [peaks[method].get(case)]
        }
        for case in cases
    }


def _case(seconds: Seconds, rows: Mapping[str, Row], ratio: float) -> dict[str, Any]:
    """One case of the last line.

    The governed step's time is that of steps without a sample of gradient norms, plus a fiftieth of
    a sample's cost.
    """
    governed = rows["governed"]
    accounting = accounting_share(seconds)
    amortised = 1.0 + (accounting or 0.0)
    masked = seconds.get("detach_and_where")
    where = paired_ratio(seconds["governed"], masked) if masked else None
    return {
        "vs_ddp": governed.time.median * amortised,
        "vs_ddp_interval": [bound * amortised for bound in governed.time.interval],
        "ratio": ratio,
        "memory": governed.memory,
        "accounting": accounting,
        "ledger": rows[LEDGER].seconds / governed.seconds,
        "vs_detach_where": where and where.median * amortised,
        "vs_detach_where_interval": where and [bound * amortised for bound in where.interval],
        "pairs": governed.time.pairs,
        "methods": by_method(rows, "vs_ddp"),
    }


def accounting_share(seconds: Seconds) -> float | None:
    """What sampling gradient norms adds to an average step, as a share of the step."""
    sampled = seconds.get("governed_sampled")
    extra = paired_ratio(sampled, seconds["governed"]) if sampled else None
    return None if extra is None else (extra.median - 1.0) / SAMPLED_EVERY


def _environment(setting: Setting, pairs: int) -> str:
    gpu = f", {torch.cuda.get_device_name()}" if setting.device == "cuda" else ""
    kind = "nccl, bfloat16" if setting.device == "cuda" else "gloo, one thread each"
    return (
        f"{processor()}{gpu}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"govray {govray.__version__}\n"
        f"{setting.shape}; {setting.world_size} processes on {kind}; {pairs} pairs, "
        f"{baseline_rounds(pairs)} of each baseline"
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    add_step_options(parser, ALL_CASES, METHODS)
    parser.add_argument(
        "--digests", action="store_true", help="of the weights, after --pairs steps"
    )
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=WARM_UP,
        help=f"steps of each method before the first round; {WARM_UP} by default",
    )
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    options = parser.parse_args(argv)
    settle_step_options(options, ALL_CASES, METHODS, EVERY_ROUND)
    if options.device == "cuda" and torch.cuda.device_count() < options.processes:
        raise UsageError(
            f"{torch.cuda.device_count()} GPUs for {options.processes} processes",
            where="--device cuda",
            do="Run on a machine with a GPU for each process",
        )
    return options


if __name__ == "__main__":
    sys.exit(run(main))
