"""What a supplier can do so that the monitor misses a memorized corpus, and what it costs.

    python -m benchmarks.research.evasion

No model is trained: records get scores, as in `benchmarks.research.null`. The package's own code
chooses rows, ranks them and decides, as the shipped policy says. The corpus is the first of ten in
its domain. The model knows its records by heart: they score two standard deviations higher once
they were read. The supplier hands in something else beside them:

* ``garbage``: records of random bytes, which lie far out;
* ``fillers``: a row in each record that nobody could learn by heart;
* ``twins``: near copies of a share of the records. Copies of held-back ones are trained on then;
* ``merged``: the same text as few long records;
* ``second``: another supplier hands in the whole corpus once more.

``cost`` is the share of the supplier's tokens that carry nothing for them. ``flagged`` is the share
of runs that flag the corpus. ``split_by_record`` is that where near copies are not kept on one
side. ``named`` tells that the attestation calls the corpus unmeasurable.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks import command
from benchmarks.research.watch import every_step
from benchmarks.research.worlds import (
    CORPORA,
    PROFILES,
    Corpus,
    Sides,
    Story,
    by_record,
    made_corpus,
    plain,
    sides,
)
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record import e_process
from govray.governance.record.incidents import LEAST_ROWS

RECORDS = 500
KNOWN = 2.0
"""How much higher a record scores once it was read, in standard deviations of its score."""


@dataclass(frozen=True)
class HandedIn:
    """What a supplier hands in.

    Attributes:
        lengths: Rows of each record.
        texts: Which text each record is, by number; near copies are one text.
        learnt: By how much a record scores higher once one of its text was read.
        scores: Of each record before.
        cost: The share of tokens that carry nothing for the supplier.
        apart: Whether another corpus has all the texts, too.
    """

    lengths: Sequence[int]
    texts: Sequence[int]
    learnt: Sequence[float]
    scores: Sequence[float]
    cost: float = 0.0
    apart: bool = False


def honest(draw: random.Random) -> HandedIn:
    """The corpus as it is."""
    scores = plain(draw, range(RECORDS))
    return HandedIn([3] * RECORDS, range(RECORDS), [KNOWN] * RECORDS, scores)


def garbage(draw: random.Random, share: float) -> HandedIn:
    """Records of random bytes, so large a share of all."""
    junk = round(RECORDS * share / (1 - share))
    own = honest(draw)
    return HandedIn(
        [3] * (RECORDS + junk),
        range(RECORDS + junk),
        [*own.learnt, *[0.0] * junk],
        [*own.scores, *(-14 * (1 + draw.random()) for _ in range(junk))],
        cost=share,
    )


def fillers(draw: random.Random, share: float) -> HandedIn:
    """Rows that can't be learnt, so large a share of each record: its row may be one of them."""
    own = honest(draw)
    learnt = [KNOWN * (draw.random() >= share) for _ in range(RECORDS)]
    return HandedIn(own.lengths, own.texts, learnt, own.scores, cost=share)


def twins(draw: random.Random, share: float) -> HandedIn:
    """Near copies of a share of the records."""
    own, copies = honest(draw), round(RECORDS * share)
    return HandedIn(
        [3] * (RECORDS + copies),
        [*range(RECORDS), *range(copies)],
        [KNOWN] * (RECORDS + copies),
        [*own.scores, *own.scores[:copies]],
        cost=copies / (RECORDS + copies),
    )


def merged(draw: random.Random, records: int) -> HandedIn:
    """The same text in few records."""
    rows = 3 * RECORDS // records
    return HandedIn(
        [rows] * records, range(records), [KNOWN] * records, plain(draw, range(records))
    )


def second(draw: random.Random) -> HandedIn:
    """Another supplier hands in the same corpus."""
    own = honest(draw)
    return HandedIn(own.lengths, own.texts, own.learnt, own.scores, cost=1.0, apart=True)


ATTACKS = {
    "honest": honest,
    "garbage 3 %": lambda draw: garbage(draw, 0.03),
    "garbage 12 %": lambda draw: garbage(draw, 0.12),
    "garbage 25 %": lambda draw: garbage(draw, 0.25),
    "fillers 50 %": lambda draw: fillers(draw, 0.5),
    "fillers 75 %": lambda draw: fillers(draw, 0.75),
    "twins 25 %": lambda draw: twins(draw, 0.25),
    "twins 100 %": lambda draw: twins(draw, 1.0),
    "merged to 50": lambda draw: merged(draw, 50),
    "merged to 5": lambda draw: merged(draw, 5),
    "second": second,
}


def flagged(
    given: HandedIn, seed: int, section: Monitoring, *, by_family: bool
) -> tuple[bool, bool]:
    """Whether a run flags the corpus, and whether it could."""
    families = [given.texts.index(text) for text in given.texts] if by_family else None
    corpus = made_corpus(given.lengths, given.scores, f"evasion {seed}", families=families)
    names = [f"corpus-{number}" for number in range(CORPORA)]
    others = {name: _other(name, seed) for name in names[1:]}
    possible = e_process.measurable(section, len(set(corpus.owners)), len(set(corpus.held)))
    story = Story(section, names if possible else names[1:])
    for step in range(PROFILES):
        found = {n: s for n, c in others.items() if (s := sides(c, step, section.probe_rows))}
        own = _sides(given, corpus, step, section.probe_rows, by_family=by_family)
        if possible and own is not None:
            found[names[0]] = own
        story.take(step, found)
    return names[0] in story.flagged, possible


@lru_cache(maxsize=1024)
def _other(name: str, seed: int) -> Corpus:
    """Another supplier's corpus, without effect."""
    draw = random.Random(f"{name} {seed}")  # noqa: S311 - a simulation
    return made_corpus([3] * 100, plain(draw, range(100)), f"{name} {seed}")


def _sides(
    given: HandedIn, corpus: Corpus, step: int, rows: int, *, by_family: bool
) -> Sides | None:
    chosen = corpus.probes.choose("one", step, rows)
    if min(len(chosen.trained), len(chosen.reserve)) < LEAST_ROWS:
        return None
    trained, ours = by_record(chosen.trained, corpus.owners, corpus.train)
    held, theirs = by_record(chosen.reserve, corpus.held, corpus.reserve)
    learnt = np.array(given.learnt)
    read = {given.texts[record] for record in corpus.owners}
    copied = given.apart and not by_family
    known = [copied or given.texts[record] in read for record in held]
    return ours + learnt[trained], theirs + learnt[held] * known, chosen.tested


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=command.positive, default=40, help="of each attack")
    options = parser.parse_args()
    section = every_step()
    table: dict[str, dict[str, Any]] = {}
    for name, attack in ATTACKS.items():
        shares = {}
        for by_family in (True, False):
            found = []
            for seed in range(options.runs):
                given = attack(random.Random(f"{name} {seed}"))  # noqa: S311 - a simulation
                found.append(flagged(given, seed, section, by_family=by_family))
            shares[by_family] = sum(each for each, _ in found) / len(found)
        table[name] = {
            "cost": round(given.cost, 3),
            "flagged": shares[True],
            "split_by_record": shares[False],
            "named": not any(possible for _, possible in found),
        }
        print(f"{name:14}", table[name], flush=True)
    print(json.dumps({"runs": options.runs, "known": KNOWN, "attacks": table}))


if __name__ == "__main__":
    sys.exit(command.run(main))
