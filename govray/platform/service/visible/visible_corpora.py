"""What a caller may read of corpora, their credentials and their uses."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, false, select, true
from sqlmodel import Session, col

from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.rights import everywhere, is_within, within
from govray.platform.service.visible.lookup import Finder
from govray.platform.store import tables


def supplied(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those of the supplier that the caller is; all, for staff."""
    return _of_supplier(caller, tables.Corpus.supplier)


def own_corpora(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those whose rows the caller may read, as far as `uses` says."""
    if everywhere(caller, "data"):
        return true()
    used = select(col(tables.CorpusUseRow.corpus)).where(_used_within(caller))
    return supplied(caller) | col(tables.Corpus.name).in_(used)


def uses(caller: Caller) -> ColumnElement[bool]:
    """Condition on `CorpusUse`: those that the caller may read."""
    if everywhere(caller, "data"):
        return true()
    own = select(col(tables.Corpus.name)).where(supplied(caller))
    return col(tables.CorpusUseRow.corpus).in_(own) | _used_within(caller)


def credentials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Credential`: of a corpus that changed hands, not its former supplier's."""
    if everywhere(caller, "data"):
        return true()
    used = select(col(tables.CorpusUseRow.credential)).where(_used_within(caller))
    own = _of_supplier(caller, tables.CredentialRow.supplier)
    return own | col(tables.CredentialRow.digest).in_(used)


def _used_within(caller: Caller) -> ColumnElement[bool]:
    """Condition on `CorpusUse`: of attestations of places whose corpora the caller may read."""
    attested = select(col(tables.AttestationRow.digest)).where(within(caller, "data"))
    return col(tables.CorpusUseRow.attestation).in_(attested)


def _of_supplier(caller: Caller, supplier: Any) -> ColumnElement[bool]:
    if everywhere(caller, "view"):
        return true()
    if caller.role == "supplier" and caller.supplier is not None:
        return col(supplier) == caller.supplier
    return false()


find_corpus = Finder("corpus", tables.Corpus, "name", own_corpora, "See the list of corpora")


def corpora_of(session: Session, caller: Caller, attestation: str) -> frozenset[str] | None:
    """The corpora of an attestation that the caller may read about; None: all of them. What is
    public of the attestation counts besides."""
    if is_within(session, caller, attestation):
        return None
    found = session.execute(
        select(col(tables.CorpusUseRow.corpus))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUseRow.corpus))
        .where(col(tables.CorpusUseRow.attestation) == attestation, supplied(caller))
    )
    return frozenset(found.scalars())
