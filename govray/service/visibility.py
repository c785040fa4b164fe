"""What a caller may read: the one rule, as conditions for queries, and the one answer beyond it.

Staff reads everything. A supplier reads what is public, and of other models that used its corpora
what concerns those. Everyone reads what is public. What a caller may not read does not exist for
it: the same 404, the same text, from the same query.

Routes of ``/v1`` and pages use the same functions here, so an address of the one tells no more than
the same address of the other.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from sqlalchemy import ColumnElement, Row, false, select, true
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.service.caller import STAFF, Caller
from govray.service.problems import Problem, not_found
from govray.store import lineage, tables
from govray.store.lineage import Lineage
from govray.store.semantic_version import parse_version

DigestPath = Annotated[
    str,
    Path(
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="A digest: `sha256:` and 64 hex digits, or these alone.",
        examples=["sha256:" + "7c" * 32],
    ),
]


SEE_MODELS = "See the list of models"


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


def versions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `ModelVersion`: those that the caller may know of."""
    if is_staff(caller):
        return true()
    readable = select(col(tables.Attestation.digest)).where(attestations(caller))
    return col(tables.ModelVersion.attestation).in_(readable)


def models(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Model`: those of which the caller may know a version."""
    if is_staff(caller):
        return true()
    named = select(col(tables.ModelVersion.model)).where(versions(caller))
    return col(tables.Model.name).in_(named)


def ledgers(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Ledger`: those whose checkpoint and hashes the caller may read."""
    if is_staff(caller):
        return true()
    runs = select(col(tables.Attestation.run)).where(attestations(caller))
    return col(tables.Ledger.run).in_(runs)


def find_model(session: Session, caller: Caller, name: str) -> tables.Model:
    """The registered name.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    found: tables.Model | None = session.execute(
        select(tables.Model).where(col(tables.Model.name) == name, models(caller))
    ).scalar_one_or_none()
    if found is None:
        raise absent(caller, "model", name, SEE_MODELS)
    return found


def find_version(session: Session, caller: Caller, model: str, version: str) -> tables.ModelVersion:
    """The version of a registered name.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    named = f"{model} {version}"
    try:
        number = str(parse_version(version))
    except UsageError:
        raise absent(caller, "version", named, SEE_MODELS) from None
    v = tables.ModelVersion
    found: tables.ModelVersion | None = session.execute(
        select(v).where(col(v.model) == model, col(v.version) == number, versions(caller))
    ).scalar_one_or_none()
    if found is None:
        raise absent(caller, "version", named, SEE_MODELS)
    return found


def find_attestation(session: Session, caller: Caller, digest: str) -> tables.Attestation:
    """The attestation, of which the caller may read at least some rows.

    Raises:
        Problem: 404, there is none.
    """
    found: tables.Attestation | None = session.execute(
        select(tables.Attestation).where(
            col(tables.Attestation.digest) == full_digest(digest), attestations(caller)
        )
    ).scalar_one_or_none()
    if found is None:
        raise absent(caller, "attestation", digest, SEE_MODELS)
    return found


def find_corpus(session: Session, caller: Caller, name: str) -> tables.Corpus:
    """The corpus.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    found: tables.Corpus | None = session.execute(
        select(tables.Corpus).where(col(tables.Corpus.name) == name, own_corpora(caller))
    ).scalar_one_or_none()
    if found is None:
        raise absent(caller, "corpus", name, "See the list of corpora")
    return found


def find_ledger(session: Session, caller: Caller, run: str) -> tables.Ledger:
    """The ledger of a run.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    found: tables.Ledger | None = session.execute(
        select(tables.Ledger).where(col(tables.Ledger.run) == run, ledgers(caller))
    ).scalar_one_or_none()
    if found is None:
        raise absent(caller, "ledger", run, "See the list of ledgers")
    return found


def find_lineage(
    session: Session,
    caller: Caller,
    row: tables.Attestation | Row[Any] | None,
    named: tuple[str, str],
) -> Lineage:
    """The lineage as far as the caller may read it: whole, or the rows of its own corpora.

    Args:
        row: With ``digest``, ``public`` and ``lineage`` of an attestation, if there is one.
        named: What the address names, a version or an attestation, and which.

    Raises:
        Problem: 404, there is nothing that the caller may read.
    """
    if row is not None and (row.public or is_staff(caller)):
        return lineage.decode(row.lineage)
    names = corpora_of(session, caller, row.digest if row is not None else "")
    if row is None or not names:
        raise absent(caller, *named, SEE_MODELS)
    return lineage.of_corpora(lineage.decode(row.lineage), names)


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
