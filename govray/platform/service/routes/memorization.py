"""``…/memorization``: what monitor and audits stated of a model's memory of its data.

The monitor's findings stand in the attestation, so who may read that may read them. Audits are
documents of their own, with hashes of records: for staff. A supplier gets of both what is about its
own corpora.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import select
from sqlmodel import Session, col

from govray.governance.attestation.memorization_manifest import MemorizationManifest as Audit
from govray.governance.attestation.model_folder import WEIGHTS
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.record.incidents import Findings
from govray.platform.service.http.answer import Answer
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.lineage import (
    ModelPath,
    NamedAttestation,
    VersionPath,
    by_digest,
    by_version,
)
from govray.platform.service.visible.lookup import DigestPath, full_digest
from govray.platform.service.visible.visible_corpora import corpora_of
from govray.platform.service.visible.visible_models import scope_of
from govray.platform.store.tables import AttestationRow, MemorizationManifestRow, SubjectRow

router = APIRouter(tags=["memorization"])

MAX_AUDITS = 50


class AuditAnswer(Answer):
    """One audit. ``document`` is the signed predicate, whole or for the caller's corpora."""

    digest: str
    signer: str
    made: str
    weights: str = Field(description="Digest of the weights that were scored.")
    document: dict[str, Any]


class MemorizationAnswer(Answer):
    """What is stated about a model's memory of its data; each statement is its signer's.

    ``monitored`` says whether the policy asked for a monitor. Without findings or audits nothing is
    stated: that is not the same as nothing memorized.
    """

    attestation: str
    monitored: bool
    findings: dict[str, Any] | None = Field(
        default=None, description="Entropy profile and incidents, as the attestation has them."
    )
    audits: list[AuditAnswer] = Field(description="The newest first.")


@router.get("/models/{model}/versions/{version}/memorization")
def of_version(visit: VisitDep, model: ModelPath, version: VersionPath) -> MemorizationAnswer:
    """What monitor and audits stated of this version."""
    return _answer(visit, by_version(model, version))


@router.get("/attestations/{digest}/memorization")
def of_attestation(visit: VisitDep, digest: DigestPath) -> MemorizationAnswer:
    """What monitor and audits stated of the model that an attestation is about."""
    return _answer(visit, by_digest(digest))


def _answer(visit: Visit, model: NamedAttestation) -> MemorizationAnswer:
    row = model.row(visit, AttestationRow.envelope)
    names = scope_of(visit.session, visit.caller, row, model.named)
    assert row is not None  # or it was a 404
    findings = findings_of(row.envelope)
    monitored = findings is not None
    if findings is not None and names is not None:
        findings = own_findings(findings, names)
    own = corpora_of(visit.session, visit.caller, row.digest)
    return MemorizationAnswer(
        attestation=row.digest,
        monitored=monitored,
        findings=findings.to_json() if findings else None,
        audits=[
            AuditAnswer(
                **audit.model_dump(include={"digest", "signer", "made", "weights"}),
                document=document.to_json(),
            )
            for audit, document in audits_of(visit.session, row.digest, own)
        ],
    )


def findings_of(envelope: bytes) -> Findings | None:
    """What a stored attestation says of memorization; the rest of it is not read again."""
    statement: Any = canonical_json.parse(Envelope.parse(envelope, where="attestation").payload)
    stated = statement["predicate"].get("memorization")
    return None if stated is None else Findings.from_json(stated, where="attestation")


def own_findings(findings: Findings, names: Collection[str]) -> Findings:
    """What a monitor found of these corpora, and nothing of others."""
    return findings.model_copy(
        update={
            # Where branches begin tells of rollbacks for other corpora's sake.
            "branches": findings.branches[:1],
            "decisions": tuple(each for each in findings.decisions if each.corpus in names),
            "measured": {c: step for c, step in findings.measured.items() if c in names},
            "measures": tuple(each for each in findings.measures if each.corpus in names),
            "unmeasurable": tuple(each for each in findings.unmeasurable if each in names),
        }
    )


def audits_of(
    session: Session, attestation: str, names: Collection[str] | None, *, most: int = MAX_AUDITS
) -> list[tuple[MemorizationManifestRow, Audit]]:
    """The audits of the model that an attestation is about, the newest first, as documents.

    They must name both its run and its weights. The run may have had other weights before. Another
    run with the same weights may have read other corpora.

    Args:
        names: The corpora that the caller may read about; None: all, so whole audits.
    """
    if names is not None and not names:
        return []
    subject = session.execute(
        select(col(AttestationRow.run), col(SubjectRow.sha256))
        .join(SubjectRow, col(SubjectRow.attestation) == col(AttestationRow.digest))
        .where(col(AttestationRow.digest) == attestation, col(SubjectRow.name) == WEIGHTS)
    ).one_or_none()
    if subject is None:
        return []
    run, weights = subject
    table = MemorizationManifestRow
    rows = session.execute(
        select(table)
        .where(col(table.run) == run, col(table.weights).in_([weights, full_digest(weights)]))
        .order_by(col(table.made).desc(), col(table.digest))
        .limit(most)
    ).scalars()
    found = []
    for row in rows:
        document = read(Audit, Envelope.parse(row.envelope), where="audit").document
        found.append((row, document if names is None else own_audit(document, names)))
    return found


def own_audit(document: Audit, names: Collection[str]) -> Audit:
    """What an audit found of these corpora, and nothing of others."""
    return document.model_copy(
        update={
            # Adapters' file names are those of other corpora.
            "files": {},
            "corpora": tuple(each for each in document.corpora if each.corpus in names),
            "unchecked": tuple(each for each in document.unchecked if each.corpus in names),
        }
    )
