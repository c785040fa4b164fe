"""``python -m benchmarks.sizes``: what a long run costs, by its size.

Prints a table and, as its last line, one JSON object. docs/performance.md explains the numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import govray
from benchmarks.command import positive, run
from benchmarks.intervals import paired_ratio
from benchmarks.ledger_appends import EARLY, timed_appends

_STEP, _APPENDS = 1_000_000, 2000
_QUICK_STEP, _QUICK_APPENDS = 20_000, 200


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(argv)
    print(_environment(options), flush=True)
    with tempfile.TemporaryDirectory(prefix="govray-sizes-") as scratch:
        early, late = timed_appends(Path(scratch), options.step, options.appends)
    ratio = paired_ratio(late, early)
    assert ratio is not None
    low, high = ratio.interval
    print(f"{'write-ahead append':<24}{'µs':>8}")
    for step, times in ((EARLY, early), (options.step, late)):
        print(f"{f'at step {step:,}':<24}{median(times) * 1e6:>8.1f}")
    print(f"{'ratio':<24}{ratio.median:>8.3f}  {low:.3f} … {high:.3f}")
    print(json.dumps({"append_ratio": ratio.median, "append_interval": [low, high]}))


def _environment(options: argparse.Namespace) -> str:
    return (
        f"Python {platform.python_version()}, {platform.machine()}, govray {govray.__version__}\n"
        f"{options.appends} pairs of appends, by turns, at step {EARLY} and step {options.step:,}"
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--step", type=positive, help=f"the late one; {_STEP:,} by default")
    parser.add_argument("--appends", type=positive, help=f"pairs; {_APPENDS} by default")
    parser.add_argument("--quick", action="store_true", help="a short run and few pairs")
    options = parser.parse_args(argv)
    options.step = options.step or (_QUICK_STEP if options.quick else _STEP)
    options.appends = options.appends or (_QUICK_APPENDS if options.quick else _APPENDS)
    return options


if __name__ == "__main__":
    sys.exit(run(main))
