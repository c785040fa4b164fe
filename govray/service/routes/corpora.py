"""``/v1/corpora``: whose a corpus is, under which credentials, and which models used it.

For staff, and for the supplier of the corpus. Another supplier's corpus is a 404 like one that does
not exist. Reads of confidential corpora are written to the audit log.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field
from sqlalchemy import select
from sqlmodel import Session, col

from govray.governance.policy.route import ADAPTER
from govray.service.access import AuditDep, Caller, CallerDep, require
from govray.service.answer import Answer
from govray.service.caller import Role
from govray.service.pagination import Listing, PageDep
from govray.service.session import SessionDep
from govray.service.visibility import find_corpus, is_staff, own_corpora
from govray.store.tables import Attestation, Corpus, CorpusUse, Coverage, Credential, ModelVersion

READERS: tuple[Role, ...] = ("admin", "engineer", "auditor", "supplier")
MAX_USES = 200

router = APIRouter(tags=["corpora"], dependencies=[Depends(require(*READERS))])


class CorpusItem(Answer):
    """A corpus, as its credentials state it."""

    name: str = Field(examples=["acme-notes"])
    supplier: str = Field(description="The authority that issued its credential.")
    sensitivity: str
    confidential: bool = Field(description="Its records are indexed by keyed hash.")


class CredentialItem(Answer):
    """A signed credential of a corpus."""

    digest: str
    license: str
    category: str
    jurisdiction: str
    sensitivity: str
    valid_from: str
    valid_until: str
    records: str = Field(description="How many, a decimal string.")


class LayerUse(Answer):
    """The corpus in one layer group of a model. See `/lineage` for the words."""

    group: str = Field(examples=["block.3"])
    tokens: str
    gradient_norm_share: float | None = None
    direct: bool
    transitive: bool
    level: int | None = None


class VersionName(Answer):
    """A version of a model in the registry."""

    model: str
    version: str


class ModelUse(Answer):
    """What one attested run recorded of the corpus."""

    attestation: str
    name: str
    versions: list[VersionName]
    credential: str
    records: str
    rows: str
    tokens: str
    steps: str
    first_step: int | None
    last_step: int | None
    layers: list[LayerUse] = Field(description="The base groups in name order, then adapters.")


class CorpusAnswer(CorpusItem):
    """A corpus with its credentials and the models that used it, the newest first."""

    credentials: list[CredentialItem]
    uses: list[ModelUse]
    more: bool = Field(description=f"Whether there are more uses than the {MAX_USES} listed.")


@router.get("/corpora")
def listing(
    caller: CallerDep,
    session: SessionDep,
    page: PageDep,
    supplier: Annotated[
        str | None, Query(max_length=128, description="Of this supplier only.")
    ] = None,
) -> Listing[CorpusItem]:
    """The corpora that you may read about, by name."""
    statement: Any = select(
        col(Corpus.name), col(Corpus.supplier), col(Corpus.sensitivity), col(Corpus.confidential)
    ).where(own_corpora(caller))
    if supplier is not None:
        statement = statement.where(col(Corpus.supplier) == supplier)
    columns = (Corpus.name,)
    statement = page.keyset(statement, columns, [str])
    rows, following = page.cut(session.execute(statement).all(), columns)
    return Listing(items=[CorpusItem.model_validate(row) for row in rows], next=following)


@router.get("/corpora/{corpus}")
def corpus(
    corpus: Annotated[str, Path(max_length=128, examples=["acme-notes"])],
    caller: CallerDep,
    session: SessionDep,
    audit: AuditDep,
) -> CorpusAnswer:
    """A corpus: its credentials, and which models it trained, in which layers and steps."""
    found = find_corpus(session, caller, corpus)
    uses, more = _uses(session, caller, corpus)
    answer = CorpusAnswer(
        name=found.name,
        supplier=found.supplier,
        sensitivity=found.sensitivity,
        confidential=found.confidential,
        credentials=_credentials(session, caller, corpus),
        uses=uses,
        more=more,
    )
    if found.confidential:
        audit.read("corpus.read", corpus)
    return answer


def _credentials(session: Session, caller: Caller, corpus: str) -> list[CredentialItem]:
    statement = select(Credential).where(col(Credential.corpus) == corpus)
    if not is_staff(caller):
        # A corpus may have changed hands: what its former supplier signed is not the new one's.
        statement = statement.where(col(Credential.supplier) == caller.supplier)
    rows = session.execute(
        statement.order_by(col(Credential.valid_from).desc(), col(Credential.digest)).limit(
            MAX_USES
        )
    ).scalars()
    return [
        CredentialItem(
            digest=row.digest,
            license=row.license,
            category=row.category,
            jurisdiction=row.jurisdiction,
            sensitivity=row.sensitivity,
            valid_from=row.valid_from,
            valid_until=row.valid_until,
            records=str(row.records),
        )
        for row in rows
    ]


def _uses(session: Session, caller: Caller, corpus: str) -> tuple[list[ModelUse], bool]:
    rows = session.execute(
        select(CorpusUse, col(Attestation.name))
        .join(Attestation, col(Attestation.digest) == col(CorpusUse.attestation))
        .where(col(CorpusUse.corpus) == corpus)
        .order_by(col(Attestation.started).desc(), col(Attestation.digest))
        .limit(MAX_USES + 1)
    ).all()
    shown = rows[:MAX_USES]
    digests = [use.attestation for use, _ in shown]
    layers = _layers(session, caller, corpus, digests)
    versions: dict[str, list[VersionName]] = {}
    for row in session.execute(
        select(col(ModelVersion.model), col(ModelVersion.version), col(ModelVersion.attestation))
        .where(col(ModelVersion.attestation).in_(digests))
        .order_by(col(ModelVersion.model), col(ModelVersion.version))
    ):
        versions.setdefault(row.attestation, []).append(
            VersionName(model=row.model, version=row.version)
        )
    return [
        ModelUse(
            attestation=use.attestation,
            name=name,
            versions=versions.get(use.attestation, []),
            credential=use.credential,
            records=str(use.records),
            rows=str(use.rows),
            tokens=str(use.tokens),
            steps=str(use.steps),
            first_step=use.first_step,
            last_step=use.last_step,
            layers=layers.get(use.attestation, []),
        )
        for use, name in shown
    ], len(rows) > MAX_USES


def _layers(
    session: Session, caller: Caller, corpus: str, attestations: list[str]
) -> dict[str, list[LayerUse]]:
    found: dict[str, list[LayerUse]] = {}
    rows: Any = session.execute(
        select(Coverage).where(
            col(Coverage.corpus) == corpus, col(Coverage.attestation).in_(attestations)
        )
    ).scalars()
    for row in sorted(rows, key=lambda r: (r.layer_group.startswith(ADAPTER), r.layer_group)):
        if row.layer_group.startswith(ADAPTER) and not (row.direct or is_staff(caller)):
            continue  # another corpus's adapter bears its name
        found.setdefault(row.attestation, []).append(
            LayerUse(
                group=row.layer_group,
                tokens=str(row.tokens),
                gradient_norm_share=row.norm_share,
                direct=row.direct,
                transitive=row.transitive,
                level=row.level,
            )
        )
    return found
