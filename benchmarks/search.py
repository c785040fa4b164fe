"""``python -m benchmarks.search``: how much sooner ASHA finds a good point than random search.

About 250 small models were trained once (`benchmarks.search_trials`), and measured at five rungs;
the last is 256 times as far as the first. The curves come with the benchmark
(`benchmarks.search_cache`), so a search is replayed in milliseconds. The decisions are those of
`govray tune`. A hundred orders of the points give a hundred searches for each arm
(`benchmarks.search_replay`) and form of ASHA.

A search has reached the target when its result's loss came down to it for good. The target is the
loss that a fixed share of all points reach at the end of their training. Where there is a limit,
only points within it reach anything. So good points are as rare with the limit as without. Random
search tries the same points in the same order, and all have the same budget. Searches that end
without the target are censored (`benchmarks.expected_time`). The speedup is the expected number of
steps of random search over that of ASHA.

It also prints how well a rung predicts the end, by Spearman's rank correlation of the objectives.
And it prints the exposure of canaries in each search's result. The last line is one JSON object.

``--train 256`` made the curves; ``--again 7`` trains one of them anew and says how far it is off.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks import search_cache, search_replay
from benchmarks.command import positive, run
from benchmarks.expected_time import Spent, expected, speedup
from benchmarks.memorization_data import library
from benchmarks.search_cache import FILE, Cached
from benchmarks.search_race import Reached, since
from benchmarks.search_replay import ARMS, FORMS
from benchmarks.search_trials import DIVISOR, Space, train
from benchmarks.upsampling_trials import build
from govray.errors import CouldNotCheck, UsageError

SEED = 17
ORDERS = 100
WORKERS = 4
FULL_TRIALS = 64
"""Number of complete trials that the budget allows."""
SHARE = 0.03
"""Of all points: how many are good."""
LIMIT_BITS = 3.0
"""The mean exposure of a result's canaries stays below; one that was never read has 1.44 bits."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--orders", type=positive, default=ORDERS, help="searches of each arm")
    parser.add_argument("--workers", type=positive, default=WORKERS, help="trials at once")
    parser.add_argument("--curves", type=Path, default=FILE, help="the file of curves")
    parser.add_argument("--train", type=positive, metavar="COUNT", help="train into --curves")
    parser.add_argument("--again", type=int, metavar="NUMBER", help="train one curve anew")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # models this small are slower on two
    if options.train:
        docstrings, _ = library()
        search_cache.make(
            options.curves, Space(), docstrings, seed=SEED, count=options.train, say=_say
        )
        return
    cached = search_cache.read(options.curves)
    if options.again is not None:
        print(json.dumps(again(cached, Space(), options.again)))
        return
    print(
        f"{search_replay.size(cached)} curves of seed {cached.seed}, rungs at {cached.rungs}; "
        f"{options.orders} orders, {options.workers} trials at once; M within {cached.tau:.3f}",
        flush=True,
    )
    report = measure(cached, tau=cached.tau, orders=options.orders, workers=options.workers)
    print(table(report))
    print(json.dumps(_strict(report), allow_nan=False))


def _strict(value: Any) -> Any:
    """As JSON has it: null for an infinite time, if no search reached the target."""
    if isinstance(value, Mapping):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def again(cached: Cached, space: Space, number: int) -> dict[str, Any]:
    """Train a curve anew: how far its losses and M are from the cached ones, at most.

    Raises:
        UsageError: There is no such curve.
        CouldNotCheck: This Python's library has other data than the one of the cached curves.
    """
    if number not in cached.numbers:
        raise UsageError(
            f"there is no curve {number}",
            do=f"Give a number from {cached.numbers[0]} to {cached.numbers[-1]}",
        )
    docstrings, _ = library()
    if not search_cache.same_data(cached, space, docstrings):
        raise CouldNotCheck(
            "this Python's library has other docstrings than the curves were trained on",
            do="Use the Python version that the first line of the file names",
        )
    data = build(space.sizes, cached.seed, docstrings)
    found = train(space, data, search_cache.point(space, cached.seed, number), cached.seed)
    kept = cached.curves[cached.numbers.index(number)]
    pairs = list(zip(found, kept, strict=True))
    return {
        "number": number,
        "loss_off": max(_apart(a.loss, b.loss) for a, b in pairs),
        "memorization_off": max(_apart(a.memorization, b.memorization) for a, b in pairs),
    }


def _apart(one: float, other: float) -> float:
    same = one == other or (math.isnan(one) and math.isnan(other))
    return 0.0 if same else abs(one - other)


