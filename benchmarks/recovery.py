"""``python -m benchmarks.recovery``: a killed worker, governed and bare, and what commits cost.

The bare run is what a user of Ray Train would write: the same GPT under DDP, ``torch.save``, and
``report``. In each pair both lose rank 1 to SIGKILL in the same step. ``seconds`` go from the kill
to the end of the next step. ``checkpoint.share`` is what commits add to the time of the steps
between them, and ``wait_share`` the part in which the loop stands.

Prints tables and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import ray

from benchmarks.command import positive, run
from benchmarks.intervals import paired_difference, paired_ratio
from benchmarks.machine import versions
from benchmarks.one_corpus import OneCorpus
from benchmarks.recovery_runs import (
    Recovered,
    RunShape,
    recovered,
    run_bare,
    run_governed,
    step_seconds,
)
from govray.train.driver.ray_cluster import start_ray

ROOT = Path(__file__).parents[1]
KILLED = RunShape(blocks=4, width=128, context=128, rows=8, steps=40, commit_every=10, kill_at=27)
COMMITTING = RunShape(blocks=8, width=256, context=64, rows=4, steps=175, commit_every=50)
"""6.3 million weights: 25 MB, and twice that of optimizer state."""
_QUICK_KILLED = replace(KILLED, blocks=2, width=32, context=32, steps=12, commit_every=3, kill_at=7)
_QUICK_COMMITTING = RunShape(blocks=2, width=32, context=32, rows=4, steps=14, commit_every=5)
_PAIRS, _COMMIT_PAIRS = 10, 3
CORPUS_BYTES = 1 << 20


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or a run failed.
    """
    options = _options(argv)
    killed = _QUICK_KILLED if options.quick else KILLED
    committing = _QUICK_COMMITTING if options.quick else COMMITTING
    print(versions("torch", "ray"), f"killed: {killed}; {options.pairs} pairs", sep="\n")
    print(f"committing: {committing}", flush=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    start_ray(num_cpus=2)
    try:
        # Ray prints that a worker died to standard output.
        with (
            redirect_stdout(sys.stderr),
            tempfile.TemporaryDirectory(prefix="govray-recovery-") as scratch,
        ):
            folder = Path(scratch)
            deployment = OneCorpus.deploy(folder / "deployment", CORPUS_BYTES)
            rounds = _killed(deployment, killed, folder, options.pairs)
            commits = _commits(deployment, committing, folder, options.commit_pairs)
    finally:
        ray.shutdown()
    report = {"recovery": _recovery(rounds), "checkpoint": commits}
    print(_table(report))
    print(json.dumps(report))


def _killed(
    deployment: OneCorpus, shape: RunShape, folder: Path, pairs: int
) -> dict[str, list[Recovered]]:
    """Kind → one killed run a round, in turns."""
    rounds: dict[str, list[Recovered]] = {"governed": [], "bare": []}
    for number in range(pairs):
        kinds = ["governed", "bare"] if number % 2 == 0 else ["bare", "governed"]
        for kind in kinds:
            print(f"{kind}, round {number + 1} of {pairs}", file=sys.stderr, flush=True)
            place = folder / f"{kind}-{number}"
            events = (
                run_governed(deployment, shape, place)
                if kind == "governed"
                else run_bare(shape, place)
            )
            rounds[kind].append(recovered(events))
    return rounds


def _commits(deployment: OneCorpus, shape: RunShape, folder: Path, pairs: int) -> dict[str, Any]:
    """What commits add to the loop: the same steps with commits, and with one only at the end."""
    with_commits: list[float] = []
    without: list[float] = []
    waits: list[float] = []
    for number in range(pairs):
        seconds = {}
        for kind, every in (("with", shape.commit_every), ("without", shape.steps)):
            print(f"commits: {kind}, round {number + 1} of {pairs}", file=sys.stderr, flush=True)
            place = folder / f"commits-{kind}-{number}"
            events = run_governed(deployment, replace(shape, commit_every=every), place)
            seconds[kind] = step_seconds(events)
        for cycle in _cycles(shape):
            for kind, sums in (("with", with_commits), ("without", without)):
                sums.append(sum(s for step, s, _ in seconds[kind] if step in cycle))
            waits.append(sum(wait for step, _, wait in seconds["with"] if step in cycle))
    ratio = paired_ratio(with_commits, without)
    assert ratio is not None
    weights = sum(p.numel() * p.element_size() for p in shape.model().parameters())
    return {
        "model_mb": weights / 1e6,
        "every_steps": shape.commit_every,
        "share": ratio.median - 1,
        "share_interval": [bound - 1 for bound in ratio.interval],
        "seconds_per_commit": paired_difference(with_commits, without).median,
        "wait_share": paired_ratio(waits, without).median,  # type: ignore[union-attr]
        "step_seconds": median(without) / shape.commit_every,
        "commits": ratio.pairs,
    }


def _cycles(shape: RunShape) -> list[range]:
    """Steps around each commit but the last step's, as many as lie between two commits."""
    half = shape.commit_every // 2
    return [
        range(first, first + shape.commit_every)
        for first in range(shape.commit_every - half, shape.steps, shape.commit_every)
        if first + shape.commit_every < shape.steps
    ]


def _recovery(rounds: dict[str, list[Recovered]]) -> dict[str, Any]:
    seconds = {kind: [each.recovery for each in runs] for kind, runs in rounds.items()}
    difference = paired_difference(seconds["governed"], seconds["bare"])
    return {
        **{
            kind: {
                "seconds": median(seconds[kind]),
                "lost_steps": median(each.lost for each in runs),
                "step_seconds": median(each.step for each in runs),
            }
            for kind, runs in rounds.items()
        },
        "governed_minus_bare": difference.median,
        "governed_minus_bare_interval": list(difference.interval),
        "pairs": difference.pairs,
    }


def _table(report: dict[str, Any]) -> str:
    recovery, commits = report["recovery"], report["checkpoint"]
    low, high = recovery["governed_minus_bare_interval"]
    lines = [f"{'killed worker':<16}{'to next step':>14}{'lost steps':>12}{'a step':>10}"]
    lines += [
        f"{kind:<16}{recovery[kind]['seconds']:>12.2f} s{recovery[kind]['lost_steps']:>12g}"
        f"{recovery[kind]['step_seconds'] * 1e3:>7.0f} ms"
        for kind in ("governed", "bare")
    ]
    lines.append(
        f"governed - bare {recovery['governed_minus_bare']:>12.2f} s  "
        f"95 % interval {low:.2f} … {high:.2f}, {recovery['pairs']} pairs"
    )
    low, high = commits["share_interval"]
    lines.append(
        f"{commits['model_mb']:.0f} MB of weights, a commit every {commits['every_steps']} steps: "
        f"{commits['share']:.2%} of the time, 95 % interval {low:.2%} … {high:.2%}; "
        f"{commits['wait_share']:.2%} inside report()"
    )
    return "\n".join(lines)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--pairs", type=positive, help=f"killed runs of each; {_PAIRS} by default")
    parser.add_argument("--commit-pairs", type=positive, help=f"{_COMMIT_PAIRS} by default")
    parser.add_argument("--quick", action="store_true", help="tiny runs, one pair of each")
    options = parser.parse_args(argv)
    options.pairs = options.pairs or (1 if options.quick else _PAIRS)
    options.commit_pairs = options.commit_pairs or (1 if options.quick else _COMMIT_PAIRS)
    return options


if __name__ == "__main__":
    sys.exit(run(main))
