"""What a caller may read of attestations, and of versions, ledgers and policies by them.

A supplier reads what concerns its own corpora, and not the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, Row, select, true
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.route import ADAPTER
from govray.platform.service.http.problems import not_allowed
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.rights import (
    everywhere,
    is_within,
    of_runs,
    somewhere,
    within,
)
from govray.platform.service.visible.lookup import SEE_MODELS, Finder, absent
from govray.platform.service.visible.visible_corpora import corpora_of, supplied
from govray.platform.service.visible.visible_runs import runs
from govray.platform.store import lineage, tables
from govray.platform.store.lineage import Lineage
from govray.platform.store.semantic_version import parse_version


def reads_whole(caller: Caller, attestation: Any) -> bool:
    """Whether the caller may read all of a row with the column ``public`` of `Attestation`. The row
    may have the condition `within` as a column of that name."""
    return attestation.public or reads_registry(caller, attestation)


def reads_registry(caller: Caller, row: Any) -> bool:
    """Whether the caller may read more of a version than its name and attestation. ``row`` may have
    the condition `within` on its attestation as a column of that name."""
    return everywhere(caller, "view") or bool(getattr(row, "within", False))


def reads_entries(session: Session, caller: Caller, run: str) -> bool:
    """Whether the caller may read a ledger's entries: they name all corpora of a step."""
    if everywhere(caller, "view"):
        return True
    t, a = tables.RunRow, tables.AttestationRow
    own = select(col(t.id)).where(col(t.id) == run, runs(caller))
    attested = select(col(a.run)).where(col(a.run) == run, within(caller))
    return session.execute(own.union_all(attested).limit(1)).first() is not None


