"""What pages read of the store, as far as a caller may: the queries that several pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from sqlalchemy import ColumnElement, Row, func, select, true
from sqlmodel import col

from govray.errors import CouldNotCheck, GovrayError
from govray.platform.service.identity.pagination import Page
from govray.platform.service.identity.rights import is_within, within
from govray.platform.service.identity.visit import Visit
from govray.platform.service.visible.visible_corpora import own_corpora
from govray.platform.service.visible.visible_models import (
    attestation_order,
    attestations,
    reads_registry,
    reads_whole,
    versions,
)
from govray.platform.store import tables
from govray.platform.store.reverifications import newest
from govray.platform.store.tables import AttestationRow, ModelVersion, Reverification

LATEST = 8


ModelRow = dict[str, str | None]

_WHOLE = ("run", "signer", "assurance", "finished")
"""What only those see of a model who read its attestation whole."""
_LISTED: tuple[Any, ...] = (
    *(getattr(AttestationRow, name) for name in ("digest", "name", "started", "public", *_WHOLE)),
    col(tables.TrustRootRow.name).label("root_name"),
    col(tables.TrustRootRow.version).label("root_version"),
    col(tables.PolicyRow.name).label("policy_name"),
    col(tables.PolicyRow.version).label("policy_version"),
)


# A version's row, or that of an attestation without one, whose name and version are empty.
_MODEL = func.coalesce(col(ModelVersion.model), "").label("model")
_VERSION = func.coalesce(col(ModelVersion.version), "").label("version")


def model_rows(
    visit: Visit, which: ColumnElement[bool] | None = None, *, page: Page | None = None
) -> tuple[list[ModelRow], str | None]:
    """The newest models that the caller may read of, and the cursor of what follows. ``which``: a
    condition on `AttestationRow`.

    Each registered version is a row, so an attestation registered under two names has two rows. An
    unregistered one is a row too. A supplier's are in the order of their digests: when a run began
    is not for suppliers.
    """
    statement = (
        _models(visit, _MODEL, _VERSION, col(ModelVersion.stage))
        .outerjoin(ModelVersion, col(ModelVersion.attestation) == col(AttestationRow.digest))
        .where(attestations(visit.caller), true() if which is None else which)
    )
    columns = (*attestation_order(visit.caller), _MODEL, _VERSION)
    following = None
    if page is None:
        order = [each.desc() for each in columns]
        rows = visit.session.execute(statement.order_by(*order).limit(LATEST)).all()
    else:
        rows, following = page.rows(visit.session, statement, columns, descending=True)
    return _listed(visit, rows), following


def version_rows(visit: Visit, model: str, page: Page) -> tuple[list[ModelRow], str | None]:
    """The versions of a registered model that the caller may read of, the highest first."""
    v = ModelVersion
    columns: list[Any] = [v.major, v.minor, v.patch]
    statement = (
        _models(visit, *columns, col(v.model), col(v.version), col(v.stage))
        .join(v, col(v.attestation) == col(AttestationRow.digest))
        .where(col(v.model) == model, versions(visit.caller))
    )
    rows, following = page.rows(visit.session, statement, columns, descending=True)
    return _listed(visit, rows), following


def _models(visit: Visit, *more: Any) -> Any:
    listed = select(*_LISTED, within(visit.caller).label("within"), *more)
    root, policy = tables.TrustRootRow, tables.PolicyRow
    listed = listed.join(root, col(root.digest) == col(AttestationRow.trust_root))
    return listed.join(policy, col(policy.digest) == col(AttestationRow.policy))


def _listed(visit: Visit, rows: Sequence[Row[Any]]) -> list[ModelRow]:
    """The models of a listing. What is None is not for this caller, or not known."""
    again = newest(visit.session, [row.digest for row in rows])
    return [_row(visit, row, again.get(row.digest)) for row in rows]


def _row(visit: Visit, row: Row[Any], again: Reverification | None) -> ModelRow:
    found: ModelRow = {
        "verdict": _verdict(visit, row.digest, row.root_name, row.root_version, again).word,
        "href": version_href(row.model, row.version) if row.model else attestation_href(row.digest),
        "name": row.model or row.name,
        "version": row.version or None,
        "stage": row.stage if reads_registry(visit.caller, row) else None,
        "policy": f"{row.policy_name} v{row.policy_version}",
        **{name: getattr(row, name) for name in _WHOLE},
    }
    return found if reads_whole(visit.caller, row) else found | dict.fromkeys(("policy", *_WHOLE))


_OUTCOMES = {"failed": "REFUSED", "could not check": "NOT CHECKED"}
_ELSEWHERE = "Its operator knows why."


@dataclass(frozen=True)
class Verdict:
    """What this service says of a model: its own word. ``word`` is VERIFIED, REFUSED or
    NOT CHECKED; ``why`` are sentences."""

    word: str
    why: str


def verdict_of(visit: Visit, row: AttestationRow) -> Verdict:
    """The verdict on an attestation that the caller may read of."""
    root = visit.session.get_one(tables.TrustRootRow, row.trust_root)
    again = newest(visit.session, [row.digest]).get(row.digest)
    found = _verdict(visit, row.digest, root.name, root.version, again)
    if found.word != "VERIFIED":
        return found
    why = [found.why]
    if not row.has_records:
        why.append("Its records were not read: whose they are is the signer’s word.")
    if not visit.request.app.state.revocations.look().lists:
        why.append("No revocation list was given.")
    return replace(found, why=" ".join(why))


def _verdict(
    visit: Visit, digest: str, root: str, version: int, again: Reverification | None
) -> Verdict:
    """Only what verified was indexed (`govray.platform.indexing.indexer`). Since then it may have
    been revoked, or verified again with another outcome; why is for who reads its place."""
    word, why = "VERIFIED", ""
    lists = visit.request.app.state.revocations.look()
    try:
        lists.require(digest, root)
    except GovrayError as error:
        word = "NOT CHECKED" if isinstance(error, CouldNotCheck) else "REFUSED"
        why = f"{error.what}. {error.do or ''}".strip()
    if word != "REFUSED" and again is not None and again.outcome in _OUTCOMES:
        word, why = _OUTCOMES[again.outcome], again.why or ""
    if word != "VERIFIED":
        return Verdict(word, why if is_within(visit.session, visit.caller, digest) else _ELSEWHERE)
    when = "when it was indexed" if again is None else f"again at {again.checked}"
    return Verdict(word, f"It verified against the trust root {root} version {version} {when}.")


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
