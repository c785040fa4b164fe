"""Who answers a field: the records, the provider, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from govray.evidence.reports.described_corpus import DescribedCorpus
from govray.evidence.reports.draft import Field, Grid, joined
from govray.evidence.reports.provider_statement import ProviderStatement
from govray.governance.trust.trust_state import Verified


@dataclass(frozen=True)
class Answers:
    """Makes fields from records and from what a provider signed, if anything."""

    statement: Verified[ProviderStatement] | None = None

    def recorded(
        self,
        key: str,
        label: str,
        lines: Sequence[str],
        source: str,
        *,
        grid: Grid | None = None,
        ask: str | None = None,
    ) -> Field:
        """A field that records fill. ``ask`` is what the provider could have said of it."""
        return Field(key, label, "filled", tuple(lines), source, grid, ask)

    def asked(
        self,
        key: str,
        label: str,
        ask: str,
        *,
        known: Sequence[str] = (),
        lacks: str = "No record states it",
        grid: Grid | None = None,
    ) -> Field:
        """A field that only the provider can fill. ``known``: what records say in part. ``lacks``:
        why that is not enough."""
        text = self.text(ask)
        if text is None or self.statement is None:
            why = f"{lacks}. The provider's statement would have to: {ask}"
            return Field(key, label, "missing", tuple(known), why, grid, ask)
        signed = self.statement
        by = f"provider statement v{signed.document.version}, signed by {signed.authority.name}"
        lines = (*known, f"The provider states: {text}" if known or grid else text)
        return Field(key, label, "asked", lines, by, grid, ask)

    def of_corpora(
        self,
        key: str,
        label: str,
        corpora: Sequence[DescribedCorpus],
        fact: Callable[[DescribedCorpus], str | None],
        ask: str,
    ) -> Field:
        """A field that each corpus has its part of. One that lacks its part makes it incomplete."""
        told = {each.name: said for each in corpora if (said := fact(each)) is not None}
        lines = [f"{name}: {said}" for name, said in told.items()]
        lacking = [each.name for each in corpora if each.name not in told]
        if lacking or not corpora:
            return self.asked(key, label, ask, known=lines, lacks=lacks(lacking))
        return self.recorded(key, label, lines, credentials(corpora), ask=ask)

    def text(self, ask: str) -> str | None:
        """What the provider answers; None if it does not."""
        return self.statement.document.text(ask) if self.statement else None

    def unused(self, fields: Sequence[Field]) -> tuple[str, ...]:
        """What the provider answers although records fill it."""
        filled = {field.ask for field in fields if field.state == "filled"}
        stated = self.statement.document.stated if self.statement else ()
        return tuple(name for name in stated if name in filled)


def credentials(corpora: Sequence[DescribedCorpus]) -> str:
    """The credentials of corpora, as the source of a field."""
    names = joined([each.name for each in corpora], 12)
    return f"credential{'s' if len(corpora) > 1 else ''} of {names}"


def lacks(corpora: Sequence[str]) -> str:
    """That some corpora do not state something, as a sentence without its full stop."""
    if not corpora:
        return "No record states it"
    many = len(corpora) > 1
    return f"The credential{'s' if many else ''} of {joined(corpora, 12)} " + (
        "do not state it" if many else "does not state it"
    )
