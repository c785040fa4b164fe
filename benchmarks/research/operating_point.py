"""``python -m benchmarks.research.operating_point``: what each tolerance would flag.

Small models train on texts of which some are read once, and others 2 to 32 times. By default these
are the product's GPT, and this Python's code and prose of its packages; ``--family`` and
``--texts`` choose others. The monitor is the product's, at the cadence, rows and level that
`policies/licences.yaml` ships. One run tells what it would have decided at every tolerance
(`govray.governance.record.operating_curve`, as ``govray policy calibrate`` draws it).

A corpus of records that are read equally often stands for "read so often". A corpus of which only a
share is read 32 times, and the rest twice, stands for "that share". Each is tested beside the clean
corpora, which are read once at most. With ``--reads``, ``--records`` and ``--rows`` a run is
shorter or longer. A record of several rows is known by the mean of theirs, as in the product, once
all were read. Of a record of a clean corpus one row counts.

Prints a table and, as its last line, one JSON object. ``points`` has for each of the odds
``false_flags`` of ``clean`` corpora, and ``corpora``. Of each of these it has ``caught`` of
``runs``, and ``profiles_until``, the median of those that were caught. ``shipped`` is the
tolerance that the policy names. ``smallest_share`` is the smallest share of a corpus that every run
caught, by the odds. ``intervals`` has the exact 95 % intervals at the shipped tolerance: of runs
that caught a corpus, and of read-once corpora that were flagged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks.command import names, positive, run
from benchmarks.intervals import exact
from benchmarks.research.runs import (
    FAMILIES,
    LEVELS,
    QUICK_LEVELS,
    REPEATED,
    SEEDS,
    Data,
    Family,
    Reading,
    Recipe,
    build,
    designated,
    train,
)
from benchmarks.research.texts import KINDS
from benchmarks.research.watch import Numbered, monitor_of, newest, probe, shipped
from govray.engine.memorization.monitor import Monitor
from govray.engine.memorization.probe_sharing import Probe
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record import e_process
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.operating_curve import ODDS, ObservedRun, Point, curve

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Of a corpus's records: those that are read as often as any."""


@dataclass(frozen=True)
class Observed:
    """One training run.

    Attributes:
        profiles: Of all corpora.
        clean: Names of those read once at most.
        repeated: Names of the others.
    """

    profiles: Sequence[EntropyProfile]
    clean: tuple[str, ...]
    repeated: tuple[str, ...]


class Observation:
    """Measures every corpus of a run when a profile is due.

    Args:
        recipe: Sizes; ``reads`` says how often records are read.
        data: The seed's.
        reading: What the run reads.
        section: The policy's.
        only: Of the numbers of reads, the one that is measured; None for all.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        reading: Reading,
        section: Monitoring,
        only: int | None = None,
    ) -> None:
        self._reads = recipe.reads
        self._measured = (only,) if only else self._reads
        self._rows = recipe.rows_each
        self._data = data
        self._reading = reading
        self._section = section
        self._shares = SHARES if len(self._measured) > 1 else ()
        self.profiles: list[EntropyProfile] = []

    @property
    def repeated(self) -> tuple[str, ...]:
        """The names of corpora that are read again and again."""
        return (*map(_often, self._measured), *map(_shared, self._shares))

    def after(self, step: int, monitor: Monitor) -> None:
        """Make the profile that is due after a step, if one is."""
        if not self._section.due(step):
            return
        probes = [self._clean(name, step) for name in self._data.clean]
        probes += [self._level(_often(reads), step, {reads: 1.0}) for reads in self._measured]
        low, high = min(self._reads), max(self._reads)
        for share in self._shares:
            parts = {high: share, low: 1.0 - share} if share < 1 else {high: 1.0}
            probes.append(self._level(_shared(share), step, parts))
        ready = [each for each in probes if each is not None]
        if ready:
            ready.sort(key=lambda each: each.corpus)
            self.profiles.append(monitor.profile(step, ready, section=self._section))

    def _clean(self, name: str, step: int) -> Probe | None:
        corpus, count = self._data.clean[name], self._section.probe_rows
        own = [
            (number, (row,))
            for number, row in reversed(self._reading.read[name])
            if row == designated(name, number, corpus.trained[number])
        ]
        held = [
            (number, (designated(f"reserve of {name}", number, record),))
            for number, record in enumerate(corpus.reserve)
        ]
        return probe(name, step, count, newest(own, count), held)

    def _level(self, name: str, step: int, shares: Mapping[int, float]) -> Probe | None:
        """Records that are read so often, in these shares of the probe's rows."""
        ours: list[Numbered] = []
        texts, read = self._data.repeated, self._reading.read[REPEATED]
        count = self._section.probe_rows
        rows_read: dict[int, set[tuple[int, ...]]] = {}
        for number, row in read:
            rows_read.setdefault(number, set()).add((*row,))
        for reads, share in shares.items():
            level = self._reads.index(reads)
            own = [
                (number, texts.trained[number][: self._rows])
                for number, _ in reversed(read)
                if number % len(self._reads) == level and len(rows_read[number]) == self._rows
            ]
            ours += newest(own, round(share * count))
        held = [(number, record[: self._rows]) for number, record in enumerate(texts.reserve)]
        return probe(name, step, count, ours, held)


def _often(reads: int) -> str:
    return f"read-{reads}"


def _shared(share: float) -> str:
    return f"share-{share:g}"


