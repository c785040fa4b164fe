"""``…/lineage``: which data trained which layers of a model, whole or what the caller may see.

The whole document is sent as it was stored. A supplier gets the rows of its own corpora, from the
same query. Anything else is a 404, whether it exists or not.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from sqlalchemy import Row, select
from sqlmodel import col
from starlette.concurrency import run_in_threadpool

from govray.errors import UsageError
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import asked
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible.lookup import DigestPath, full_digest
from govray.platform.service.visible.visible_models import find_lineage, reads_whole
from govray.platform.store.lineage import Lineage, of_group
from govray.platform.store.tables import AttestationRow, ModelVersion

router = APIRouter(tags=["lineage"])

ModelPath = Annotated[str, Path(max_length=128, examples=["python-source-gpt"])]
VersionPath = Annotated[str, Path(max_length=128, examples=["1.2.0"])]
GroupPath = Annotated[str, Path(max_length=1024, examples=["block.3", "adapter:acme-notes"])]

_JSON = "application/json"
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"model": Lineage, "description": "The lineage, as far as the caller may see it."}
}

Named = tuple[str, str]
"""What an address names: a version or an attestation, and which."""


class NamedAttestation:
    """An attestation that an address names: of a version of a model, or by its digest."""

    def __init__(self, named: Named, attestation: Any) -> None:
        self.named = named
        self._digest = attestation

    def row(self, visit: Visit, column: Any) -> Row[Any] | None:
        """Its digest, whether it is public, and one column more, if it is there."""
        a = AttestationRow
        found = select(col(a.digest), col(a.public), col(column))
        found = found.where(col(a.digest) == self._digest)
        return visit.session.execute(found).one_or_none()


def by_version(model: str, version: str) -> NamedAttestation:
    v = ModelVersion
    registered = select(col(v.attestation)).where(col(v.model) == model, col(v.version) == version)
    return NamedAttestation(("version", f"{model} {version}"), registered.scalar_subquery())


def by_digest(digest: str) -> NamedAttestation:
    return NamedAttestation(("attestation", digest), full_digest(digest))


@router.get(
    "/models/{model}/versions/{version}/lineage", response_class=Response, responses=_ANSWER
)
async def of_version(visit: VisitDep, model: ModelPath, version: VersionPath) -> Response:
    """Which data trained which layers of this version. A supplier sees its own corpora's rows."""
    return await _whole(visit, by_version(model, version))


@router.get(
    "/models/{model}/versions/{version}/layers/{group}", response_class=Response, responses=_ANSWER
)
def layer_of_version(
    visit: VisitDep, model: ModelPath, version: VersionPath, group: GroupPath
) -> Response:
    """One layer group of this version: every corpus in it."""
    return _layer(visit, by_version(model, version), group)


@router.get("/attestations/{digest}/lineage", response_class=Response, responses=_ANSWER)
async def of_attestation(visit: VisitDep, digest: DigestPath) -> Response:
    """The same, of the model that an attestation is about."""
    return await _whole(visit, by_digest(digest))


@router.get("/attestations/{digest}/layers/{group}", response_class=Response, responses=_ANSWER)
def layer_of_attestation(visit: VisitDep, digest: DigestPath, group: GroupPath) -> Response:
    """One layer group of the model that an attestation is about."""
    return _layer(visit, by_digest(digest), group)


async def _whole(visit: Visit, model: NamedAttestation) -> Response:
    row = await asked(visit.session, lambda: model.row(visit, AttestationRow.lineage))
    if row is not None and reads_whole(visit.caller, row):
        return Response(row.lineage, media_type=_JSON)  # as it was stored
    return await run_in_threadpool(
        lambda: _sent(find_lineage(visit.session, visit.caller, row, model.named))
    )


def _layer(visit: Visit, model: NamedAttestation, group: str) -> Response:
    row = model.row(visit, AttestationRow.lineage)
    document = find_lineage(visit.session, visit.caller, row, model.named)
    try:
        return _sent(of_group(document, group))
    except UsageError as error:
        raise Problem(
            404, "Not found", f"There is no layer group {group[:200]!r} that you may read", error.do
        ) from None


def _sent(document: Lineage) -> Response:
    return Response(document.model_dump_json(by_alias=True, exclude_none=True), media_type=_JSON)
