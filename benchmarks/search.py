"""``python -m benchmarks.search``: how much sooner ASHA finds a good point than random search.

About 250 small models were trained once (`benchmarks.search_trials`), and measured at five rungs;
the last is 256 times as far as the first. The curves come with the benchmark
(`benchmarks.search_curves`), so a search is replayed in milliseconds. The decisions are those of
`govray tune`. A hundred orders of the points give a hundred searches for each arm and form of ASHA
(`benchmarks.search_race`).

A search has reached the target when its result's loss came down to it for good. The target is the
loss that a fixed share of all points reach at the end of their training. Where there is a limit,
only points within it reach anything. So good points are as rare with the limit as without. Random
search tries the same points in the same order, and all have the same budget.

A search that ended without the target is censored: it would have needed longer, how much is
unknown. Leaving it out would favour a method that gives up early, and counting its end as a success
would too. The expected time is what all searches spent, over the number that reached the target. So
it is the mean time if one restarts independently until the target is reached. The speedup is that
of random search over that of ASHA, with its 95 % percentile bootstrap interval over pairs.

It also prints the exposure of canaries in each search's result. The last line is one JSON object.
``--train 256`` made the curves.

Source: Hansen et al. 2021, "COCO: a platform for comparing continuous optimizers in a black-box
setting" (expected running time, from Price 1997). For exponential times it is the
maximum-likelihood estimate from censored data.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.command import positive, run
from benchmarks.intervals import bootstrap
from benchmarks.research.texts import library
from benchmarks.search_curves import FILE, Curves, make, read
from benchmarks.search_race import ARMS, FORMS, Reached, race, since, target
from govray.errors import CouldNotCheck

SEED = 17
ORDERS = 100
WORKERS = 4
FULL_TRIALS = 64
"""Number of complete trials that the budget allows."""
SHARE = 0.03
"""Of all points: how many are good."""
LIMIT_BITS = 3.0
"""The mean exposure of a result's canaries stays below; one that was never read has 1.44 bits."""

Spent = tuple[float, bool]
"""A search's time until it reached the target, or until its end; and whether it reached it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--orders", type=positive, default=ORDERS, help="searches of each arm")
    parser.add_argument("--workers", type=positive, default=WORKERS, help="trials at once")
    parser.add_argument("--curves", type=Path, default=FILE, help="the file of curves")
    parser.add_argument("--train", type=positive, metavar="COUNT", help="train into --curves")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # models this small are slower on two
    if options.train:
        make(options.curves, library()[0], seed=SEED, count=options.train)
        return
    curves = read(options.curves)
    print(
        f"{len(curves.curves)} curves of seed {curves.seed}, rungs at {curves.rungs}; "
        f"{options.orders} orders, {options.workers} trials at once; M within {curves.tau:.3f}",
        flush=True,
    )
    report = measure(curves, options.orders, options.workers)
    print(table(report))
    print(json.dumps(_strict(report), allow_nan=False))


def _strict(value: Any) -> Any:
    """As JSON has it: null for an infinite time, if no search reached the target."""
    if isinstance(value, Mapping):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def measure(curves: Curves, orders: int, workers: int) -> dict[str, Any]:
    """Replay all arms and forms, and random search for each limit."""
    budget = FULL_TRIALS * curves.rungs[-1]
    tried = []
    for seed in range(1, orders + 1):
        tried.append([*range(len(curves.curves))])
        random.Random(seed).shuffle(tried[-1])  # noqa: S311 — repeatable

    def searches(arm: str, form: str | None) -> list[list[Reached]]:
        return [
            race(curves, order, arm=arm, form=form, tau=curves.tau, workers=workers, budget=budget)
            for order in tried
        ]

    report: dict[str, Any] = {}
    at_random = {arm: searches(arm, None) for arm in ("plain", "governed")}
    for arm in ARMS:
        aim = target(curves, math.inf if arm == "plain" else curves.tau, SHARE)
        theirs = at_random["plain" if arm == "plain" else "governed"]
        report[arm] = {"target": aim}
        for form in FORMS:
            ours = searches(arm, form)
            report[arm][form] = {
                "vs_random": against(ours, theirs, aim),
                "winner": results(curves, tried, ours),
            }
    return report | {
        "curves": len(curves.curves),
        "over_limit": sum(not each[-1].memorization <= curves.tau for each in curves.curves),
        "tau": curves.tau,
        "limit_bits": LIMIT_BITS,
        "share": SHARE,
        "orders": orders,
        "workers": workers,
        "budget_steps": budget,
    }


def against(
    ours: Sequence[Sequence[Reached]], theirs: Sequence[Sequence[Reached]], aim: float
) -> dict[str, Any]:
    """ASHA against random search: expected steps to the target, and the same by the clock."""
    found: dict[str, Any] = {}
    for unit, prefix in (("steps", ""), ("ticks", "clock_")):
        one, other = ([_spent(each, aim, unit) for each in side] for side in (ours, theirs))
        pairs = [*zip(one, other, strict=True)]
        found |= {
            f"{prefix}speedup": _speedup(pairs),
            f"{prefix}interval": list(bootstrap(pairs, _speedup)),
            f"{prefix}expected": _expected(one),
            f"{prefix}expected_of_random": _expected(other),
        }
    found["reached"] = sum(reached for _, reached in one)
    found["reached_by_random"] = sum(reached for _, reached in other)
    return found


def _spent(found: Sequence[Reached], aim: float, unit: str) -> Spent:
    reached = found[-1].loss <= aim
    return getattr(since(found, aim) if reached else found[-1], unit), reached


def _expected(searches: Sequence[Spent]) -> float:
    """The expected time to the target; infinite if no search reached it."""
    reached = sum(each for _, each in searches)
    return sum(time for time, _ in searches) / reached if reached else math.inf


def _speedup(pairs: Sequence[tuple[Spent, Spent]]) -> float:
    """How many times faster the first of each pair is; NaN if no search reached the target."""
    ours, theirs = (_expected([pair[side] for pair in pairs]) for side in (0, 1))
    return math.nan if math.isinf(ours) and math.isinf(theirs) else theirs / ours


def results(
    curves: Curves, tried: Sequence[Sequence[int]], searches: Sequence[Sequence[Reached]]
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
            bits.append(curves.curves[place][curves.rungs.index(end.step)].exposure)
            if math.isnan(bits[-1]):
                unranked.add((curves.numbers[place], end.step))
    known = [each for each in bits if math.isfinite(each)]
    if not known:
        raise CouldNotCheck("no search found a trial within the limit", do="Take other curves")
    return {
        "exposure_mean": mean(known),
        "exposure_most": max(known),
        "results": len(bits),
        "unranked": sorted(unranked),
        "within": sum(each < LIMIT_BITS for each in known),
    }


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
    lines.append(f"{report['over_limit']} of {report['curves']} curves end beyond the limit")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main))