def observe(
    family: Family,
    recipe: Recipe,
    data: Data,
    seed: int,
    section: Monitoring,
    only: int | None = None,
) -> Observed:
    """Train once, and measure at every profile that is due."""
    torch.manual_seed(seed)
    model = family(recipe)
    monitor = monitor_of(model, seed)
    reading = Reading(recipe, data, seed)
    watch = Observation(recipe, data, reading, section, only)
    train(model, recipe, reading, lambda step: watch.after(step, monitor))
    return Observed(watch.profiles, tuple(sorted(data.clean)), watch.repeated)


def points(
    observed: Sequence[Observed], section: Monitoring, steps: int, odds: Sequence[float]
) -> dict[str, tuple[Point, ...]]:
    """Repeated corpus → its curve, beside the clean corpora of its domain."""
    found = {}
    for name in observed[0].repeated:
        runs = []
        for each in observed:
            subjects = {
                corpus: MonitoredCorpus(
                    "trunk", "flag", profiles=e_process.profiles_of(section, corpus, steps)
                )
                for corpus in (*each.clean, name)
            }
            runs.append(
                ObservedRun(
                    section=section, subjects=subjects, profiles=each.profiles, clean=each.clean
                )
            )
        found[name] = curve(runs, odds)
    return found


def report(found: Mapping[str, Sequence[Point]], chosen: float) -> dict[str, Any]:
    """The figures, by the odds."""
    by_odds: dict[str, Any] = {}
    smallest: dict[str, float | None] = {}
    for place, first in enumerate(next(iter(found.values()))):
        odds = f"{first.odds:g}"
        corpora = {}
        for name, curve_of in found.items():
            until = curve_of[place].until.get(name, ())
            caught = [each for each in until if each is not None]
            corpora[name] = {
                "caught": len(caught),
                "runs": len(until),
                "profiles_until": median(caught) if caught else None,
            }
        shares = [
            share
            for share in SHARES
            if (each := corpora.get(_shared(share))) and each["caught"] == each["runs"]
        ]
        smallest[odds] = min(shares, default=None)
        by_odds[odds] = {
            # Beside the corpus of most evidence, which loosens e-BH for the others.
            "false_flags": max(curve_of[place].false_flags for curve_of in found.values()),
            "clean": first.clean,
            "corpora": corpora,
        }
    at = by_odds[f"{chosen:g}"]
    intervals = {
        name: exact(each["caught"], each["runs"])
        for name, each in at["corpora"].items()
        if each["runs"]
    }
    if at["clean"]:
        intervals["once"] = exact(at["false_flags"], at["clean"])
    return {
        "shipped": chosen,
        "points": by_odds,
        "smallest_share": smallest,
        "intervals": intervals,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.research.operating_point", description=__doc__
    )
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="40 steps: nothing is memorized")
    parser.add_argument("--family", choices=FAMILIES, default="gpt", help="of models")
    parser.add_argument("--texts", type=names(KINDS), default=["code", "prose"], help="what trains")
    parser.add_argument("--reads", type=positive, nargs="+", default=list(LEVELS.reads))
    parser.add_argument("--records", type=positive, default=50, help="for each number of reads")
    parser.add_argument("--only", type=positive, help="measure those of this number of reads")
    parser.add_argument("--rows", type=positive, default=1, help="of each of these records")
    options = parser.parse_args(argv)
    section = shipped()
    recipe = replace(
        LEVELS,
        reads=tuple(options.reads),
        rows_each=options.rows,
        repeated=options.records * len(options.reads),
        steps=options.records * options.rows * sum(options.reads) // LEVELS.repeated_rows,
    )
    if options.only not in (None, *options.reads):
        parser.error(f"--only {options.only} is not among --reads")
    if options.quick:
        recipe = replace(QUICK_LEVELS, repeated=40, rows_each=options.rows)
        section = section.model_copy(
            update={"every": QUICK_LEVELS.every, "probe_rows": QUICK_LEVELS.probe_rows}
        )
    section = section.model_copy(update={"turns": 1, "actions": {}})
    shipped_odds = section.tolerance("head")
    assert shipped_odds is not None
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; seeds {options.seeds}", flush=True)
    observed = []
    for name in options.texts:
        kind = KINDS[name](recipe.clean)
        # All of equally many rows, so that no side has the longer records.
        least = recipe.rows_each * (recipe.context + 1) - 1
        pool = [text for text in kind.pool if len(text.encode()) >= least]
        for seed in options.seeds:
            began = time.perf_counter()
            data = build(recipe, seed, pool, kind.packages)
            family = FAMILIES[options.family]
            observed.append(observe(family, recipe, data, seed, section, options.only))
            told = f"{name}, seed {seed}: {time.perf_counter() - began:.0f} s"
            print(told, file=sys.stderr, flush=True)
    figures = report(points(observed, section, recipe.steps, ODDS), shipped_odds)
    print(_table(figures))
    print(json.dumps(figures))


def _table(figures: Mapping[str, Any]) -> str:
    names = list(next(iter(figures["points"].values()))["corpora"])
    lines = [f"{'odds':>6}  {'clean flagged':>14}  " + "  ".join(f"{name:>14}" for name in names)]
    for odds, point in figures["points"].items():
        cells = []
        for name in names:
            each = point["corpora"][name]
            after = f" ({each['profiles_until']:g})" if each["caught"] else ""
            cells.append(f"{each['caught']}/{each['runs']}{after}")
        flags = f"{point['false_flags']} of {point['clean']}"
        lines.append(f"{odds:>6}  {flags:>14}  " + "  ".join(f"{c:>14}" for c in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
