"""``python -m benchmarks.reading``: the plan reader against Ray Data and pyarrow, and hashing.

The prepared folder lies on the disk. All readers take part in each round, in an order that rotates.
Prints two tables and, as its last line, one JSON object. It has by reader ``rows_per_second`` and
paired ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.command import positive, run
from benchmarks.hashing import HASHERS, Hashed
from benchmarks.intervals import paired_ratio
from benchmarks.machine import versions
from benchmarks.one_corpus import CORPUS, OneCorpus
from benchmarks.readers import (
    BYTES,
    READERS,
    ROWS,
    Prepared,
)
from govray.data.admission import prepare
from govray.data.corpus import read_credentials, verify_credentials
from govray.data.tokenizer import ByteTokenizer
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.trust.trust_state import TrustState
from govray.train.driver.ray_cluster import ray_running
from govray.train.inputs.planning import local_order

_MB = 1_000_000
_PAIRS = 10
_QUICK_PAIRS = 2
_READ_MB, _HASH_MB = 64, 24
"""A part holds 32 MiB, so what is hashed is one file."""
_REFERENCES = ("pyarrow", "iter_torch_batches")
_QUICK_MB = 1

Subject = TypeVar("Subject")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: An option is wrong, or something could not be read.
    """
    options = _options(argv)
    print(_environment(options), flush=True)
    with (
        ray_running(num_cpus=2),
        tempfile.TemporaryDirectory(prefix="govray-reading-") as scratch,
    ):
        prepared = _prepare(Path(scratch) / "read", options.read_mb * _MB, options.context)
        steps = min(options.steps, prepared.plan.max_steps)
        reading = _interleaved(
            {name: _steps(read, steps) for name, read in READERS.items()},
            prepared,
            options.pairs,
        )
        deployment = OneCorpus.deploy(Path(scratch) / "hash", options.hash_mb * _MB)
        hashed = Hashed(deployment, options.hash_mb * _MB)
        hashing = _interleaved(HASHERS, hashed, options.pairs)
        hash_bytes = hashed.file.stat().st_size
    rows = steps * ROWS
    read_bytes = rows * (options.context + 1) * BYTES
    report = {
        "disk": _report(reading, read_bytes, _REFERENCES, rows=rows),
        "hashing": _report(hashing, hash_bytes, ("sha256sum",)),
        "pairs": options.pairs,
    }
    print(_table(report["disk"], *_REFERENCES))
    print(_table(report["hashing"], "sha256sum"))
    print(json.dumps(report))


def _steps(read: Callable[[Prepared, int], int], steps: int) -> Callable[[Prepared], None]:
    def all_of_them(prepared: Prepared) -> None:
        expected = steps * ROWS * prepared.row_tokens
        found = read(prepared, steps)
        # A part's last row may be short, and some methods pad it.
        assert abs(found - expected) <= 0.01 * expected, (found, expected)

    return all_of_them


def _interleaved(
    methods: Mapping[str, Callable[[Subject], None]], subject: Subject, pairs: int
) -> dict[str, list[float]]:
    """Method → seconds by round; the order rotates. A round before the first warms caches."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    names = [*methods]
    for number in range(pairs + 1):
        print(f"round {number} of {pairs}", file=sys.stderr, flush=True)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            methods[name](subject)
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _prepare(folder: Path, size: int, context: int) -> Prepared:
    """Admit and pack a corpus, and plan one epoch of it."""
    deployment = OneCorpus.deploy(folder, size)
    trust = TrustState.load(deployment.root.read_bytes(), at=deployment.at)
    policy = verify_policy(trust, deployment.policy.read_bytes(), at=deployment.at).document
    prepared = prepare(
        deployment.corpora,
        folder / "prepared",
        credentials=verify_credentials(
            deployment.corpora, read_credentials(deployment.corpora), trust, at=deployment.at
        ),
        policy=policy,
        tokenizer=ByteTokenizer(),
        context=context,
        reserve_share=0.0,
        salt=bytes(32),
        signer=lambda: deployment.signer,
        trust=trust,
        at=deployment.at,
        max_quarantined=0.0,
    )
    rows = prepared.manifest.train_rows(CORPUS)
    stream = StreamPlan(
        id="sha256:" + "0" * 64,
        profile="everything",
        corpora=(StreamCorpus(corpus=CORPUS, rows=rows),),
        phase=0,
        quota=ROWS,
    )
    plan = BatchPlan(
        seed=17,
        max_steps=rows // ROWS,
        manifest=prepared.digest,
        context=context,
        order=local_order(context),
        streams=(stream,),
    )
    return Prepared(folder / "prepared", prepared.manifest, plan)


def _report(
    seconds: Mapping[str, Sequence[float]],
    size: int,
    references: Sequence[str],
    rows: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Method → throughput, absolute and as a multiple of each reference's."""
    report: dict[str, dict[str, Any]] = {}
    for name, times in seconds.items():
        report[name] = {"mb_per_s": size / _MB / median(times)}
        if rows:
            report[name]["rows_per_second"] = rows / median(times)
        for reference in references:
            ratio = paired_ratio(seconds[reference], times)
            assert ratio is not None
            report[name][f"vs_{reference}"] = ratio.median
            report[name][f"vs_{reference}_interval"] = list(ratio.interval)
    return report


def _table(report: Mapping[str, Mapping[str, Any]], *references: str) -> str:
    head = f"{'':<22}{'MB/s':>9}{'rows/s':>10}"
    lines = [head + "".join(f"{'÷ ' + name:>22}  {'95 % interval':<15}" for name in references)]
    for name, row in report.items():
        rows = f"{row['rows_per_second']:.0f}" if "rows_per_second" in row else ""
        line = f"{name:<22}{row['mb_per_s']:>9.1f}{rows:>10}"
        for reference in references:
            if f"vs_{reference}" not in row:
                continue
            low, high = row[f"vs_{reference}_interval"]
            line += f"{row[f'vs_{reference}']:>22.3f}  {f'{low:.3f} … {high:.3f}':<15}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _environment(options: argparse.Namespace) -> str:
    return (
        f"{versions('ray', 'pyarrow')}\n"
        f"{options.read_mb} MB of text in rows of {options.context} tokens, {ROWS} rows a step, "
        f"{options.steps} steps at most; {options.hash_mb} MB hashed; {options.pairs} pairs"
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--pairs", type=positive, help=f"rounds; {_PAIRS} by default")
    parser.add_argument("--read-mb", type=positive, help=f"text; {_READ_MB} by default")
    parser.add_argument("--steps", type=positive, default=1200, help="of a reading, at most")
    parser.add_argument("--context", type=positive, default=512, help="loss targets of a row")
    parser.add_argument("--quick", action="store_true", help="little data and 2 rounds")
    options = parser.parse_args(argv)
    options.pairs = options.pairs or (_QUICK_PAIRS if options.quick else _PAIRS)
    options.read_mb = options.read_mb or (_QUICK_MB if options.quick else _READ_MB)
    options.hash_mb = _QUICK_MB if options.quick else _HASH_MB
    return options


if __name__ == "__main__":
    sys.exit(run(main))
