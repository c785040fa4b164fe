"""The options that the step benchmarks share, and what follows from them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import replace

from benchmarks.cases import CASES, Shape
from benchmarks.command import names, positive
from govray.errors import UsageError

SHAPES = {
    "cpu": Shape(),
    "cuda": Shape(blocks=12, width=768, tokens=1024, rows=16, vocabulary=32768),
}
QUICK = Shape(blocks=2, width=32, tokens=16, rows=8, vocabulary=65)
_QUICK_PAIRS = 3
_SIZES = ("blocks", "width", "tokens", "rows", "vocabulary")


def add_step_options(
    parser: argparse.ArgumentParser, cases: Mapping[str, object], methods: Mapping[str, object]
) -> None:
    """Cases, methods, rounds, processes, device and shape."""
    parser.add_argument(
        "--cases", type=names(cases), help="comma-separated; on a CPU the first four by default"
    )
    parser.add_argument(
        "--methods",
        type=names(methods),
        default=[*methods],
        help="comma-separated; the governed step and what it is compared with always run",
    )
    parser.add_argument("--pairs", type=positive, help="rounds; 30 by default")
    parser.add_argument("--processes", type=positive, help="2 by default, on cuda 1")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and 3 rounds")
    for size in _SIZES:
        parser.add_argument(f"--{size}", type=positive)


def settle_step_options(
    options: argparse.Namespace,
    cases: Collection[str],
    methods: Collection[str],
    always: Collection[str],
) -> None:
    """Fill in what was not given: ``shape``, ``cases``, ``pairs``, ``processes``, ``methods``.

    Args:
        options: As parsed.
        cases: Those that there are; on a GPU all by default.
        methods: Those that there are.
        always: Those that always run.

    Raises:
        UsageError: The shape has no upper half.
    """
    sizes = {size: getattr(options, size) for size in _SIZES}
    base = QUICK if options.quick else SHAPES[options.device]
    options.shape = replace(base, **{name: size for name, size in sizes.items() if size})
    options.cases = options.cases or [*(cases if options.device == "cuda" else CASES)]
    options.pairs = options.pairs or (_QUICK_PAIRS if options.quick else 30)
    options.processes = options.processes or (1 if options.device == "cuda" else 2)
    options.methods = [m for m in methods if m in options.methods or m in always]
    if options.shape.blocks < 2:
        raise UsageError("one block has no upper half", where="--blocks", do="Give at least 2")
