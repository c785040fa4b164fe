"""The model registry: names, versions, and the stage that each version is in.

A version binds a name and a semantic version to one attestation, for ever: what can change is
its stage, its labels and its notes. It can only be made of an attestation that the store holds,
and the store holds none that did not verify.

Stages

``none`` → ``staging`` → ``production`` → ``archived``; an archived version may come back to
``staging``. Before staging and before production stand the gates of a promotion policy
(``promotion_gates.py``), which are asked of the signed attestation and not of columns. Of one model
one version at most is in production: the one that was there is archived in the same transaction.

Invariants

* A promotion that is refused changes nothing.
* Who did what, and when, is an entry of the audit log in the same transaction. Entries are only
  added, so they are also the history of a version's stages.
* Two promotions of one model never overlap, on SQLite as on PostgreSQL. Each begins by writing to
  the model's row, and the other waits for it.

Functions take a session and never commit: who calls decides what belongs together. Times are
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import true, update
from sqlmodel import Session, col, select

from govray.errors import Refused, UsageError
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.document import NAME, Document, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.policy.credential import Credential
from govray.governance.trust.trust_state import Verified
from govray.platform.store import promotion_gates, tables
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.promotion_gates import GateEvidence, PromotionPolicy
from govray.platform.store.semantic_version import parse_version
from govray.platform.store.standing import RevocationStanding
from govray.platform.store.standing import standing as standing_of
from govray.platform.store.tables import AuditEntry, ModelRow, ModelVersion

Stage = Literal["none", "staging", "production", "archived"]

STAGES: Mapping[str, frozenset[str]] = {
    "none": frozenset({"staging", "archived"}),
    "staging": frozenset({"production", "archived"}),
    "production": frozenset({"archived"}),
    "archived": frozenset({"staging"}),
}
"""Stage → those that may follow it."""

MOST_LABELS = 64
LONGEST_NAME = 128
LONGEST_LABEL = 256
LONGEST_NOTES = 1 << 14

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class StageChange:
    """A change of stage. ``replaced`` is the version that was in production until then."""

    version: ModelVersion
    before: str
    after: str
    replaced: str | None


def register(
    session: Session,
    *,
    model: str,
    version: str,
    attestation: str,
    by: ChangedBy,
    labels: Mapping[str, str] | None = None,
    notes: str = "",
) -> ModelVersion:
    """Make a version, in stage ``none``; the model too, if its name is new. Raises `Refused`: the
    model has this version. A version is never made twice, nor changed."""
    number = parse_version(version)
    row = ModelVersion(
        model=check_name(model),
        version=str(number),
        major=number.major,
        minor=number.minor,
        patch=number.patch,
        attestation=attestation,
        stage="none",
        labels=check_labels(labels or {}),
        notes=check_notes(notes),
        created=by.at,
        user=by.user,
    )
    held = select(tables.AttestationRow.digest).where(tables.AttestationRow.digest == attestation)
    if not _DIGEST.fullmatch(attestation) or session.exec(held).first() is None:
        raise UsageError(
            "the store holds no such attestation",
            where=attestation[:LONGEST_NAME],
            do="Register the model folder, which verifies and indexes it: govray model register.",
        )
    if session.get(ModelRow, model) is None:
        session.add(ModelRow(name=model, labels={}, created=by.at, user=by.user))
        session.flush()
    _hold(session, model)
    if session.get(ModelVersion, (model, row.version)) is not None:
        raise Refused(
            "the model has this version already",
            where=f"{model} {row.version}",
            do="Take the next version. A version stays what it was made of.",
        )
    session.add(row)
    log(session, by, "model.register", _subject(row), {"attestation": attestation})
    return row


def model(session: Session, name: str) -> ModelRow:
    found = session.get(ModelRow, name)
    if found is None:
        raise UsageError(
            "there is no such model",
            where=name[:LONGEST_NAME],
            do="See which there are: govray model versions.",
        )
    return found


def versions(session: Session, name: str) -> list[ModelVersion]:
    """The versions of a model, the highest first."""
    model(session, name)
    return list(session.exec(_descending(name)))


def get(session: Session, name: str, version: str) -> ModelVersion:
    number = str(parse_version(version))
    found = session.get(ModelVersion, (name, number))
    if found is None:
        model(session, name)
        raise UsageError(
            "the model has no such version",
            where=f"{name} {number}",
            do=f"See which it has: govray model versions {name}.",
        )
    return found


def latest(session: Session, name: str, *, stage: str | None = None) -> ModelVersion | None:
    """The highest version of a model, or the highest in ``stage``, if any."""
    model(session, name)
    found: ModelVersion | None = session.exec(_descending(name, stage).limit(1)).first()
    return found


def evidence(session: Session, attestation: str) -> GateEvidence:
    """What the gates look at, read again from the envelopes."""
    row = session.get_one(tables.AttestationRow, attestation)
    document = _stored(Attestation, row.envelope, row.digest)
    digests = {each.corpus: each.credential for each in document.corpora}
    found = session.exec(
        select(tables.CredentialRow).where(col(tables.CredentialRow.digest).in_(digests.values()))
    )
    counts = {
        each.digest: _stored(Credential, each.envelope, each.digest).records.count for each in found
    }
    return GateEvidence(
        attestation=document,
        records={c: counts[digest] for c, digest in digests.items() if digest in counts},
        assurance=row.assurance,
    )


def promote(
    session: Session,
    *,
    name: str,
    version: str,
    stage: str,
    policy: Verified[PromotionPolicy],
    by: ChangedBy,
    standing: RevocationStanding | None = None,
) -> StageChange:
    """Move a version to ``staging`` or ``production``, if every gate before it holds.

    Args:
        standing: What is known of revocations; without it, nothing is, which is not enough
            under a trust root that asks for a list.

    Raises:
        CouldNotCheck: The trust root asks for a revocation list that is not here.
        Refused: The stage does not follow the version's, or gates failed: all of them are named.
            Or the version's attestation is revoked. Nothing was changed.
    """
    if stage not in ("staging", "production"):
        raise UsageError(
            f"{stage[:LONGEST_NAME]!r} is no stage to promote to",
            where=f"{name[:LONGEST_NAME]} {version[:LONGEST_NAME]}",
            do="Promote to staging or to production; archiving is not a promotion.",
        )
    row = _held(session, name, version)
    before = _follows(row, stage)
    root = session.get_one(tables.AttestationRow, row.attestation).trust_root
    known = standing or standing_of(session, (), at=parse_time(by.at))
    known.require(row.attestation, session.get_one(tables.TrustRootRow, root).name)
    failed = promotion_gates.failures(
        policy.document.gates(stage), evidence(session, row.attestation)
    )
    if failed:
        raise promotion_gates.refusal(policy.document, stage, f"{row.model} {row.version}", failed)
    replaced: str | None = None
    if stage == "production":
        for each in session.exec(_descending(name, stage)).all():
            replaced = each.version
            each.stage = "archived"
            detail = {"from": "production", "to": "archived", "replacedBy": row.version}
            log(session, by, "model.archive", _subject(each), detail)
    row.stage = stage
    detail = {"from": before, "to": stage, "gates": policy.digest, "policy": str(policy.document)}
    log(session, by, "model.promote", _subject(row), detail)
    return StageChange(row, before, stage, replaced)


def archive(session: Session, *, name: str, version: str, by: ChangedBy) -> StageChange:
    """Take a version out of use; no gate stands before that."""
    row = _held(session, name, version)
    before = _follows(row, "archived")
    row.stage = "archived"
    log(session, by, "model.archive", _subject(row), {"from": before, "to": "archived"})
    return StageChange(row, before, "archived", None)


def annotate(
    session: Session,
    *,
    name: str,
    version: str,
    by: ChangedBy,
    labels: Mapping[str, str] | None = None,
    notes: str | None = None,
) -> ModelVersion:
    """Replace a version's labels, its notes, or both; what is None stays."""
    row = _to_change(session, name, version)
    changed: list[str] = []
    if labels is not None:
        row.labels = check_labels(labels)
        changed.append("labels")
    if notes is not None:
        row.notes = check_notes(notes)
        changed.append("notes")
    log(session, by, "model.annotate", _subject(row), {"changed": changed})
    return row


