"""``python -m benchmarks.scaling``: communication against world size, computed.

The cost of a message and of a byte are measured here, on gloo between processes of
this machine; everything else is arithmetic (``ring``, ``traffic``). No figure for
more than four ranks was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import Shape
from benchmarks.command import run
from benchmarks.ranks import run_ranks
from benchmarks.ring import Link, Sample, all_reduce_bytes, fit
from benchmarks.traffic import MIX, STEPS, GovernedTraffic, Traffic

WORLDS = (8, 16, 64, 256, 1024, 4096)
MEASURED_WORLDS = (2, 4)
SIZES = tuple(4**power for power in range(5, 13))
SHAPE = Shape(blocks=12, width=768, tokens=1024, vocabulary=32768)

_QUICK_WORLDS = (8, 4096)
_QUICK_SIZES = (2**10, 2**18)
_REPEATS, _QUICK_REPEATS = 20, 3


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the link, then compute.

    Raises:
        GovrayError: A rank failed, or the times fit no link.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few sizes and worlds")
    options = parser.parse_args(argv)
    sizes, repeats = (_QUICK_SIZES, _QUICK_REPEATS) if options.quick else (SIZES, _REPEATS)
    samples = []
    for world in MEASURED_WORLDS:
        samples += run_ranks(time_all_reduces, world, "cpu", world, sizes, repeats)[0]
    link = fit(samples)
    worlds = _QUICK_WORLDS if options.quick else WORLDS
    report = compute(link, GovernedTraffic(SHAPE), worlds)
    error = median(abs(link.all_reduce(s.size, s.world) / s.seconds - 1) for s in samples)
    print(_text(link, error, report))
    print(
        json.dumps(
            {
                "computed": True,
                "link": {
                    "seconds_per_message": link.per_message,
                    "seconds_per_byte": link.per_byte,
                    "median_relative_error": error,
                    "measured_ranks": list(MEASURED_WORLDS),
                },
                "model": str(SHAPE),
                "worlds": report,
            }
        )
    )


def time_all_reduces(rank: int, world: int, sizes: Sequence[int], repeats: int) -> list[Sample]:
    """Seconds of an all-reduce of each size, on the slowest rank; run it on every rank.

    The best of several, because other work on the machine only adds time.
    """
    samples = []
    for size in sizes:
        tensor = torch.zeros(size // 4)
        times = []
        for _ in range(repeats + 1):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            took = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            times.append(float(took))
        samples.append(Sample(size, world, min(times[1:])))  # the first call connects
    return samples


def compute(link: Link, traffic: GovernedTraffic, worlds: Sequence[int]) -> dict[str, Any]:
    """World size → kind of step → bytes that a rank sends, calls and seconds.

    The kind ``by_turns`` is the mean over steps of one stream each, in the shares of the mix.
    """
    report: dict[str, Any] = {}
    for world in worlds:
        kinds = {"plain_ddp": _cost(link, traffic.plain(), world)}
        for kind, profiles in STEPS.items():
            kinds[kind] = _cost(link, traffic.step(profiles), world)
        turns = {
            share: _cost(link, traffic.step([profile]), world) for profile, share in MIX.items()
        }
        kinds["by_turns"] = {
            field: sum(share * cost[field] for share, cost in turns.items())
            for field in kinds["plain_ddp"]
        }
        report[str(world)] = kinds
    return report


def _cost(link: Link, traffic: Traffic, world: int) -> dict[str, float]:
    agreement = sum(link.all_gather(size, world) for size in traffic.all_gathers)
    gradients = sum(link.all_reduce(size, world) for size in traffic.all_reduces)
    return {
        "bytes": sum(all_reduce_bytes(size, world) for size in traffic.all_reduces)
        + sum((world - 1) * size for size in traffic.all_gathers),
        "calls": len(traffic.all_reduces) + len(traffic.all_gathers),
        "seconds": gradients + agreement,
        "agreement_seconds": agreement,
    }


def _text(link: Link, error: float, report: dict[str, Any]) -> str:
    lines = [
        "COMPUTED, NOT MEASURED: ring model, no overlap with computation, no topology",
        f"measured here on gloo with {' and '.join(map(str, MEASURED_WORLDS))} processes: "
        f"{link.per_message * 1e6:.0f} µs a message, {link.per_byte * 1e9:.2f} ns a byte; "
        f"half of the samples fit within {error:.0%}",
        f"{SHAPE}; float32 gradients; policy 50/30/20 (everything, upper half, adapter)",
        f"{'ranks':>6}  {'step':<24}{'sent by a rank':>15}{'calls':>7}{'time':>10}"
        f"{'÷ DDP':>8}{'agreement':>11}",
    ]
    for world, kinds in report.items():
        plain = kinds["plain_ddp"]["seconds"]
        for kind, cost in kinds.items():
            name = kind.replace("_", " ").replace("ddp", "DDP")
            lines.append(
                f"{world:>6}  {name:<24}{cost['bytes'] / 2**20:>11.1f} MiB{cost['calls']:>7.1f}"
                f"{cost['seconds']:>8.2f} s{cost['seconds'] / plain:>8.3f}"
                f"{cost['agreement_seconds']:>9.3f} s"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
