"""``/v1/corpora``: whose a corpus is, under which credentials, and which models used it.

For staff, and for the supplier of the corpus. Another supplier's corpus is a 404 like one that does
not exist. Reads of confidential corpora are written to the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import select
from sqlmodel import col

from govray.governance.policy.route import ADAPTER
from govray.platform.service.http.answer import Answer, Decimal
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.audit_log import LOGGED
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible.visible_corpora import credentials, find_corpus, own_corpora
from govray.platform.service.visible.visible_corpora import uses as visible_uses
from govray.platform.service.visible.visible_models import cells
from govray.platform.store.tables import (
    AttestationRow,
    Corpus,
    CorpusUseRow,
    CoverageRow,
    CredentialRow,
    ModelVersion,
)

MAX_USES = 200

router = APIRouter(tags=["corpora"], dependencies=[needs("data")])


class CorpusItem(Answer):
    """A corpus, as its credentials state it."""

    name: str = Field(examples=["acme-notes"])
    supplier: str = Field(description="The authority that issued its credential.")
    sensitivity: str


class CredentialItem(Answer):
    """A signed credential of a corpus."""

    digest: str
    license: str
    category: str
    jurisdiction: str
    sensitivity: str
    valid_from: str
    valid_until: str
    records: Decimal = Field(description="How many, a decimal string.")


class LayerUse(Answer):
    """The corpus in one layer group of a model. See `/lineage` for the words."""

    group: str = Field(examples=["block.3"])
    tokens: Decimal
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
    records: Decimal
    rows: Decimal
    tokens: Decimal
    steps: Decimal
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
    visit: VisitDep,
    page: PageDep,
    supplier: Annotated[
        str | None, Query(max_length=128, description="Of this supplier only.")
    ] = None,
) -> Listing[CorpusItem]:
    """The corpora that you may read about, by name."""
    statement = filtered(
        select(Corpus).where(own_corpora(visit.caller)), (Corpus.supplier, supplier)
    )
    return page.listing(visit.session, statement, (Corpus.name,), CorpusItem.model_validate)


@router.get("/corpora/{corpus}")
def corpus(
    visit: VisitDep, corpus: Annotated[str, Path(max_length=128, examples=["acme-notes"])]
) -> CorpusAnswer:
    """A corpus: its credentials, and which models it trained, in which layers and steps."""
    found = find_corpus(visit.session, visit.caller, corpus)
    uses, more = uses_of(visit, corpus)
    signed = signed_credentials(visit, corpus)
    answer = CorpusAnswer(
        **CorpusItem.model_validate(found).model_dump(),
        credentials=[CredentialItem.model_validate(each) for each in signed],
        uses=[_model_use(each) for each in uses],
        more=more,
    )
    if found.sensitivity in LOGGED:
        visit.audit.read("corpus.read", corpus)
    return answer


def signed_credentials(visit: Visit, corpus: str) -> Sequence[CredentialRow]:
    """The credentials of a corpus that the caller may read, the newest first."""
    statement = (
        select(CredentialRow)
        .where(col(CredentialRow.corpus) == corpus, credentials(visit.caller))
        .order_by(col(CredentialRow.valid_from).desc(), col(CredentialRow.digest))
        .limit(MAX_USES)
    )
    return visit.session.execute(statement).scalars().all()


@dataclass(frozen=True)
class Use:
    """What one attested run recorded of a corpus, as rows of the store. ``cells``: of the layer
    groups: the base groups in name order, then adapters."""

    use: CorpusUseRow
    name: str
    run: str
    versions: Sequence[ModelVersion]
    cells: Sequence[CoverageRow]


def uses_of(visit: Visit, corpus: str) -> tuple[list[Use], bool]:
    """The uses of a corpus, the newest first, and whether there are more than `MAX_USES`."""
    rows = visit.session.execute(
        select(CorpusUseRow, col(AttestationRow.name), col(AttestationRow.run))
        .join(AttestationRow, col(AttestationRow.digest) == col(CorpusUseRow.attestation))
        .where(col(CorpusUseRow.corpus) == corpus, visible_uses(visit.caller))
        .order_by(col(AttestationRow.started).desc(), col(AttestationRow.digest))
        .limit(MAX_USES + 1)
    ).all()
    shown = rows[:MAX_USES]
    digests = [use.attestation for use, _, _ in shown]
    versions: dict[str, list[ModelVersion]] = {}
    for version in visit.session.execute(
        select(ModelVersion)
        .where(col(ModelVersion.attestation).in_(digests))
        .order_by(col(ModelVersion.model), col(ModelVersion.version))
    ).scalars():
        versions.setdefault(version.attestation, []).append(version)
    found: dict[str, list[CoverageRow]] = {}
    covered = visit.session.execute(
        select(CoverageRow).where(
            col(CoverageRow.corpus) == corpus,
            col(CoverageRow.attestation).in_(digests),
            cells(visit.caller),
        )
    ).scalars()
    for cell in sorted(covered, key=lambda c: (c.layer_group.startswith(ADAPTER), c.layer_group)):
        found.setdefault(cell.attestation, []).append(cell)
    uses = [
        Use(use, name, run, versions.get(use.attestation, ()), found.get(use.attestation, ()))
        for use, name, run in shown
    ]
    return uses, len(rows) > MAX_USES


def _model_use(each: Use) -> ModelUse:
    layers = [
        LayerUse(
            **cell.model_dump(include={"tokens", "direct", "transitive", "level"}),
            group=cell.layer_group,
            gradient_norm_share=cell.norm_share,
        )
        for cell in each.cells
    ]
    return ModelUse(
        **each.use.model_dump(),
        name=each.name,
        versions=[VersionName.model_validate(version) for version in each.versions],
        layers=layers,
    )
