"""How often corpora without effect are flagged, and how often an effect is found.

    python -m benchmarks.null

No model is trained. Records get a score of their own, and their rows score it with noise. All that
follows is the package's own code. It draws the reserve and the plan's order, takes one row of each
record, makes p and e-values of them, and decides over a run.

* ``null``: P(p ≤ .05) of one profile, by how the records' lengths are distributed. Beside it the
  same for the newest rows whatever record they are of, which is no valid test (``null_by_rows``).
* ``run_false_flags``: the share of runs that flag anything, ten corpora without effect in one
  domain, over all profiles of a run.
* ``power``: the share of runs that flag one corpus with an effect among ten, by its size in
  spreads. Beside it is the median of the profiles until then.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks import command
from govray.data.probe_rows import Chosen, Probes, newest_rows
from govray.engine.memorization.deviation import reserve_spread
from govray.engine.memorization.permutation_e_value import e_values, p_values
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.policy.memorization_section import Band, Monitoring
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus, Side
from govray.governance.record.incidents import Incidents
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    TokenizerIdentity,
)
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.row_order import RowOrder

CONTEXT = 7
ROW = CONTEXT + 1
SHARE = 0.2
ROWS = 32
PROFILES = 40
CORPORA = 10
BAND = 0.5
FDR = 0.05
NOISE = 0.5
"""Of a row beside its record's score, whose deviation is 1."""
EFFECTS = (0.5, 1.0, 2.0, 3.0)
_DIGEST = "sha256:" + "0" * 64
_PERMUTATIONS = 399

Lengths = Callable[[random.Random], list[int]]
"""Rows of each record of a corpus."""

SHAPES: Mapping[str, Lengths] = {
    "equal": lambda draw: [3] * 200,
    "lognormal": lambda draw: [max(1, int(draw.lognormvariate(1, 1.2))) for _ in range(200)],
    "length-dependent": lambda draw: [60 if draw.random() < 0.05 else 1 for _ in range(300)],
    "few": lambda draw: [8] * 12,
    "huge": lambda draw: [200 if draw.random() < 0.1 else 2 for _ in range(60)],
}
LONG, EASIER = 20, 2.0
"""In ``length-dependent``, records of more rows score so much higher."""


@dataclass(frozen=True)
class Corpus:
    """A corpus without effect: its rows' scores, and what chooses among them.

    Attributes:
        probes: The package's own choice of rows.
        plan: What is read when.
        train: Score of each training row.
        reserve: Score of each reserve row.
        owners: Record of each training row.
        reserve_owners: Record of each reserve row.
    """

    probes: Probes
    plan: BatchPlan
    train: Tensor
    reserve: Tensor
    owners: Sequence[str]
    reserve_owners: Sequence[str]