def history(session: Session, name: str, version: str) -> list[AuditEntry]:
    """Every change of a version, oldest first."""
    row = get(session, name, version)
    query = (
        select(AuditEntry)
        .where(AuditEntry.subject == _subject(row), col(AuditEntry.action).startswith("model."))
        .order_by(col(AuditEntry.number))
    )
    return list(session.exec(query))


def check_name(name: str) -> str:
    """``name``, if a model may have it."""
    if not re.fullmatch(NAME, name):
        raise UsageError(
            f"{name[:LONGEST_NAME]!r} is no name for a model",
            where="name",
            do="Use letters, digits, dots, dashes and underscores, at most 128, a letter or "
            "digit first.",
        )
    return name


def check_labels(labels: Mapping[str, str]) -> dict[str, Any]:
    """The labels, sorted. Raises `UsageError`: more than 64, a name that no model could have, or
    text over 256 characters."""
    if len(labels) > MOST_LABELS:
        raise UsageError(f"{len(labels)} labels, at most {MOST_LABELS}", where="labels")
    for key, value in labels.items():
        if not re.fullmatch(NAME, key):
            raise UsageError(f"{key[:LONGEST_NAME]!r} is no name for a label", where="labels")
        if not isinstance(value, str) or len(value) > LONGEST_LABEL or not value.isprintable():
            raise UsageError(f"not a line of {LONGEST_LABEL} characters", where=f"label {key}")
    return dict(sorted(labels.items()))


