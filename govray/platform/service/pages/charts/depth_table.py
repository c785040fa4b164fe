"""The depth policy drawn over one model's layers: which profile lets a gradient how deep. Pure.

Rows are what the run resolved, not what the policy's source says: two corpora with the same
profile and the same weights are one row. Profiles that no corpus of the run used are named by
their rules only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from govray.governance.policy.depth_policy import Match, Policy
from govray.governance.policy.route import ADAPTER
from govray.platform.store.lineage import Lineage

ClosedSteps: TypeAlias = tuple[tuple[int, int], ...]

_Drawn: TypeAlias = tuple[str, tuple[float | None, ...], tuple[ClosedSteps, ...]]


@dataclass(frozen=True)
class DepthRow:
    """A profile over the model.

    Attributes:
        weights: By group: the largest of any phase, None where it gives no gradient.
        closed: By group: half-open ranges of steps whose phase gives none, where others do.
    """

    profile: str
    corpora: int
    weights: tuple[float | None, ...]
    closed: tuple[ClosedSteps, ...]
    adapters: tuple[str, ...]


@dataclass(frozen=True)
class RuleRow:
    """A rule of the policy in words, and the profile that it gives."""

    rule: str
    matches: str
    profile: str


def depth_rows(document: Lineage) -> tuple[tuple[str, ...], tuple[DepthRow, ...]]:
    """The base groups in model order, and a row for each resolved profile."""
    groups = tuple(each.group for each in document.groups if each.kind == "base")
    found: dict[_Drawn, tuple[int, set[str]]] = {}
    for row in document.corpora:
        cells = {cell.group: cell.weight for cell in row.cells}
        closed = {cell.group: cell.closed or () for cell in row.cells}
        key = (
            row.profile,
            tuple(cells.get(group) for group in groups),
            tuple(closed.get(group, ()) for group in groups),
        )
        number, adapters = found.get(key, (0, set()))
        adapters |= {
            name.removeprefix(ADAPTER)
            for name, weight in cells.items()
            if weight is not None and name.startswith(ADAPTER)
        }
        found[key] = number + 1, adapters
    rows = [
        DepthRow(profile, number, weights, closed, tuple(sorted(adapters)))
        for (profile, weights, closed), (number, adapters) in found.items()
    ]
    rows.sort(key=lambda row: (-sum(w or 0 for w in row.weights), row.profile))
    return groups, tuple(rows)


def rule_rows(policy: Policy) -> tuple[RuleRow, ...]:
    """The policy's rules, in its own order."""
    return tuple(RuleRow(rule.name, _words(rule.match), rule.profile) for rule in policy.rules)


def _words(match: Match) -> str:
    stated = match.to_json()
    parts = [
        f"{_spaced(name)} {' or '.join(values) if isinstance(values, list) else values}"
        for name, values in stated.items()
    ]
    return "; ".join(parts) or "everything"


def _spaced(name: str) -> str:
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name)