def measure(cached: Cached, *, tau: float, orders: int, workers: int) -> dict[str, Any]:
    """Replay all arms and forms, and random search for each limit."""
    budget = FULL_TRIALS * cached.rungs[-1]
    tried = search_replay.orders(orders, search_replay.size(cached))

    def searches(arm: str, form: str | None) -> list[list[Reached]]:
        return [
            search_replay.searched(
                cached,
                order,
                arm=arm,
                form=form,
                tau=tau,
                divisor=DIVISOR,
                workers=workers,
                budget=budget,
            )
            for order in tried
        ]

    report: dict[str, Any] = {}
    at_random = {arm: searches(arm, None) for arm in ("plain", "governed")}
    for arm in ARMS:
        limit = math.inf if arm == "plain" else tau
        aim = search_replay.target(cached, limit, SHARE)
        theirs = at_random["plain" if arm == "plain" else "governed"]
        report[arm] = {"target": aim, "spearman": spearman_by_rung(cached, limit)}
        for form in FORMS:
            ours = searches(arm, form)
            report[arm][form] = {
                "vs_random": against(ours, theirs, aim),
                "winner": results(cached, tried, ours),
                "starts": mean(each[-1].starts for each in ours),
            }
    over = sum(each.v > 0 for each in search_replay.at(cached, -1, tau))
    report |= {
        "curves": search_replay.size(cached),
        "over_limit": over,
        "tau": tau,
        "limit_bits": LIMIT_BITS,
        "share": SHARE,
        "orders": orders,
        "workers": workers,
        "budget_steps": budget,
    }
    return report


def against(
    ours: Sequence[Sequence[Reached]], theirs: Sequence[Sequence[Reached]], aim: float
) -> dict[str, Any]:
    """ASHA against random search: expected steps to the target, and the same by the clock."""
    found: dict[str, Any] = {}
    for unit, prefix in (("steps", ""), ("ticks", "clock_")):
        one, other = ([spent(each, aim, unit) for each in side] for side in (ours, theirs))
        faster = speedup(one, other)
        found |= {
            f"{prefix}speedup": faster.ratio,
            f"{prefix}interval": list(faster.interval),
            f"{prefix}expected": expected(one),
            f"{prefix}expected_of_random": expected(other),
        }
    found["reached"] = sum(each.reached for each in one)
    found["reached_by_random"] = sum(each.reached for each in other)
    return found


def spent(found: Sequence[Reached], aim: float, unit: str) -> Spent:
    """How long a search took to the target, in ``steps`` or ``ticks``, or until its end."""
    reached = found[-1].loss <= aim
    at = since(found, aim) if reached else found[-1]
    return Spent(getattr(at, unit), reached)


def results(
    cached: Cached, tried: Sequence[Sequence[int]], searches: Sequence[Sequence[Reached]]
) -> dict[str, Any]:
    """The exposure of each search's result, in bits.

    A search may end without a result, or with one of a rung where its canaries were not ranked.
    ``unranked`` has the curve and step of such a one. Neither counts as within the limit.

    Raises:
        CouldNotCheck: No search has a result.
    """
    bits, unranked = [], set()
    for order, found in zip(tried, searches, strict=True):
        end = found[-1]
        if end.best is not None:
            place = order[int(end.best)]
            bits.append(cached.curves[place][cached.rungs.index(end.step)].exposure)
            if math.isnan(bits[-1]):
                unranked.add((cached.numbers[place], end.step))
    known = [each for each in bits if math.isfinite(each)]
    if not known:
        raise CouldNotCheck("no search found a trial within the limit", do="Take other curves")
    within = sum(each < LIMIT_BITS for each in known)
    return {
        "exposure_mean": mean(known),
        "exposure_most": max(known),
        "results": len(bits),
        "unranked": sorted(unranked),
        "within": within,
        "within_in_every_seed": within == len(searches),
    }


def spearman_by_rung(cached: Cached, tau: float) -> list[float]:
    """The rank correlation of each rung's objective but the last's with the last's."""
    ends = [each.objective for each in search_replay.at(cached, -1, tau)]
    return [
        spearman([each.objective for each in search_replay.at(cached, rung, tau)], ends)
        for rung in range(len(cached.rungs) - 1)
    ]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values have the mean of their ranks.

    NaN where all values of a side are equal.
    """
    a, b = _ranks(one), _ranks(other)
    middle = (len(a) - 1) / 2
    both = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return both / math.sqrt(spread) if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    below = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(below)))}
    count = dict.fromkeys(below, 0)
    for value in below:
        count[value] += 1
    return [first[value] + (count[value] - 1) / 2 for value in values]


def table(report: Mapping[str, Any]) -> str:
    """The arms, one line for each form."""
    lines = [
        f"{'arm':<14}{'form':<11}{'speedup':>8}{'95 %':>16}{'by clock':>10}{'reached':>9}"
        f"{'random':>8}{'exposure':>10}{'most':>6}{'within':>8}"
    ]
    for arm in ARMS:
        for form in FORMS:
            found = report[arm][form]
            against, winner = found["vs_random"], found["winner"]
            low, high = against["interval"]
            lines.append(
                f"{arm:<14}{form:<11}{against['speedup']:>8.2f}{f'[{low:.2f}, {high:.2f}]':>16}"
                f"{against['clock_speedup']:>10.2f}{against['reached']:>9}"
                f"{against['reached_by_random']:>8}{winner['exposure_mean']:>10.2f}"
                f"{winner['exposure_most']:>6.2f}{winner['within']:>8}"
            )
    for arm in ("plain", "governed"):
        shown = ", ".join(f"{each:.2f}" for each in report[arm]["spearman"])
        lines.append(f"rank correlation with the last rung, {arm}: {shown}")
    lines.append(f"{report['over_limit']} of {report['curves']} curves end beyond the limit")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
