"""What a caller may read of corpora, their credentials and their uses."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, false, or_, select, true
from sqlmodel import Session, col

from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.roles import places
from govray.platform.service.visible.lookup import Finder
from govray.platform.service.visible.reach import is_staff, is_within, within
from govray.platform.store import tables


def supplied(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those of the supplier that the caller is; all, for staff."""
    return _of_supplier(caller, tables.Corpus.supplier)


def own_corpora(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those whose rows the caller may read, as far as `uses` says."""
    condition = supplied(caller)
    if _reads_data(caller) is None:
        return condition
    used = select(col(tables.CorpusUse.corpus)).where(uses(caller))
    return true() if _reads_data(caller) else condition | col(tables.Corpus.name).in_(used)


def uses(caller: Caller) -> ColumnElement[bool]:
    """Condition on `CorpusUse`: those that the caller may read, of corpora that it may read."""
    reads = _reads_data(caller)
    if reads is None or reads:
        return true()
    c, u, a = tables.Corpus, tables.CorpusUse, tables.Attestation
    own = select(col(c.name)).where(supplied(caller))
    attested = select(col(a.digest)).where(within(caller, "data"))
    return or_(col(u.corpus).in_(own), col(u.attestation).in_(attested))


def credentials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Credential`: of a corpus that changed hands, not its former supplier's."""
    condition = _of_supplier(caller, tables.Credential.supplier)
    reads = _reads_data(caller)
    if reads is None:
        return condition
    used = select(col(tables.CorpusUse.credential)).where(uses(caller))
    return true() if reads else condition | col(tables.Credential.digest).in_(used)


def _reads_data(caller: Caller) -> bool | None:
    """Whether roles let the caller read all corpora; None: no role says anything of corpora."""
    found = places(caller, "data")
    if is_staff(caller) or not any(found.values()):
        return None
    return bool(found["organisation"])


def _of_supplier(caller: Caller, supplier: Any) -> ColumnElement[bool]:
    if is_staff(caller):
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
        select(col(tables.CorpusUse.corpus))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(col(tables.CorpusUse.attestation) == attestation, supplied(caller))
    )
    return frozenset(found.scalars())