def cells(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Coverage`: another corpus's adapter bears that corpus's name."""
    c, a = tables.CoverageRow, tables.AttestationRow
    own = col(c.attestation).in_(select(col(a.digest)).where(within(caller)))
    anyone = col(c.direct).is_(True) | ~col(c.layer_group).startswith(ADAPTER)
    return true() if everywhere(caller, "view") else anyone | own


def whole_attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those that the caller may read whole."""
    return col(tables.AttestationRow.public).is_(True) | within(caller)


def attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those of which the caller may read anything."""
    whole = whole_attestations(caller)
    if caller.role != "supplier":
        return whole
    using = (
        select(col(tables.CorpusUseRow.attestation))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUseRow.corpus))
        .where(supplied(caller))
    )
    return whole | col(tables.AttestationRow.digest).in_(using)


def attestation_order(caller: Caller) -> tuple[Any, ...]:
    """The columns that order `attestations`: when a run began is not for suppliers."""
    a = tables.AttestationRow
    return (a.started, a.digest) if everywhere(caller, "view") else (a.digest,)


def versions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `ModelVersion`: those that the caller may know of."""
    a = tables.AttestationRow
    return _among(caller, tables.ModelVersion.attestation, a.digest, attestations(caller))


def models(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Model`: those of which the caller may know a version."""
    v = tables.ModelVersion
    return _among(caller, tables.ModelRow.name, v.model, versions(caller))


def ledgers(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Ledger`: those whose checkpoint and hashes the caller may read."""
    a, run = tables.AttestationRow, tables.LedgerRow.run
    attested = _among(caller, run, a.run, attestations(caller))
    return attested | of_runs(caller, run)


def policies(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Policy`: rules may name suppliers and corpora, so only public ones."""
    a = tables.AttestationRow
    return _among(caller, tables.PolicyRow.digest, a.policy, whole_attestations(caller))


def trust_roots(caller: Caller) -> ColumnElement[bool]:
    """Condition on `TrustRoot`: authorities may name suppliers, so only public ones."""
    a = tables.AttestationRow
    return _among(caller, tables.TrustRootRow.digest, a.trust_root, whole_attestations(caller))


def _among(
    caller: Caller, column: Any, named: Any, readable: ColumnElement[bool]
) -> ColumnElement[bool]:
    """That ``column`` is among the ``named`` of readable rows; anything, for staff."""
    return (
        true()
        if everywhere(caller, "view")
        else col(column).in_(select(col(named)).where(readable))
    )


def check_promotes(
    session: Session, caller: Caller, model: str, attestation: str | None = None
) -> None:
    """Return if the caller may change the versions of a registered model, or add this attestation.

    A version replaces others of its model. So who has a role in parts of the organisation has it in
    all places where versions of this model come from.

    Raises:
        Problem: 404, the caller may promote no such attestation; 403, the model has
            versions from elsewhere.
    """
    if everywhere(caller, "promote"):
        return
    a, v = tables.AttestationRow, tables.ModelVersion
    if attestation is not None and not is_within(session, caller, attestation, "promote"):
        raise absent(caller, "attestation", attestation, SEE_MODELS)
    own = select(col(a.digest)).where(within(caller, "promote"))
    others = select(col(v.model)).where(col(v.model) == model, col(v.attestation).not_in(own))
    if session.execute(others.limit(1)).first() is not None:
        raise not_allowed(
            "The name is taken by a model that you may not change",
            "Take another name, or ask an engineer of the organisation",
        )


def whole_models(session: Session, caller: Caller, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` all of whose versions the caller reads whole, with what they are."""
    if not somewhere(caller, "view"):
        return frozenset()
    wanted = sorted(set(names))
    a, v = tables.AttestationRow, tables.ModelVersion
    own = select(col(a.digest)).where(within(caller))
    others = select(col(v.model)).where(col(v.model).in_(wanted), col(v.attestation).not_in(own))
    return frozenset(wanted) - set(session.execute(others).scalars())


find_model = Finder("model", tables.ModelRow, "name", models, SEE_MODELS)
find_attestation = Finder(
    "attestation",
    tables.AttestationRow,
    "digest",
    lambda caller: attestations(caller),  # looked up at each call, as a negative control needs
    SEE_MODELS,
)
find_whole_attestation = Finder(
    "attestation", tables.AttestationRow, "digest", whole_attestations, SEE_MODELS
)
find_policy = Finder("policy", tables.PolicyRow, "digest", policies)
find_trust_root = Finder("trust root", tables.TrustRootRow, "digest", trust_roots)
find_ledger = Finder("ledger", tables.LedgerRow, "run", ledgers, "See the list of ledgers")


def policy_document(row: tables.PolicyRow) -> Policy:
    """The signed policy of this row; it was verified before it was stored."""
    return read(Policy, Envelope.parse(row.envelope, where="policy"), where="policy").document


def find_version(session: Session, caller: Caller, model: str, version: str) -> tables.ModelVersion:
    """The version of a registered name. Raises 404."""
    v, found = tables.ModelVersion, None
    with suppress(UsageError):
        key = (col(v.model) == model, col(v.version) == str(parse_version(version)))
        found = session.scalars(select(v).where(*key, versions(caller))).one_or_none()
    if found is None:
        raise absent(caller, "version", f"{model} {version}", SEE_MODELS)
    return found


def scope_of(
    session: Session,
    caller: Caller,
    row: tables.AttestationRow | Row[Any] | None,
    named: tuple[str, str],
) -> frozenset[str] | None:
    """Of an attestation, the corpora that the caller reads about; None: it reads the whole.

    Args:
        row: With ``digest`` and ``public`` of an attestation, if there is one.
        named: What the address names, a version or an attestation, and which.
    """
    if row is not None and reads_whole(caller, row):
        return None
    names = corpora_of(session, caller, row.digest if row is not None else "")
    if row is not None and names is None:
        return None
    if row is None or not names:
        raise absent(caller, *named, SEE_MODELS)
    return names


def find_lineage(
    session: Session,
    caller: Caller,
    row: tables.AttestationRow | Row[Any] | None,
    named: tuple[str, str],
) -> Lineage:
    """The lineage as far as the caller may read it: whole, or the rows of its own corpora. ``row``
    has the column ``lineage`` too. Otherwise as `scope_of`, which raises."""
    names = scope_of(session, caller, row, named)
    assert row is not None  # or it was a 404
    document = lineage.decode(row.lineage)
    return document if names is None else lineage.of_corpora(document, names)
