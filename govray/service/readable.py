"""Which attestations, ledgers and corpora a caller may read: conditions for queries, in one place.

Staff reads everything. A supplier reads what is public, and of other models that used its corpora
what concerns those. Everyone reads what is public. What a caller may not read does not exist for
it: the same 404, from the same query.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import ColumnElement, false, select, true
from sqlmodel import Session, col

from govray.service.caller import STAFF, Caller
from govray.service.problems import Problem, not_found
from govray.store import tables

DigestPath = Annotated[
    str,
    Path(
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="A digest: `sha256:` and 64 hex digits, or these alone.",
        examples=["sha256:" + "7c" * 32],
    ),
]


def full_digest(text: str) -> str:
    """The digest as it stands in the store."""
    return "sha256:" + text.removeprefix("sha256:")


def absent(caller: Caller, what: str, name: str, do: str | None = None) -> Problem:
    """404 for what the caller may not read, whether or not it is there.

    What a supplier asked for in vain is in the audit log, in both cases: so that reading what is
    another's is noticed, and takes as long as reading what is nowhere.
    """
    return not_found(what, name, do, hidden=caller.role == "supplier")


def is_staff(caller: Caller) -> bool:
    """Whether the caller reads every corpus."""
    return caller.role in STAFF


def own_corpora(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those whose rows the caller may read."""
    if is_staff(caller):
        return true()
    if caller.role == "supplier" and caller.supplier is not None:
        return col(tables.Corpus.supplier) == caller.supplier
    return false()


def whole_attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those that the caller may read whole."""
    return true() if is_staff(caller) else col(tables.Attestation.public).is_(True)


def attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those of which the caller may read anything."""
    whole = whole_attestations(caller)
    if caller.role != "supplier":
        return whole
    return whole | col(tables.Attestation.digest).in_(_with_own_corpora(caller))


def ledgers(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Ledger`: those whose checkpoint and hashes the caller may read."""
    if is_staff(caller):
        return true()
    runs = select(col(tables.Attestation.run)).where(attestations(caller))
    return col(tables.Ledger.run).in_(runs)


def corpora_of(session: Session, caller: Caller, attestation: str) -> frozenset[str]:
    """The corpora of an attestation that the caller may read about, beyond what is public."""
    found = session.execute(
        select(col(tables.CorpusUse.corpus))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(col(tables.CorpusUse.attestation) == attestation, own_corpora(caller))
    )
    return frozenset(found.scalars())


def _with_own_corpora(caller: Caller):  # type: ignore[no-untyped-def]
    return (
        select(col(tables.CorpusUse.attestation))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(own_corpora(caller))
    )