def made_corpus(shape: str, seed: int, *, steps: int) -> Corpus:
    """A corpus of this shape, read at an even pace to the end of its second epoch."""
    draw = random.Random(f"{shape} {seed}")  # noqa: S311 - a simulation
    salt = hashlib.sha256(f"salt {shape} {seed}".encode()).hexdigest()
    held = Reserve(share=SHARE, salt=salt)
    tokens = np.array([rows * ROW - 1 for rows in SHAPES[shape](draw)], np.int64)
    entries = np.frombuffer(
        b"".join(
            hashlib.sha256(f"{shape} {seed} {number}".encode()).digest()
            for number in range(tokens.size)
        ),
        np.uint8,
    ).reshape(-1, 32)
    columns = RecordColumns(entries, tokens, held.splits(entries, tokens))
    part = Part.of(
        columns,
        source="records-00000.parquet",
        file=f"class={'0' * 12}/one-00000.parquet",
        context=CONTEXT,
        rows_per_group=64,
        groups_digest=_DIGEST,
        reserve_groups_digest=_DIGEST,
    )
    prepared = PreparedCorpus(
        corpus="one", credential=_DIGEST, class_digest=_DIGEST, commitment=_DIGEST, parts=(part,)
    )
    manifest = Manifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=_DIGEST, vocabulary=257, separator=256),
        context=CONTEXT,
        reserve=held,
        corpora=(prepared,),
    )
    rows = manifest.train_rows("one")
    stream = StreamPlan(
        id=_DIGEST,
        profile="all",
        corpora=(StreamCorpus(corpus="one", rows=rows),),
        phase=0,
        quota=max(1, 2 * rows // steps),
        epochs=1000,
    )
    plan = BatchPlan(
        seed=seed,
        max_steps=steps,
        manifest=_DIGEST,
        context=CONTEXT,
        order=RowOrder(block=8, window=256),
        streams=(stream,),
    )
    scores = {
        entry.tobytes().hex(): draw.gauss(0, 1)
        + EASIER * (shape == "length-dependent" and length >= LONG * ROW)
        for entry, length in zip(entries, tokens.tolist(), strict=True)
    }
    found = PreparedRecords(manifest, lambda corpus, number: columns)
    owners = [found.record("one", _most(found, row, "train")).entry for row in range(rows)]
    reserve_owners = [
        found.record("one", _most(found, row, "reserve")).entry
        for row in range(manifest.reserve_rows("one"))
    ]
    return Corpus(
        probes=Probes(Path("nothing is read"), manifest, plan, found),
        plan=plan,
        train=_scored(owners, scores, draw),
        reserve=_scored(reserve_owners, scores, draw),
        owners=owners,
        reserve_owners=reserve_owners,
    )


def _most(records: PreparedRecords, row: int, split: str) -> int:
    spans = records.row_records("one", row, "reserve" if split == "reserve" else "train")
    return max(spans, key=lambda span: span.stop - span.start).record


def _scored(owners: Sequence[str], scores: Mapping[str, float], draw: random.Random) -> Tensor:
    return torch.tensor([scores[o] + draw.gauss(0, NOISE) for o in owners], dtype=torch.float64)


def sides(corpus: Corpus, chosen: Chosen) -> tuple[Tensor, Tensor]:
    """Scores of the chosen rows, a column."""
    ours = corpus.train[list(chosen.trained)].unsqueeze(1)
    return ours, corpus.reserve[list(chosen.reserve)].unsqueeze(1)


def null(shape: str, trials: int) -> tuple[float, float]:
    """P(p ≤ .05) by one row of each record, and by the newest rows; after half an epoch."""
    by_record, by_row = [], []
    for seed in range(trials):
        corpus = made_corpus(shape, seed, steps=PROFILES)
        step = PROFILES // 4
        chosen = corpus.probes.choose("one", step, ROWS)
        if chosen.tested:
            by_record.append(_p(*sides(corpus, chosen), chosen, seed))
        rows = newest_rows(corpus.plan, "one", step, ROWS)
        held = tuple(range(len(corpus.reserve)))[:: max(1, len(corpus.reserve) // ROWS)][:ROWS]
        picked = Chosen(
            "one",
            rows,
            held,
            tuple(corpus.owners[row] for row in rows),
            tuple(corpus.reserve_owners[row] for row in held),
        )
        if len(rows) > 1 and len(held) > 1:
            by_row.append(_p(*sides(corpus, picked), picked, seed))
    return _share(by_record), _share(by_row)


def _p(ours: Tensor, theirs: Tensor, chosen: Chosen, seed: int) -> float:
    units = chosen.trained_records, chosen.reserve_records
    return p_values(ours, theirs, *units, seed, permutations=_PERMUTATIONS)[0]


def _share(p_values_found: Sequence[float]) -> float:
    return sum(p <= 0.05 for p in p_values_found) / max(1, len(p_values_found))


def runs(count: int, effect: float) -> Iterator[int | None]:
    """For each run: the profile, from 1, that flags something; None if none does.

    With an effect, only the first corpus's flags count, and it alone has it. It grows to its size
    over the first half of the run.
    """
    shapes = [shape for shape in SHAPES if shape != "few"]
    section = Monitoring(every=1, probe_rows=ROWS, bands={"*": Band(low=-BAND, high=BAND)}, fdr=FDR)
    for seed in range(count):
        corpora = {
            f"corpus-{n}": made_corpus(shapes[n % len(shapes)], 1000 * seed + n, steps=PROFILES)
            for n in range(CORPORA)
        }
        story = Incidents(
            section, {name: MonitoredCorpus("trunk", "flag", None, PROFILES) for name in corpora}
        )
        first = None
        for step in range(PROFILES):
            shifts = dict.fromkeys(corpora, 0.0)
            shifts["corpus-0"] = effect * min(1.0, 2 * (step + 1) / PROFILES)
            measures = tuple(
                measured
                for name, corpus in sorted(corpora.items())
                if (measured := _measure(name, corpus, step, shifts[name], seed)) is not None
            )
            if not measures:
                continue
            made = story.take(EntropyProfile(step=step, statistic="composite", measures=measures))
            if first is None and any(not effect or each.corpus == "corpus-0" for each in made):
                first = step + 1
        yield first


def _measure(name: str, corpus: Corpus, step: int, shift: float, seed: int) -> Measure | None:
    chosen = corpus.probes.choose("one", step, ROWS)
    if min(len(chosen.trained), len(chosen.reserve)) < 2:
        return None
    ours, theirs = sides(corpus, chosen)
    ours = ours + shift * float(theirs.std())
    spread = reserve_spread(ours[:, 0], theirs[:, 0])
    end = (BAND * spread).reshape(1)
    e = float(e_values(ours, theirs, -end, end)[0]) if chosen.tested else 1.0
    return Measure(
        corpus=name,
        layer="head",
        probe=Side(rows=len(ours), entropy=0.0),
        reserve=Side(rows=len(theirs), entropy=0.0),
        deviation=float((ours.mean() - theirs.mean()) / spread),
        p=_p(ours, theirs, chosen, 1000 * seed + step),
        permutations=_PERMUTATIONS,
        e=e,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=command.positive, default=1000, help="of each shape")
    parser.add_argument("--runs", type=command.positive, default=200, help="without effect")
    parser.add_argument("--power-runs", type=command.positive, default=50, help="of each effect")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; {options.trials} profiles a shape, {options.runs} runs")
    by_record, by_row = {}, {}
    for shape in SHAPES:
        by_record[shape], by_row[shape] = null(shape, options.trials)
        print(
            f"{shape:18} P(p <= .05): {by_record[shape]:.3f} by one row of each record, "
            f"{by_row[shape]:.3f} by the newest rows"
        )
    power: dict[str, dict[str, float | None]] = {}
    false = 0.0
    for effect in (0.0, *EFFECTS):
        found = list(runs(options.power_runs if effect else options.runs, effect))
        when = [profile for profile in found if profile is not None]
        share = len(when) / len(found)
        if not effect:
            false = share
            print(f"runs that flag a corpus without effect: {share:.3f}")
            continue
        power[f"{effect:g}"] = {
            "flagged": share,
            "profiles_until": median(when) if when else None,
        }
        print(f"an effect of {effect:g} spreads is flagged in:", power[f"{effect:g}"])
    print(
        json.dumps(
            {
                "null": by_record,
                "null_by_rows": by_row,
                "run_false_flags": false,
                "fdr": FDR,
                "band": BAND,
                "profiles": PROFILES,
                "corpora": CORPORA,
                "power": power,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
