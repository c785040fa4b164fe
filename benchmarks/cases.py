"""What every step benchmark trains on, whatever computes the gradients: sizes, policies, shares.

Invariants:

* Every rank holds equally many rows. A step's rows, in order of profile, go to the ranks in turn.
  So a profile's rows differ by at most one between ranks.
* Shares are rounded once, over all ranks, by largest remainder.
* Where adapters take turns, each that is due has one row, or as many more as there are rows.

Neither torch nor JAX is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from govray.errors import UsageError
from govray.governance.policy.route import Route
from govray.governance.policy.selector import parse_selector

SEED = 17
ADAPTER_NAME = "supplier"
ADAPTER_RANK = 8
LEARNING_RATE = 3e-4

EVERYTHING, UPPER_HALF, REMOVABLE = "everything", "upper_half", "removable"
LOWER_HALF = "lower_half"

CASES: Mapping[str, Mapping[str, float]] = {
    "allow_all": {EVERYTHING: 1.0},
    "mix_50_30_20": {EVERYTHING: 0.5, UPPER_HALF: 0.3, REMOVABLE: 0.2},
    "upper_50": {EVERYTHING: 0.5, UPPER_HALF: 0.5},
    "upper_90": {EVERYTHING: 0.1, UPPER_HALF: 0.9},
}
"""Case → profile → share of the rows."""

MORE_CASES: Mapping[str, Mapping[str, float]] = {
    "two_domains": {LOWER_HALF: 0.5, UPPER_HALF: 0.5},
    "adapters_100": {EVERYTHING: 0.5, REMOVABLE: 0.5},
}
"""Those that run by default on a GPU only."""

ALL_CASES: Mapping[str, Mapping[str, float]] = {**CASES, **MORE_CASES}

TAKING_TURNS: Mapping[str, int] = {"adapters_100": 100}
"""Case → adapters that share the rows of ``REMOVABLE``; each is read every few steps."""


@dataclass(frozen=True)
class Shape:
    """Size of the built-in GPT and of a rank's batch.

    Attributes:
        blocks: Transformer blocks.
        width: Channels of the residual stream.
        tokens: Loss targets of a row.
        rows: Rows of a rank in one step.
        vocabulary: Token ids; 257 is every byte and a separator.
    """

    blocks: int = 8
    width: int = 256
    tokens: int = 128
    rows: int = 16
    vocabulary: int = 257

    def __str__(self) -> str:
        return (
            f"GPT of {self.blocks} blocks, width {self.width}, vocabulary {self.vocabulary}, "
            f"{self.rows} rows of {self.tokens} tokens a rank"
        )


def row_counts(case: str, total: int, step: int) -> dict[str, int]:
    """Profile → rows over all ranks of a step.

    Args:
        case: A name in ``ALL_CASES``.
        total: Rows of the step.
        step: It matters where adapters take turns only.

    Raises:
        UsageError: There are too few rows to give every profile one.
    """
    counts = share_rows(ALL_CASES[case], total)
    if adapters := TAKING_TURNS.get(case):
        rows = counts.pop(REMOVABLE)
        for row in range(rows):
            profile = f"{REMOVABLE}_{(step * rows + row) % adapters}"
            counts[profile] = counts.get(profile, 0) + 1
    return counts


def deal(
    counts: Mapping[str, int], rank: int, world_size: int
) -> tuple[dict[str, slice], dict[str, tuple[int, ...]]]:
    """A rank's part of a step's rows, which go to the ranks in turn.

    Args:
        counts: Profile → rows over all ranks, in order.
        rank: This one.
        world_size: Number of ranks.

    Returns:
        Profile → its rows among this rank's, possibly an empty span. And profile → index of each of
        these rows among the step's rows of it.
    """
    spans: dict[str, slice] = {}
    positions: dict[str, tuple[int, ...]] = {}
    first, taken = 0, 0
    for profile, count in counts.items():
        own = [i - first for i in range(first, first + count) if i % world_size == rank]
        spans[profile] = slice(taken, taken + len(own))
        positions[profile] = tuple(own)
        first, taken = first + count, taken + len(own)
    return spans, positions


def case_routes(case: str, groups: Mapping[str, object]) -> dict[str, Route]:
    """Profile → route, for the profiles of a case.

    Args:
        case: A name in ``ALL_CASES``.
        groups: By layer group, in canonical order.
    """
    profiles = [*ALL_CASES[case]]
    if adapters := TAKING_TURNS.get(case):
        profiles.remove(REMOVABLE)
        profiles += [f"{REMOVABLE}_{number}" for number in range(adapters)]
    return {profile: route(profile, groups) for profile in profiles}


def route(profile: str, groups: Mapping[str, object]) -> Route:
    """The route of a profile."""
    if profile == EVERYTHING:
        return Route(dict.fromkeys(groups, 1.0))
    if profile in (UPPER_HALF, LOWER_HALF):
        upper = parse_selector("blocks[0.5:]").select(groups) | {"final_norm", "head"}
        return Route({g: 1.0 for g in groups if (g in upper) == (profile == UPPER_HALF)})
    return Route({}, ADAPTER_NAME + profile.removeprefix(REMOVABLE), ADAPTER_RANK)


def share_rows(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Split ``total`` rows by shares that sum to 1, by largest remainder.

    Raises:
        UsageError: There are too few rows to give every profile one.
    """
    counts = {profile: int(share * total + 1e-9) for profile, share in shares.items()}
    by_remainder = sorted(shares, key=lambda profile: counts[profile] - shares[profile] * total)
    for profile in by_remainder[: total - sum(counts.values())]:
        counts[profile] += 1
    if not all(counts.values()):
        raise UsageError(
            f"{total} rows are too few for shares of {', '.join(map(str, shares.values()))}",
            do="Give each rank more rows",
        )
    return counts
