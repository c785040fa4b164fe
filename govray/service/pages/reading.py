"""What pages read of the store, as far as a caller may: the queries that several pages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlmodel import Session, col

from govray.governance.envelope import Envelope
from govray.governance.policy import Policy
from govray.governance.statement import read
from govray.service.caller import Caller
from govray.service.pagination import Page
from govray.service.problems import not_found
from govray.service.readable import attestations, corpora_of, is_staff
from govray.store import lineage, tables
from govray.store.lineage import Lineage
from govray.store.tables import Attestation, ModelVersion

LATEST = 8


@dataclass(frozen=True)
class ModelRow:
    """One model in a listing. What is None is not for this caller, or not known."""

    href: str
    name: str
    version: str | None
    stage: str | None
    run: str | None
    signer: str | None
    policy: str | None
    assurance: str | None
    finished: str | None


_LISTED: tuple[Any, ...] = (
    col(Attestation.digest),
    col(Attestation.name),
    col(Attestation.run),
    col(Attestation.signer),
    col(Attestation.assurance),
    col(Attestation.started),
    col(Attestation.finished),
    col(Attestation.public),
    col(tables.Policy.name).label("policy_name"),
    col(tables.Policy.version).label("policy_version"),
)


def model_rows(
    session: Session, caller: Caller, *, page: Page | None = None
) -> tuple[list[ModelRow], str | None]:
    """The newest models that the caller may read of, and the cursor of what follows.

    A supplier's are in the order of their digests: when a run began is not for suppliers.
    """
    statement = (
        select(*_LISTED)
        .join(tables.Policy, col(tables.Policy.digest) == col(Attestation.policy))
        .where(attestations(caller))
    )
    columns: list[Any] = [Attestation.started, Attestation.digest]
    if not is_staff(caller):
        columns = [Attestation.digest]
    following = None
    if page is None:
        order = [col(each).desc() for each in columns]
        rows: Sequence[Row[Any]] = session.execute(statement.order_by(*order).limit(LATEST)).all()
    else:
        keyed = page.keyset(statement, columns, [str] * len(columns), descending=True)
        rows, following = page.cut(session.execute(keyed).all(), columns)
    versions = _versions(session, [row.digest for row in rows])
    return [_listed(caller, row, versions.get(row.digest)) for row in rows], following


def version_rows(session: Session, caller: Caller, model: str) -> list[ModelRow]:
    """The versions of a registered model that the caller may read of, the newest first."""
    statement = (
        select(*_LISTED, ModelVersion)
        .join(tables.Policy, col(tables.Policy.digest) == col(Attestation.policy))
        .join(ModelVersion, col(ModelVersion.attestation) == col(Attestation.digest))
        .where(col(ModelVersion.model) == model, attestations(caller))
        .order_by(
            col(ModelVersion.major).desc(),
            col(ModelVersion.minor).desc(),
            col(ModelVersion.patch).desc(),
            col(ModelVersion.version).desc(),
        )
        .limit(200)
    )
    return [_listed(caller, row, row.ModelVersion) for row in session.execute(statement).all()]


def _versions(session: Session, digests: Sequence[str]) -> dict[str, ModelVersion]:
    """The latest registered version of each attestation."""
    found = session.execute(
        select(ModelVersion)
        .where(col(ModelVersion.attestation).in_(digests))
        .order_by(col(ModelVersion.created))
    ).scalars()
    return {each.attestation: each for each in found}


def _listed(caller: Caller, row: Row[Any], version: ModelVersion | None) -> ModelRow:
    whole = row.public or is_staff(caller)
    return ModelRow(
        href=model_href(row.digest, version),
        name=version.model if version else row.name,
        version=version.version if version else None,
        stage=version.stage if version and whole else None,
        run=row.run if whole else None,
        signer=row.signer if whole else None,
        policy=f"{row.policy_name} v{row.policy_version}" if whole else None,
        assurance=row.assurance if whole else None,
        finished=row.finished if whole else None,
    )


def model_href(digest: str, version: ModelVersion | None) -> str:
    """The page of a model: by its registered name, or by its attestation."""
    if version is None:
        return f"/attestations/{digest.removeprefix('sha256:')}"
    return f"/models/{version.model}/{version.version}"


def readable_lineage(session: Session, caller: Caller, row: Attestation) -> Lineage:
    """The lineage of a model: whole, or the rows of the caller's own corpora.

    Raises:
        Problem: 404, there is nothing in it for this caller.
    """
    document = lineage.decode(row.lineage)
    if row.public or is_staff(caller):
        return document
    names = corpora_of(session, caller, row.digest)
    if not names:
        raise not_found("model", row.digest, hidden=True)
    return lineage.of_corpora(document, names)


def signed_policy(session: Session, digest: str) -> Policy | None:
    """The policy with this digest; it was verified before it was stored."""
    row = session.get(tables.Policy, digest)
    return read(Policy, Envelope.parse(row.envelope)).document if row else None
