"""The signed answer to a case, and what a linked version must show before the case is closed.

Answers are signed by the operator's key that the settings name. One that would not verify under a
trust root of the store is never kept: its requester could do nothing with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from govray.errors import CouldNotCheck, GovrayError, Refused
from govray.governance.attestation.case_answer import (
    CaseFinding,
    CaseOutcome,
    ShownVersion,
    case_answer,
    verify_case_answer,
)
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import Signer
from govray.governance.formats.statement import read
from govray.governance.policy.credential import Credential
from govray.governance.policy.revoked import revoked_credential
from govray.governance.policy.route import ADAPTER
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.revocation_list import Revoked
from govray.governance.trust.trust_state import TrustState, Verified
from govray.platform.service.identity.revocations import Lists
from govray.platform.store import cases, tables

UNKNOWN = "unknown"


def check_left_out(
    attestation: Attestation, roots: Mapping[str, str], corpus: str, root: str
) -> None:
    """Return if no recorded path leads from a corpus into the model.

    1. No corpus of the run has its name.
    2. None has its records under another name.
    3. No layer group is reached by it, nor by weights that nobody attests.

    Args:
        attestation: Verified.
        roots: Corpus of that attestation → Merkle root of its records.

    Raises:
        Refused: The first of these that does not hold.
    """
    where = f"run {attestation.run.id}"
    if corpus in roots or corpus in {each.corpus for each in attestation.corpora}:  # 1
        raise Refused(
            f"its manifest has the corpus {corpus!r}",
            where=where,
            do="Link a version of a run that was made without it",
        )
    if again := next((name for name, each in sorted(roots.items()) if each == root), None):  # 2
        raise Refused(
            f"its corpus {again!r} has the same records as {corpus!r}",
            where=where,
            do="Link a version of a run that was made without these records",
        )
    _check_unreached(attestation, corpus, where=where)  # 3


def check_removed(attestation: Attestation, corpus: str) -> None:
    """Return if a corpus trained adapters alone, and the attestation states that they are deleted.

    Args:
        attestation: Verified.

    Raises:
        Refused: It trained something else, or an adapter of it is still there.
    """
    where = f"run {attestation.run.id}"
    admitted = next((each for each in attestation.corpora if each.corpus == corpus), None)
    if admitted is None:
        raise Refused(
            f"its run read no corpus {corpus!r}, so nothing of it was removed there",
            where=where,
            do="Decide 'revoked' for a version without the corpus",
        )
    own = {each.name for each in attestation.adapters if corpus in each.corpora}
    gone = {each.adapter for each in attestation.removals}
    if left := sorted(own - gone):
        raise Refused(
            f"the adapter {left[0]!r}, which {corpus!r} trained, is still in it",
            where=where,
            do=f"Remove it: govray adapter remove MODEL {left[0]}",
        )
    if not own:
        raise Refused(
            f"{corpus!r} trained no adapter, so there is nothing to remove",
            where=where,
            do="Decide 'revoked', and link a version of a run without it",
        )
    _check_unreached(attestation, corpus, where=where, gone={f"{ADAPTER}{each}" for each in own})


def _check_unreached(
    attestation: Attestation, corpus: str, *, where: str, gone: Collection[str] = ()
) -> None:
    """Return if no layer group that is there was reached by a corpus, by any recorded path."""
    for each in attestation.taint:
        if each.group in gone:
            continue
        if corpus in each.direct or corpus in each.transitive:
            raise Refused(
                f"the corpus {corpus!r} reached its layer group {each.group!r}",
                where=where,
                do="Link a version of a run that was made without it",
            )
        if UNKNOWN in each.transitive:
            raise Refused(
                f"its layer group {each.group!r} began with weights that no attestation speaks for",
                where=where,
                do="Nobody can say that the corpus is not in them",
            )


Trusted = Sequence[tuple[bytes, tuple[bytes, ...]]]
"""Trust roots of the store, each with a set of delegations."""


def signed_answer(
    row: tables.RightsCase,
    signer: Signer,
    roots: Trusted,
    *,
    released: Collection[str],
    outcome: CaseOutcome | None = None,
    at: datetime,
) -> bytes:
    """The envelope of the answer to a case that was searched.

    Args:
        roots: What it has to verify under, one of them.
        released: Corpora whose names it tells.

    Raises:
        Refused: Nothing was searched for; a released corpus was not found; no trust root knows the
            key as an operator's.
    """
    result = cases.search_of(row)
    if result is None:
        raise Refused("nothing was searched for yet", where=f"case {row.id}")
    named = {each.corpus for each in result.findings} | {each.corpus for each in result.unchecked}
    if unknown := sorted(set(released) - named):
        raise Refused(
            f"the search names no corpus {unknown[0]!r}",
            where=f"case {row.id}",
            do="Release the names of corpora that the search has",
        )
    document = case_answer(
        row.id,
        cases.request_of(row),
        result,
        received=row.received,
        answered=format_time(at),
        released=released,
        outcome=outcome,
    )
    envelope = document.seal([signer])
    why = "the store has no trust root"
    for root, delegations in roots:
        try:
            trust = TrustState.load(root, at=at, delegations=delegations)
            verify_case_answer(trust, envelope, at=at)
        except GovrayError as error:
            why = error.what
        else:
            return envelope
    raise Refused(
        f"the answer would not verify: {why}",
        where="the key of cases",
        do="Let the trust root name the key's owner as an operator, and index a model under it",
    )


def check_shows(
    session: Session,
    row: tables.RightsCase,
    version: tables.ModelVersion,
    lists: Lists,
    *,
    at: datetime,
) -> ShownVersion:
    """Return the link if a version's attestation shows what a case decided.

    1. It is a version of a model that something was found in, and not one that still has that.
    2. It is not revoked.
    3. ``removed``: its run is that of a finding, and `check_removed` holds of each corpus found.
    4. ``revoked``: `check_left_out` holds of each, and a revocation list names each.

    Raises:
        Refused: The first of these that does not hold.
    """
    result = cases.search_of(row)
    where = f"{version.model} {version.version}"
    findings = [] if result is None else list(result.findings)
    own = [each for each in findings if each.attestation in _attestations(session, version.model)]
    # 1
    if not own:
        raise Refused("nothing was found in a version of this model", where=where)
    if version.attestation in {each.attestation for each in own if each.removed is None}:
        raise Refused("this is a version that it was found in", where=where)
    attested = session.get_one(tables.AttestationRow, version.attestation)
    # 2
    root = session.get_one(tables.TrustRootRow, attested.trust_root)
    lists.look().require(attested.digest, root.name)
    # 3, 4
    document = read(Attestation, Envelope.parse(attested.envelope, where=where)).document
    corpora = sorted({each.corpus for each in own if each.corpus is not None})
    told: frozenset[str] = frozenset()
    if row.decision == "removed":
        runs = {session.get_one(tables.AttestationRow, each.attestation).run for each in own}
        if attested.run not in runs:
            raise Refused("it is of another run than what was found", where=where)
        for corpus in corpora:
            check_removed(document, corpus)
    elif row.decision == "revoked":
        roots = {name: each.records.root for name, each in _credentials(session, attested.digest)}
        for corpus in corpora:
            for credential in _found_credentials(session, own, corpus):
                check_left_out(document, roots, corpus, credential.document.records.root)
                revoked = _revocation(session, credential, root.name, lists, at=at)
                told |= {revoked.list}
    else:
        raise Refused(f"nothing is linked to the decision {row.decision!r}", where=where)
    return ShownVersion(
        model=version.model,
        version=version.version,
        attestation=version.attestation,
        lists=tuple(sorted(told)),
    )


def missing_links(session: Session, row: tables.RightsCase) -> list[str]:
    """Registered models that something was found in and no linked version is of."""
    result = cases.search_of(row)
    digests = {each.attestation for each in result.findings} if result else set()
    v = tables.ModelVersion
    names = select(col(v.model)).where(col(v.attestation).in_(digests)).distinct()
    if row.model is not None:
        names = names.where(col(v.model) == row.model)
    found = set(session.execute(names).scalars())
    return sorted(found - {each["model"] for each in row.links})


def _attestations(session: Session, model: str) -> frozenset[str]:
    v = tables.ModelVersion
    found = select(col(v.attestation)).where(col(v.model) == model)
    return frozenset(session.execute(found).scalars())


def _credentials(session: Session, attestation: str) -> list[tuple[str, Credential]]:
    return [
        (each.document.corpus, each.document)
        for each in _read(session, col(tables.CorpusUseRow.attestation) == attestation)
    ]


def _found_credentials(
    session: Session, findings: Sequence[CaseFinding], corpus: str
) -> list[Verified[Credential]]:
    """Those under which a corpus was read by the models that it was found in."""
    u = tables.CorpusUseRow
    digests = {each.attestation for each in findings if each.corpus == corpus}
    return _read(session, col(u.attestation).in_(digests), col(u.corpus) == corpus)


def _read(session: Session, *conditions: Any) -> list[Verified[Credential]]:
    """Stored credentials, which were verified when they were indexed."""
    u, c = tables.CorpusUseRow, tables.CredentialRow
    statement = (
        select(col(c.envelope))
        .join(u, col(u.credential) == col(c.digest))
        .where(*conditions)
        .order_by(col(c.digest))
        .distinct()
    )
    found = []
    for envelope in session.execute(statement).scalars():
        sealed = read(Credential, Envelope.parse(envelope, where="credential"))
        found.append(Verified(sealed.document, sealed.digest, sealed.subjects, (), frozenset()))
    return found


def _revocation(
    session: Session, credential: Verified[Credential], root: str, lists: Lists, *, at: datetime
) -> Revoked:
    t = tables.TrustRootRow
    newest = (
        select(col(t.envelope))
        .where(col(t.name) == root)
        .order_by(col(t.version).desc(), col(t.digest).desc())
        .limit(1)
    )
    envelope = session.execute(newest).scalar_one()
    sets = select(col(tables.Delegations.lines)).join(
        t, col(t.digest) == col(tables.Delegations.trust_root)
    )
    of_root = session.execute(sets.where(col(t.name) == root)).scalars()
    fed, pinned = lists.envelopes()
    problem: GovrayError | None = None
    # An issuer by delegation signs lists, too. Sets of delegations may contradict each other.
    for delegations in ((), *(tuple(lines.split(b"\n")[:-1]) for lines in of_root)):
        try:
            trust = TrustState.load(envelope, at=at, delegations=delegations)
            anchor = TrustAnchor(envelope, feed=fed, pinned=pinned.of(root))
            known = anchor.lists(trust, at=at)
            found = revoked_credential(known, credential) if known else None
        except GovrayError as error:
            problem = error
            continue
        if found is not None and found.since <= at:
            return found
    corpus = credential.document.corpus
    if problem is not None and (fed or pinned.of(root)):
        raise CouldNotCheck(problem.what, where="revocations", do=problem.do)
    raise Refused(
        f"no revocation list that this service has names the corpus {corpus!r}",
        where="revocations",
        do="Have its issuer revoke it, and give the list with --revocations",
    )
