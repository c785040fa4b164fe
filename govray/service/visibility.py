"""What a caller may read: the one rule, for routes of ``/v1`` and for pages.

Staff reads everything. Everyone reads what is public. A supplier reads that, its own corpora, and
of the models that used them what concerns those. What a caller may not read does not exist for it:
the same 404, the same text, from the same query.

Here are conditions for queries, functions that find one thing or raise that 404, and what routers
demand of a caller. No other module of the service decides by the caller's role what may be read.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path
from sqlalchemy import ColumnElement, Row, false, select, true
from sqlmodel import Session, SQLModel, col

from govray.errors import UsageError
from govray.governance.policy.route import ADAPTER
from govray.service.access import require
from govray.service.caller import STAFF, Caller, Role
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

STAFF_ONLY = Depends(require(*STAFF))
"""What a router demands for runs, what they measured and decided, and for usage."""

RUN_READERS = STAFF_ONLY
"""What a router demands for runs; which of them, `trials` and `experiments` say."""

_CORPUS_ROLES: tuple[Role, ...] = (*STAFF, "supplier")

CORPUS_READERS = Depends(require(*_CORPUS_ROLES))
"""What a router demands for corpora and their records."""

SEE_MODELS = "See the list of models"


def full_digest(text: str) -> str:
    """The digest as it stands in the store."""
    return "sha256:" + text.removeprefix("sha256:")


def absent(caller: Caller, what: str, name: str, do: str | None = None) -> Problem:
    """404 for what the caller may not read, whether or not it is there.

    In both cases the audit log records a supplier's attempt. So attempts to read others' data are
    noticed, and take as long as attempts to read what does not exist.
    """
    return not_found(what, name, do, hidden=caller.role == "supplier")


def is_staff(caller: Caller) -> bool:
    """Whether the caller reads every corpus."""
    return caller.role in STAFF


def reads_public_only(caller: Caller) -> bool:
    """Whether the caller reads what everyone reads and no more, so that caches may keep it."""
    return caller.role == "public"


def reads_corpora(caller: Caller) -> bool:
    """Whether there are corpora that the caller may read, as `CORPUS_READERS`."""
    return caller.role in _CORPUS_ROLES


def reads_whole(caller: Caller, attestation: Any) -> bool:
    """Whether the caller may read all of a row with the column ``public`` of `Attestation`."""
    return attestation.public or is_staff(caller)


def reads_entries(caller: Caller) -> bool:
    """Whether the caller may read a ledger's entries: they name all corpora of a step."""
    return is_staff(caller)


def reads_registry(caller: Caller) -> bool:
    """Whether the caller may read more of a version than its name and attestation."""
    return is_staff(caller)


