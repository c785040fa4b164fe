"""``python -m benchmarks.sizes``: what a long run costs, by its size.

Two ledgers take a leaf by turns: one early, one resumed at a late step. Then made-up models are
attested, verified and traced, and corpora are built and prepared, each in a process of its own.

Prints a table and, as its last line, one JSON object. ``append_ratio`` is late to early, paired;
the target is at most 1.2. By rows and phase there are ``seconds``, ``peak_gib`` of the largest
process, and ``us_each`` of a row or a record. ``by_family`` prepares with a reserve by family.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from benchmarks.command import positive, run
from benchmarks.intervals import paired_ratio
from benchmarks.ledger_appends import EARLY, timed_appends
from benchmarks.machine import versions
from benchmarks.process_tree import Cost, in_own_process
from benchmarks.sized_model import (
    attest,
    plan_all,
    prepare,
    trace_one,
    verify_full,
    verify_sample,
    verify_summary,
)

_STEP, _APPENDS = 1_000_000, 2000
_QUICK_STEP, _QUICK_APPENDS = 20_000, 200
_RECORD_BYTES = 200
_PHASES = {
    "plan": plan_all,
    "attest": attest,
    "summary": verify_summary,
    "sample": verify_sample,
    "full": verify_full,
    "trace": trace_one,
}
_SIZES, _QUICK_SIZES = [100_000, 1_000_000, 10_000_000], [1000]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(argv)
    print(_environment(options), flush=True)
    with tempfile.TemporaryDirectory(prefix="govray-sizes-") as scratch:
        early, late = timed_appends(Path(scratch), options.step, options.appends)
        phases = _phases(Path(scratch), options.sizes, options.runs)
        corpora = {} if options.no_corpora else _corpora(Path(scratch) / "corpora", options.sizes)
    ratio = paired_ratio(late, early)
    assert ratio is not None
    low, high = ratio.interval
    print(f"{'write-ahead append':<24}{'µs':>8}")
    for step, times in ((EARLY, early), (options.step, late)):
        print(f"{f'at step {step:,}':<24}{median(times) * 1e6:>8.1f}")
    print(f"{'ratio':<24}{ratio.median:>8.3f}  {low:.3f} … {high:.3f}")
    for size, costs in corpora.items():
        phases[size] |= costs
    print(f"{'size':<10}{'phase':<10}{'seconds':>10}{'peak, GiB':>12}{'µs each':>10}")
    for size, costs in phases.items():
        for phase, cost in costs.items():
            told = f"{cost['seconds']:>10.2f}{cost['peak_gib']:>12.2f}{cost['us_each']:>10.2f}"
            print(f"{size:<10}{phase:<10}{told}")
    appends = {"append_ratio": ratio.median, "append_interval": [low, high]}
    print(json.dumps(phases | appends))


def _phases(
    scratch: Path, sizes: Sequence[int], runs: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Size → phase → medians over runs in which the sizes take turns."""
    for size in sizes:
        prepare(scratch / str(size), size)
    costs: dict[tuple[int, str], list[Cost]] = {}
    for number in range(runs):
        print(f"round {number + 1} of {runs}", file=sys.stderr, flush=True)
        for size in sizes:
            for name, phase in _PHASES.items():
                cost = in_own_process(phase, scratch / str(size))
                costs.setdefault((size, name), []).append(cost)
    return {
        _name(size): {
            name: {
                "seconds": median(each.seconds for each in costs[size, name]),
                "peak_gib": median(each.peak_gib for each in costs[size, name]),
                "us_each": median(each.seconds / each.found * 1e6 for each in costs[size, name]),
            }
            for name in _PHASES
        }
        for size in sizes
    }


def _corpora(scratch: Path, sizes: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Size in records → phase → cost; once each, for they are for one folder."""
    # Here, since the processes of all other phases import this module, and these import Ray.
    from benchmarks.sized_corpus import (
        build_corpus,
        deploy_records,
        prepare_by_family,
        prepare_corpus,
        two_cpus_of_ray,
    )

    phases = {
        "build": (build_corpus, nullcontext),
        "prepare": (prepare_corpus, two_cpus_of_ray),
        "by_family": (prepare_by_family, two_cpus_of_ray),
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in sizes:
        folder = scratch / str(size)
        deploy_records(folder, size, _RECORD_BYTES)
        costs: dict[str, dict[str, float]] = {}
        for name, (phase, around) in phases.items():
            print(f"{name} of {size:,} records", file=sys.stderr, flush=True)
            cost = in_own_process(phase, folder, around)
            costs[name] = {
                "seconds": cost.seconds,
                "peak_gib": cost.peak_gib,
                "us_each": cost.seconds / cost.found * 1e6,
            }
        found[_name(size)] = costs
        shutil.rmtree(folder)
    return found


def _name(size: int) -> str:
    return f"{size:.0e}".replace("e+0", "e")


def _environment(options: argparse.Namespace) -> str:
    return (
        f"{versions()}\n"
        f"{options.appends} pairs of appends, by turns, at step {EARLY} and step {options.step:,}; "
        f"{options.runs} runs of each phase, the sizes by turns"
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--step", type=positive, help=f"the late one; {_STEP:,} by default")
    parser.add_argument("--appends", type=positive, help=f"pairs; {_APPENDS} by default")
    parser.add_argument("--sizes", type=positive, nargs="+", help="rows of the models; 1e5 to 1e7")
    parser.add_argument("--runs", type=positive, default=3, help="of each phase")
    parser.add_argument("--no-corpora", action="store_true", help="neither build nor prepare")
    parser.add_argument("--quick", action="store_true", help="a short run and few pairs")
    options = parser.parse_args(argv)
    options.step = options.step or (_QUICK_STEP if options.quick else _STEP)
    options.appends = options.appends or (_QUICK_APPENDS if options.quick else _APPENDS)
    options.sizes = options.sizes or (_QUICK_SIZES if options.quick else _SIZES)
    return options


if __name__ == "__main__":
    sys.exit(run(main))
