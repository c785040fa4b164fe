"""Coverage as a table: what the ledger counted for a corpus, or a licence category, in a group.

A view of a verified attestation for people and programs; ``coverage.py`` computed the numbers.
Nothing here decides or checks anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from govray.governance.attestation import coverage
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.record.ledger import Leaf
from govray.governance.trust.license import LICENSE_CATEGORIES


@dataclass(frozen=True)
class Cell:
    """What the ledger counted for one corpus (or licence category) and one layer group.

    ``indirect`` says that no gradient of it updated the group, but that it may have reached the
    group through others. ``gradient_norm_share`` is None where nothing was measured. For a
    category, counts and shares are sums over its corpora, and ``steps`` counts each step once.
    """

    records: int
    tokens: int
    weighted_tokens: Decimal
    steps: int
    gradient_norm_share: float | None
    indirect: bool


class CoverageTable:
    """Coverage by ``(corpus or licence category, layer group)``; zero where nothing is recorded.
    A corpus that bears the name of a licence category shadows it."""

    def __init__(
        self, attestation: Attestation, routes: CorpusRoutes, steps: Sequence[Leaf]
    ) -> None:
        self._rows = {(row.corpus, row.group): row for row in attestation.coverage}
        self._taint = {taint.group: taint for taint in attestation.taint}
        self._routes = routes
        self._recorded = steps
        self.corpora = tuple(c.corpus for c in attestation.corpora)
        self.groups = coverage.all_groups(
            attestation.base_groups, (each.name for each in attestation.adapters)
        )
        self._category = {
            c.corpus: c.credential_class.license_category for c in attestation.corpora
        }

    @property
    def categories(self) -> tuple[str, ...]:
        """The licence categories of the admitted corpora, from the least restrictive."""
        return tuple(c for c in LICENSE_CATEGORIES if c in self._category.values())

    def members(self, key: str) -> tuple[str, ...]:
        """The corpora that a key stands for."""
        if key in self._category:
            return (key,)
        if key not in self._category.values():
            raise KeyError(key)
        return tuple(c for c in self.corpora if self._category[c] == key)

    def __getitem__(self, place: tuple[str, str]) -> Cell:
        key, group = place
        members = self.members(key)
        if group not in self.groups:
            raise KeyError(group)
        rows = [self._rows[c, group] for c in members if (c, group) in self._rows]
        shares = [r.gradient_norm_share for r in rows if r.gradient_norm_share is not None]
        taint = self._taint.get(group)
        direct = any(group in self._routes.groups(c) for c in members)
        return Cell(
            records=sum(row.records for row in rows),
            tokens=sum(row.tokens for row in rows),
            weighted_tokens=sum((Decimal(row.weighted_tokens) for row in rows), Decimal(0)),
            steps=self._steps({row.corpus for row in rows}, group),
            # Rounding must not make more than all of it.
            gradient_norm_share=min(math.fsum(shares), 1.0) if shares else None,
            indirect=not direct
            and taint is not None
            and any(c in taint.transitive for c in members),
        )

    def _steps(self, corpora: set[str], group: str) -> int:
        reaching = {
            (corpus, None if route == self._routes[corpus] else route.digest)
            for corpus in corpora & self._routes.changing
            for route in self._routes.every(corpus)
            if group in route.groups
        }
        others = corpora - self._routes.changing
        return sum(
            not others.isdisjoint(leaf.corpora)
            or any(c in leaf.corpora and leaf.corpora[c].route == r for c, r in reaching)
            for leaf in self._recorded
        )
