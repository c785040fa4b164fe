"""``python -m benchmarks.step``: a governed step against plain DDP and hand-made routing.

Prints a table and, as its last line, one JSON object by case. docs/performance.md explains the
numbers. With ``--digests`` it times nothing, and prints the SHA-256 of each case's weights after
so many governed steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

import govray
from benchmarks.cases import ALL_CASES, CASES, Shape
from benchmarks.command import names, positive, run
from benchmarks.digests import weights_digests
from benchmarks.flops import gpt_operations
from benchmarks.intervals import Paired, paired_ratio
from benchmarks.machine import processor
from benchmarks.memory import measure_memory
from benchmarks.methods import METHODS
from benchmarks.methods.governed import SAMPLED_EVERY
from benchmarks.ranks import run_ranks
from benchmarks.rounds import Seconds, baseline_rounds
from benchmarks.timing import EVERY_ROUND, LEDGER, Setting, time_methods
from govray.errors import RankFailed, UsageError
from govray.train.watching.flops import flop_ratio

SHAPES = {
    "cpu": Shape(),
    "cuda": Shape(blocks=12, width=768, tokens=1024, rows=16, vocabulary=32768),
}
QUICK = Shape(blocks=2, width=32, tokens=16, rows=8, vocabulary=65)
_QUICK_PAIRS = 3


@dataclass(frozen=True)
class Row:
    """One method in one case; ratios are to plain DDP.

    Attributes:
        seconds: Median of a step.
        tokens_per_second: Loss targets of all ranks' rows, in that time.
        time: Of a step.
        memory: Peak live tensor bytes; None if not measured.
    """

    seconds: float
    tokens_per_second: float
    time: Paired
    memory: float | None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or a rank failed.
    """
    options = _options(argv)
    setting = Setting(options.shape, options.device, options.processes)
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
    report = {case: _rows(times, memory.get(case, {}), tokens) for case, times in seconds.items()}
    ratios = {case: analytic_ratio(setting, case) for case in report}
    print(_table(report, ratios))
    print(
        json.dumps(
            {case: _case(seconds[case], rows, ratios[case]) for case, rows in report.items()}
        )
    )


def analytic_ratio(setting: Setting, case: str) -> float:
    """F of the case, with the rows as split."""
    workload = setting.workload(case, 0)
    streams = [(count, workload.routes[p]) for p, count in workload.row_counts.items()]
    adapters = [route.adapter for _, route in streams if route.adapter]
    return flop_ratio(gpt_operations(setting.shape, adapters), streams)


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


def _rows(seconds: Seconds, memory: Mapping[str, float | None], tokens: int) -> dict[str, Row]:
    rows = {}
    for method, times in seconds.items():
        ratio = paired_ratio(times, seconds["ddp"])
        assert ratio is not None
        step = median(t for t in times if t is not None)
        rows[method] = Row(step, tokens / step, ratio, memory.get(method))
    return rows


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
        "methods": {
            name: {
                "seconds": row.seconds,
                "tokens_per_second": row.tokens_per_second,
                "vs_ddp": row.time.median,
                "vs_ddp_interval": list(row.time.interval),
                "pairs": row.time.pairs,
                "memory": row.memory,
            }
            for name, row in rows.items()
            if name != LEDGER
        },
    }


def accounting_share(seconds: Seconds) -> float | None:
    """What sampling gradient norms adds to an average step, as a share of the step."""
    sampled = seconds.get("governed_sampled")
    extra = paired_ratio(sampled, seconds["governed"]) if sampled else None
    return None if extra is None else (extra.median - 1.0) / SAMPLED_EVERY


def _table(report: Mapping[str, Mapping[str, Row]], ratios: Mapping[str, float]) -> str:
    head = f"{'case':<14}{'method':<26}{'step':>9}{'tokens/s':>11}{'÷ DDP':>8}  "
    lines = [head + f"{'95 % interval':<16}{'pairs':>5}{'memory':>9}{'FLOPs':>8}"]
    for case, rows in report.items():
        for name, row in rows.items():
            low, high = row.time.interval
            memory = "-" if row.memory is None else f"{row.memory:.3f}"
            flops = f"{ratios[case]:.3f}" if name == "governed" else ""
            tokens = "" if name == LEDGER else f"{row.tokens_per_second:,.0f}"
            lines.append(
                f"{case:<14}{name:<26}{row.seconds * 1e3:>6.0f} ms{tokens:>11}"
                f"{row.time.median:>8.3f}  "
                f"{f'{low:.3f} … {high:.3f}':<16}{row.time.pairs:>5}{memory:>9}{flops:>8}"
            )
    return "\n".join(lines)


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
    parser.add_argument(
        "--cases",
        type=names(ALL_CASES),
        help="comma-separated; on cuda all by default, else the first four",
    )
    parser.add_argument(
        "--methods",
        type=names(METHODS),
        default=[*METHODS],
        help="comma-separated; ddp and governed always run",
    )
    parser.add_argument("--pairs", type=positive, help="rounds; 30 by default")
    parser.add_argument("--processes", type=positive, help="2 by default, on cuda 1")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and 3 rounds")
    parser.add_argument(
        "--digests", action="store_true", help="of the weights, after --pairs steps"
    )
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    for size in ("blocks", "width", "tokens", "rows", "vocabulary"):
        parser.add_argument(f"--{size}", type=positive)
    options = parser.parse_args(argv)

    sizes = {s: getattr(options, s) for s in ("blocks", "width", "tokens", "rows", "vocabulary")}
    base = QUICK if options.quick else SHAPES[options.device]
    options.shape = replace(base, **{name: size for name, size in sizes.items() if size})
    options.cases = options.cases or [*(ALL_CASES if options.device == "cuda" else CASES)]
    options.pairs = options.pairs or (_QUICK_PAIRS if options.quick else 30)
    options.processes = options.processes or (1 if options.device == "cuda" else 2)
    options.methods = [m for m in METHODS if m in options.methods or m in EVERY_ROUND]
    if options.device == "cuda" and torch.cuda.device_count() < options.processes:
        raise UsageError(
            f"{torch.cuda.device_count()} GPUs for {options.processes} processes",
            where="--device cuda",
            do="Run on a machine with a GPU for each process",
        )
    if options.shape.blocks < 2:
        raise UsageError("one block has no upper half", where="--blocks", do="Give at least 2")
    return options


if __name__ == "__main__":
    sys.exit(run(main))
