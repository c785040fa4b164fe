"""What pages read of the store, as far as a caller may: the queries that several pages share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from sqlalchemy import Row, func, select
from sqlmodel import col

from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.pagination import Page
from govray.platform.service.identity.visit import Visit
from govray.platform.service.visible.reach import within
from govray.platform.service.visible.visible_corpora import own_corpora
from govray.platform.service.visible.visible_models import (
    attestation_order,
    attestations,
    reads_registry,
    reads_whole,
    versions,
)
from govray.platform.store import tables
from govray.platform.store.tables import Attestation, ModelVersion

LATEST = 8


ModelRow = dict[str, str | None]

_WHOLE = ("run", "signer", "assurance", "finished")
"""What only those see of a model who read its attestation whole."""
_LISTED: tuple[Any, ...] = (
    *(getattr(Attestation, name) for name in ("digest", "name", "started", "public", *_WHOLE)),
    col(tables.Policy.name).label("policy_name"),
    col(tables.Policy.version).label("policy_version"),
)


# A version's row, or that of an attestation without one, whose name and version are empty.
_MODEL = func.coalesce(col(ModelVersion.model), "").label("model")
_VERSION = func.coalesce(col(ModelVersion.version), "").label("version")


def model_rows(visit: Visit, *, page: Page | None = None) -> tuple[list[ModelRow], str | None]:
    """The newest models that the caller may read of, and the cursor of what follows.

    Each registered version is a row, so an attestation registered under two names has two rows. An
    unregistered one is a row too. A supplier's are in the order of their digests: when a run began
    is not for suppliers.
    """
    statement = (
        _models(visit, _MODEL, _VERSION, col(ModelVersion.stage))
        .outerjoin(ModelVersion, col(ModelVersion.attestation) == col(Attestation.digest))
        .where(attestations(visit.caller))
    )
    columns = (*attestation_order(visit.caller), _MODEL, _VERSION)
    following = None
    if page is None:
        order = [each.desc() for each in columns]
        rows = visit.session.execute(statement.order_by(*order).limit(LATEST)).all()
    else:
        rows, following = page.rows(visit.session, statement, columns, descending=True)
    return [_listed(visit.caller, row) for row in rows], following


def version_rows(visit: Visit, model: str, page: Page) -> tuple[list[ModelRow], str | None]:
    """The versions of a registered model that the caller may read of, the highest first."""
    v = ModelVersion
    columns: list[Any] = [v.major, v.minor, v.patch]
    statement = (
        _models(visit, *columns, col(v.model), col(v.version), col(v.stage))
        .join(v, col(v.attestation) == col(Attestation.digest))
        .where(col(v.model) == model, versions(visit.caller))
    )
    rows, following = page.rows(visit.session, statement, columns, descending=True)
    return [_listed(visit.caller, row) for row in rows], following


def _models(visit: Visit, *more: Any) -> Any:
    listed = select(*_LISTED, within(visit.caller).label("within"), *more)
    return listed.join(tables.Policy, col(tables.Policy.digest) == col(Attestation.policy))


def _listed(caller: Caller, row: Row[Any]) -> ModelRow:
    """One model in a listing. What is None is not for this caller, or not known."""
    found: ModelRow = {
        "href": version_href(row.model, row.version) if row.model else attestation_href(row.digest),
        "name": row.model or row.name,
        "version": row.version or None,
        "stage": row.stage if reads_registry(caller, row) else None,
        "policy": f"{row.policy_name} v{row.policy_version}",
        **{name: getattr(row, name) for name in _WHOLE},
    }
    return found if reads_whole(caller, row) else found | dict.fromkeys(("policy", *_WHOLE))


def version_href(model: str, version: str) -> str:
    return f"/models/{quote(model, safe='')}/{quote(version, safe='')}"


def attestation_href(digest: str) -> str:
    return f"/attestations/{digest.removeprefix('sha256:')}"


def linked_corpora(visit: Visit, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` whose page the caller may open, so that no link leads to a refusal."""
    found = select(col(tables.Corpus.name)).where(
        col(tables.Corpus.name).in_(sorted(set(names))), own_corpora(visit.caller)
    )
    return frozenset(visit.session.execute(found).scalars())
