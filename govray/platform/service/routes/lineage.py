"""``…/lineage``: which data trained which layers of a model, whole or what the caller may see.

The whole document is sent as it was stored. A supplier gets the rows of its own corpora, from the
same query. Anything else is a 404, whether it exists or not.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from sqlalchemy import Row, Select, select
from sqlmodel import col
from starlette.concurrency import run_in_threadpool

from govray.errors import UsageError
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import asked
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.visible.lookup import DigestPath, full_digest
from govray.platform.service.visible.visible_models import find_lineage, reads_whole
from govray.platform.store import tables
from govray.platform.store.lineage import Lineage, of_group

router = APIRouter(tags=["lineage"])

ModelPath = Annotated[str, Path(max_length=128, examples=["python-source-gpt"])]
VersionPath = Annotated[str, Path(max_length=128, examples=["1.2.0"])]
GroupPath = Annotated[str, Path(max_length=1024, examples=["block.3", "adapter:acme-notes"])]

_JSON = "application/json"
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"model": Lineage, "description": "The lineage, as far as the caller may see it."}
}

_FOUND = (
    col(tables.Attestation.digest),
    col(tables.Attestation.public),
    col(tables.Attestation.lineage),
)


def _by_version(model: str, version: str) -> Select[*tuple[Any, ...]]:
    return (
        select(*_FOUND)
        .join(
            tables.ModelVersion,
            col(tables.ModelVersion.attestation) == col(tables.Attestation.digest),
        )
        .where(col(tables.ModelVersion.model) == model, col(tables.ModelVersion.version) == version)
    )


def _by_digest(digest: str) -> Select[*tuple[Any, ...]]:
    return select(*_FOUND).where(col(tables.Attestation.digest) == full_digest(digest))


@router.get(
    "/models/{model}/versions/{version}/lineage", response_class=Response, responses=_ANSWER
)
async def of_version(visit: VisitDep, model: ModelPath, version: VersionPath) -> Response:
    """Which data trained which layers of this version. A supplier sees its own corpora's rows."""
    return await _whole(visit, _by_version(model, version), ("version", f"{model} {version}"))


@router.get(
    "/models/{model}/versions/{version}/layers/{group}", response_class=Response, responses=_ANSWER
)
def layer_of_version(
    visit: VisitDep, model: ModelPath, version: VersionPath, group: GroupPath
) -> Response:
    """One layer group of this version: every corpus in it."""
    row = visit.session.execute(_by_version(model, version)).one_or_none()
    return _layer(visit, row, ("version", f"{model} {version}"), group)


@router.get("/attestations/{digest}/lineage", response_class=Response, responses=_ANSWER)
async def of_attestation(visit: VisitDep, digest: DigestPath) -> Response:
    """The same, of the model that an attestation is about."""
    return await _whole(visit, _by_digest(digest), ("attestation", digest))


@router.get("/attestations/{digest}/layers/{group}", response_class=Response, responses=_ANSWER)
def layer_of_attestation(visit: VisitDep, digest: DigestPath, group: GroupPath) -> Response:
    """One layer group of the model that an attestation is about."""
    row = visit.session.execute(_by_digest(digest)).one_or_none()
    return _layer(visit, row, ("attestation", digest), group)


_Named = tuple[str, str]
"""What the address names: a version or an attestation, and which."""


async def _whole(visit: Visit, statement: Select[*tuple[Any, ...]], named: _Named) -> Response:
    row = await asked(visit.session, lambda: visit.session.execute(statement).one_or_none())
    if row is not None and reads_whole(visit.caller, row):
        return Response(row.lineage, media_type=_JSON)  # as it was stored
    return await run_in_threadpool(
        lambda: _sent(find_lineage(visit.session, visit.caller, row, named))
    )


def _layer(visit: Visit, row: Row[Any] | None, named: _Named, group: str) -> Response:
    document = find_lineage(visit.session, visit.caller, row, named)
    try:
        return _sent(of_group(document, group))
    except UsageError as error:
        raise Problem(
            404, "Not found", f"There is no layer group {group[:200]!r} that you may read", error.do
        ) from None


def _sent(document: Lineage) -> Response:
    return Response(document.model_dump_json(by_alias=True, exclude_none=True), media_type=_JSON)