def experiments(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Experiment`: those that the caller may read."""
    return true() if is_staff(caller) else false()


def trials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Trial`: those of `experiments`."""
    return true() if is_staff(caller) else false()


def own_corpora(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those whose rows the caller may read."""
    return _of_supplier(caller, tables.Corpus.supplier)


def credentials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Credential`: of a corpus that changed hands, not its former supplier's."""
    return _of_supplier(caller, tables.Credential.supplier)


def cells(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Coverage`: another corpus's adapter bears that corpus's name."""
    if is_staff(caller):
        return true()
    c = tables.Coverage
    return col(c.direct).is_(True) | ~col(c.layer_group).startswith(ADAPTER)


def whole_attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those that the caller may read whole."""
    return true() if is_staff(caller) else col(tables.Attestation.public).is_(True)


def attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those of which the caller may read anything."""
    whole = whole_attestations(caller)
    if caller.role != "supplier":
        return whole
    using = (
        select(col(tables.CorpusUse.attestation))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(own_corpora(caller))
    )
    return whole | col(tables.Attestation.digest).in_(using)


def attestation_order(caller: Caller) -> tuple[Any, ...]:
    """The columns that order `attestations`: when a run began is not for suppliers."""
    a = tables.Attestation
    return (a.started, a.digest) if is_staff(caller) else (a.digest,)


def versions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `ModelVersion`: those that the caller may know of."""
    a = tables.Attestation
    return _among(caller, tables.ModelVersion.attestation, a.digest, attestations(caller))


def models(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Model`: those of which the caller may know a version."""
    v = tables.ModelVersion
    return _among(caller, tables.Model.name, v.model, versions(caller))


def ledgers(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Ledger`: those whose checkpoint and hashes the caller may read."""
    a = tables.Attestation
    return _among(caller, tables.Ledger.run, a.run, attestations(caller))


def policies(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Policy`: rules may name suppliers and corpora, so only public ones."""
    a = tables.Attestation
    return _among(caller, tables.Policy.digest, a.policy, whole_attestations(caller))


def trust_roots(caller: Caller) -> ColumnElement[bool]:
    """Condition on `TrustRoot`: authorities may name suppliers, so only public ones."""
    a = tables.Attestation
    return _among(caller, tables.TrustRoot.digest, a.trust_root, whole_attestations(caller))


def _of_supplier(caller: Caller, supplier: Any) -> ColumnElement[bool]:
    if is_staff(caller):
        return true()
    if caller.role == "supplier" and caller.supplier is not None:
        return col(supplier) == caller.supplier
    return false()


def _among(
    caller: Caller, column: Any, named: Any, readable: ColumnElement[bool]
) -> ColumnElement[bool]:
    """That ``column`` is among the ``named`` of readable rows; anything, for staff."""
    return true() if is_staff(caller) else col(column).in_(select(col(named)).where(readable))


Found = TypeVar("Found", bound=SQLModel)


def _find(
    session: Session,
    caller: Caller,
    table: type[Found],
    named: tuple[str, str, str | None],
    *conditions: ColumnElement[bool],
) -> Found:
    """The one row that fulfils ``conditions``; ``named`` is what `absent` says of it.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    rows = session.execute(select(table).where(*conditions))
    found: Found | None = rows.scalar_one_or_none()
    if found is None:
        raise absent(caller, *named)
    return found


def find_model(session: Session, caller: Caller, name: str) -> tables.Model:
    """The registered name. Raises 404."""
    named = ("model", name, SEE_MODELS)
    return _find(
        session, caller, tables.Model, named, col(tables.Model.name) == name, models(caller)
    )


def find_version(session: Session, caller: Caller, model: str, version: str) -> tables.ModelVersion:
    """The version of a registered name. Raises 404."""
    named = ("version", f"{model} {version}", SEE_MODELS)
    try:
        number = str(parse_version(version))
    except UsageError:
        raise absent(caller, *named) from None
    v = tables.ModelVersion
    return _find(
        session,
        caller,
        v,
        named,
        col(v.model) == model,
        col(v.version) == number,
        versions(caller),
    )


def find_attestation(
    session: Session, caller: Caller, digest: str, *, whole: bool = False
) -> tables.Attestation:
    """The attestation of which the caller may read something, or the whole. Raises 404."""
    readable = whole_attestations(caller) if whole else attestations(caller)
    named = ("attestation", digest, SEE_MODELS)
    a = tables.Attestation
    return _find(session, caller, a, named, col(a.digest) == full_digest(digest), readable)


def find_policy(session: Session, caller: Caller, digest: str) -> tables.Policy:
    """The signed policy. Raises 404."""
    p = tables.Policy
    named = ("policy", digest, None)
    return _find(session, caller, p, named, col(p.digest) == full_digest(digest), policies(caller))


def find_trust_root(session: Session, caller: Caller, digest: str) -> tables.TrustRoot:
    """The signed trust root. Raises 404."""
    r = tables.TrustRoot
    named = ("trust root", digest, None)
    return _find(
        session, caller, r, named, col(r.digest) == full_digest(digest), trust_roots(caller)
    )


def find_corpus(session: Session, caller: Caller, name: str) -> tables.Corpus:
    """The corpus. Raises 404."""
    named = ("corpus", name, "See the list of corpora")
    return _find(
        session, caller, tables.Corpus, named, col(tables.Corpus.name) == name, own_corpora(caller)
    )


def find_ledger(session: Session, caller: Caller, run: str) -> tables.Ledger:
    """The ledger of a run. Raises 404."""
    named = ("ledger", run, "See the list of ledgers")
    return _find(
        session, caller, tables.Ledger, named, col(tables.Ledger.run) == run, ledgers(caller)
    )


def corpora_of(session: Session, caller: Caller, attestation: str) -> frozenset[str] | None:
    """The corpora of an attestation that the caller may read about; None: all of them.

    What is public of the attestation counts besides.
    """
    if is_staff(caller):
        return None
    found = session.execute(
        select(col(tables.CorpusUse.corpus))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(col(tables.CorpusUse.attestation) == attestation, own_corpora(caller))
    )
    return frozenset(found.scalars())


def scope_of(
    session: Session,
    caller: Caller,
    row: tables.Attestation | Row[Any] | None,
    named: tuple[str, str],
) -> frozenset[str] | None:
    """Of an attestation, the corpora that the caller reads about; None: it reads the whole.

    Args:
        row: With ``digest`` and ``public`` of an attestation, if there is one.
        named: What the address names, a version or an attestation, and which.

    Raises:
        Problem: 404, there is nothing that the caller may read.
    """
    if row is not None and reads_whole(caller, row):
        return None
    names = corpora_of(session, caller, row.digest if row is not None else "")
    if row is None or not names:
        raise absent(caller, *named, SEE_MODELS)
    return names


def find_lineage(
    session: Session,
    caller: Caller,
    row: tables.Attestation | Row[Any] | None,
    named: tuple[str, str],
) -> Lineage:
    """The lineage as far as the caller may read it: whole, or the rows of its own corpora.

    ``row`` has the column ``lineage`` too. Otherwise as `scope_of`, which raises.
    """
    names = scope_of(session, caller, row, named)
    assert row is not None  # or it was a 404
    document = lineage.decode(row.lineage)
    return document if names is None else lineage.of_corpora(document, names)