def check_notes(notes: str) -> str:
    """The notes. Raises `UsageError`: more than 16,384 characters, or a NUL, which PostgreSQL
    cannot hold."""
    if len(notes) > LONGEST_NOTES or "\0" in notes:
        raise UsageError(f"not a text of {LONGEST_NOTES} characters", where="notes")
    return notes


def _hold(session: Session, name: str) -> None:
    """Begin to write: until this transaction ends, no other changes the versions of ``name``."""
    held = session.connection().execute(
        update(ModelRow).where(col(ModelRow.name) == name).values(name=name)
    )
    if held.rowcount == 0:
        model(session, name)


def _held(session: Session, name: str, version: str) -> ModelVersion:
    """The version, of a model that nobody else changes from now on (`_hold`)."""
    parse_version(version)
    _hold(session, name)
    return _to_change(session, name, version)


def _to_change(session: Session, name: str, version: str) -> ModelVersion:
    """The version as it is now, and not as this session read it before it held the model."""
    row = get(session, name, version)
    session.refresh(row)
    return row


def _follows(row: ModelVersion, stage: str) -> str:
    if stage not in STAGES[row.stage]:
        raise Refused(
            f"it is in stage {row.stage}, which {stage} does not follow",
            where=f"{row.model} {row.version}",
            do=f"From {row.stage} it may go to {' or '.join(sorted(STAGES[row.stage]))}.",
        )
    return row.stage


def _descending(name: str, stage: str | None = None) -> Any:
    v = ModelVersion
    found = select(v).where(v.model == name, true() if stage is None else v.stage == stage)
    return found.order_by(col(v.major).desc(), col(v.minor).desc(), col(v.patch).desc())


def _stored(kind: type[Document], envelope: bytes, digest: str) -> Any:
    sealed = read(kind, Envelope.parse(envelope))
    if sealed.digest != digest:
        raise Refused(
            "the stored bytes are not those of their digest",
            where=digest,
            do="Make the index again from storage: govray store rebuild.",
        )
    return sealed.document


def _subject(row: ModelVersion) -> str:
    return f"model:{row.model}@{row.version}"
