"""``python -m benchmarks.near_copies``: the index of near copies, over a million records.

Records are made up (``copied_records.py``), and built into a corpus as `govray corpus build` does.
Then it measures, each phase in a process of its own:

* building the index;
* a question as `govray trace` asks it, with exact comparison;
* what is found, against exact comparison of every question with every record.

Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import positive, run
from benchmarks.copied_records import KINDS, AskedText, questions, records
from benchmarks.machine import versions
from benchmarks.process_tree import in_own_process
from govray.data.corpus import build, part_files, read_part, record_hashes
from govray.data.similarity.index_build import build_index, in_turn, kept_folder
from govray.data.similarity.near_copies import near
from govray.data.similarity.passage_index import open_index
from govray.data.similarity.shingles import LEAST, shingles
from govray.governance.policy.record_commitment import SECRET_FILE, entry

CORPUS = "copied"
OVERLAP = 0.5
"""Least overlap of an answer: the command's default."""
LIKE = {"jaccard .8 to 1": (0.8, 1.01), "jaccard .5 to .8": (0.5, 0.8), "less": (0.0, 0.5)}
"""Pairs of a question and a record with the least overlap, by Jaccard similarity."""

_SECRET = bytes(range(32))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(argv)
    print(
        f"{versions()}\n"
        f"{options.records:,} records, {options.questions:,} questions, seed {options.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="govray-near-copies-", dir=options.folder) as name:
        folder = Path(name)
        (folder / "sizes").write_text(f"{options.records} {options.questions} {options.seed}")
        report: dict[str, Any] = {"records": options.records, "questions": options.questions}
        for phase in (make_corpus, make_index, ask_all, compare_all):
            print(phase.__name__, file=sys.stderr, flush=True)
            cost = asdict(in_own_process(phase, folder))
            report[phase.__name__] = cost.pop("found") | cost
    print(_table(report))
    print(json.dumps(report))


def make_corpus(folder: Path) -> dict[str, Any]:
    """The corpus, its entries and the questions."""
    count, asked, seed = _sizes(folder)
    built = build(folder / "corpora", CORPUS, records(count, seed), secret=_SECRET)
    (folder / "root").write_text(built.root)
    entries = b"".join(entry(each, _SECRET) for each in record_hashes(built.folder))
    (folder / "entries").write_bytes(entries)
    texts = [[each.kind, each.text.decode()] for each in questions(count, asked, seed)]
    (folder / "questions").write_text(json.dumps(texts))
    return {"bytes": built.bytes, "parts": len(part_files(built.folder))}


def make_index(folder: Path) -> dict[str, Any]:
    """The index, built in this process."""
    corpus = folder / "corpora" / CORPUS
    root = (folder / "root").read_text()
    into = kept_folder(corpus)
    assert into is not None
    into.mkdir(parents=True)
    build_index(into, corpus, root, (corpus / SECRET_FILE).read_bytes(), in_turn)
    index = open_index(into, root)
    return {
        "passages": len(index),
        "bytes": index.size,
        "bytes_per_passage": index.size / max(1, len(index)),
    }


def ask_all(folder: Path) -> dict[str, Any]:
    """Each question as `govray trace` asks it, with exact comparison."""
    root = (folder / "root").read_text()
    entries = (folder / "entries").read_bytes()
    times, answers = [], []
    for asked in _questions(folder):
        began = time.perf_counter()
        found = near(
            asked.text, folder / "corpora", {CORPUS: root},
            lambda _, number, entry: entry == entries[32 * number : 32 * number + 32].hex(),
            {CORPUS: _SECRET}, least=OVERLAP, limit=1000,
        )  # fmt: skip
        times.append(time.perf_counter() - began)
        answers.append({each.record: each.overlap for each in found})
    (folder / "answers").write_text(json.dumps(answers))
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "answers": sum(map(len, answers))}


def compare_all(folder: Path) -> dict[str, Any]:
    """Recall and precision: every question against every record, shingle by shingle."""
    asked = _questions(folder)
    answers = [set(map(int, each)) for each in json.loads((folder / "answers").read_text())]
    sets = [frozenset(shingles(each.text)) for each in asked]
    who: dict[str, list[int]] = {}
    for number, each in enumerate(sets):
        for shingle in each:
            who.setdefault(shingle, []).append(number)
    every = frozenset(who)
    there = {kind: dict.fromkeys(LIKE, 0) for kind in KINDS}
    found = {kind: dict.fromkeys(LIKE, 0) for kind in KINDS}
    right = record = 0
    for part in part_files(folder / "corpora" / CORPUS):
        for content in read_part(part):
            own = frozenset(shingles(content))
            shared: dict[int, int] = {}
            for shingle in own & every:
                for number in who[shingle]:
                    shared[number] = shared.get(number, 0) + 1
            for number, count in shared.items():
                other = sets[number]
                if len(own) < LEAST or count / min(len(own), len(other)) < OVERLAP:
                    continue
                jaccard = count / (len(own) + len(other) - count)
                like = next(name for name, (low, high) in LIKE.items() if low <= jaccard < high)
                there[asked[number].kind][like] += 1
                hit = record in answers[number]
                found[asked[number].kind][like] += hit
                right += hit
            record += 1
    given = sum(map(len, answers))
    return {
        "pairs": there,
        "found": found,
        "recall": {
            like: _share(*(sum(each[like] for each in of.values()) for of in (found, there)))
            for like in LIKE
        },
        "precision": _share(right, given),
    }


def _share(some: int, of: int) -> float | None:
    return some / of if of else None


def _questions(folder: Path) -> list[AskedText]:
    texts = json.loads((folder / "questions").read_text())
    return [AskedText(kind, text.encode()) for kind, text in texts]


def _sizes(folder: Path) -> list[int]:
    return [*map(int, (folder / "sizes").read_text().split())]


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{'phase':<18}{'seconds':>9}{'CPU':>9}{'peak, GiB':>11}{'p50, ms':>10}{'p99, ms':>10}"
    ]
    for name, each in report.items():
        if isinstance(each, dict):
            line = f"{name:<18}{each['seconds']:>9.1f}{each['cpu_seconds']:>9.1f}"
            line += f"{each['peak_gib']:>11.2f}"
            if "p50_ms" in each:
                line += f"{each['p50_ms']:>10.2f}{each['p99_ms']:>10.2f}"
            lines.append(line)
    made = report["make_index"]
    lines.append(
        f"{made['passages']:,} passages, {made['bytes']:,} bytes, "
        f"{made['bytes_per_passage']:.1f} a passage"
    )
    compared = report["compare_all"]
    lines.append(f"{'asked about':<18}" + "".join(f"{like:>20}" for like in LIKE))
    for kind in KINDS:
        cells = (
            f"{compared['found'][kind][like]:,} of {compared['pairs'][kind][like]:,}"
            for like in LIKE
        )
        lines.append(f"{kind:<18}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near_copies", description=__doc__)
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--questions", type=positive, default=1000)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--folder", type=Path, help="where its files go meanwhile")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
