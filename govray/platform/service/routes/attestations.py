"""``/v1/attestations``: the exact signed bytes, by digest or by a file that they are about.

An envelope is immutable, so it may be cached for ever under its ETag. Its reader need not trust
this service: `govray verify` and any DSSE library check it against a trust root that came another
way.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field
from sqlalchemy import Row, func, select
from sqlmodel import Session, col

from govray.governance.formats.document import format_time
from govray.governance.verify.envelope_check import EnvelopeCheck, TrustGiven, check_envelope
from govray.governance.verify.steps import REVOCATIONS, STEPS
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import asked
from govray.platform.service.http.statuses import header, refusing
from govray.platform.service.identity.access import Caller, CallerDep
from govray.platform.service.identity.pagination import Listing, PageDep, columns_of, filtered
from govray.platform.service.identity.revocations import Lists
from govray.platform.service.identity.rights import within
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.runs import Before, Since, started_between
from govray.platform.service.visible import visible_models
from govray.platform.service.visible.lookup import SEE_MODELS, DigestPath, absent, full_digest
from govray.platform.service.visible.visible_models import (
    attestation_order,
    attestations,
    reads_whole,
    whole_attestations,
)
from govray.platform.store import tables
from govray.platform.store.tables import AttestationRow, SubjectRow
from govray.platform.wire.answers import AttestationItem

router = APIRouter(tags=["attestations"])

MAX_ROOTS = 64
MAX_WAITING = 8
"""Uploads that wait for one of the threads that check them; each holds its bytes."""

DSSE = "application/vnd.dsse.envelope.v1+json"
_SIGNATURE = {
    "type": "object",
    "properties": {"keyid": {"type": "string"}, "sig": {"type": "string"}},
    "required": ["sig"],
}
ENVELOPE_CONTENT: dict[str, Any] = {
    DSSE: {
        "schema": {
            "type": "object",
            "description": "Fetch the bytes as they are: a signature is over the payload's.",
            "properties": {
                "payload": {"type": "string", "contentEncoding": "base64"},
                "payloadType": {"type": "string"},
                "signatures": {"type": "array", "items": _SIGNATURE},
            },
            "required": ["payload", "payloadType", "signatures"],
        }
    }
}

ENVELOPE: dict[str, Any] = {
    "description": "The DSSE envelope, byte for byte as it was signed.",
    "content": ENVELOPE_CONTENT,
}
ENVELOPE_RESPONSES = {200: {**ENVELOPE, "headers": header("ETag")}, **refusing(304)}
IfNoneMatch = Annotated[str | None, Header(max_length=4096)]

Sha256 = Annotated[
    str,
    Query(
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="SHA-256 of the file, 64 hex digits.",
        examples=["7c" * 32],
    ),
]


class SubjectItem(Answer):
    """A file, and the attestation that it is in."""

    attestation: str = Field(examples=["sha256:" + "7c" * 32])
    name: str = Field(description="The file.", examples=["model.safetensors"])
    run: str
    public: bool


class Subjects(Answer):
    """The attestations about one file. None: nothing here that you may read is about it."""

    sha256: str
    items: list[SubjectItem]


class StepAnswer(Answer):
    """One of the verifier's numbered steps."""

    number: int = Field(ge=1, le=len(STEPS))
    name: str
    status: Literal["passed", "failed", "notChecked"]
    why: str | None = None


class CheckAnswer(Answer):
    """What an envelope alone shows. The whole check needs the model folder: `govray verify`."""

    outcome: Literal["failed", "partlyChecked", "notChecked"]
    meaning: str
    attestation: str | None = None
    run: str | None = None
    signer: str | None = None
    trust_root: str | None = Field(default=None, description="Digest of the root it is under.")
    indexed: bool = Field(
        description="Whether this service has the attestation, in a place that you may read. It "
        "verified the whole model folder then; that does not say what your copy holds."
    )
    at: str
    steps: list[StepAnswer]


_MEANING = {
    "failed": "A step failed: do not rely on this attestation.",
    "partlyChecked": "The steps marked passed hold, under a trust root that this service keeps. "
    "The others were not checked. Run `govray verify` on the model folder, with a trust root "
    "that you got from its owner.",
    "notChecked": "Nothing could be checked: there is no trust root here that you may read.",
}


_STALE = (
    "The trust root asks for a revocation list that this service does not have, or for a newer "
    f"one: nobody here knows whether the attestation is revoked. See step {REVOCATIONS.number}."
)


@router.get("/attestations")
def listing(
    visit: VisitDep,
    page: PageDep,
    run: Annotated[str | None, Query(max_length=128)] = None,
    name: Annotated[str | None, Query(max_length=1024)] = None,
    since: Since = None,
    before: Before = None,
) -> Listing[AttestationItem]:
    """The attestations that you may read, the newest first."""
    caller = visit.caller
    listed = columns_of(AttestationRow, AttestationItem)
    statement: Any = select(*listed, within(caller).label("within")).where(attestations(caller))
    if (run, since, before) != (None, None, None):
        statement = statement.where(whole_attestations(caller))
    statement = filtered(statement, (AttestationRow.run, run), (AttestationRow.name, name))
    statement = started_between(statement, AttestationRow.started, since, before)
    lists: Lists = visit.request.app.state.revocations
    revoked = lists.look().revoked

    def item(row: Row[Any]) -> AttestationItem:
        found = AttestationItem(digest=row.digest, name=row.name, public=False)
        if reads_whole(caller, row):
            found = AttestationItem.model_validate(row)
        since = format_time(revoked[row.digest].since) if row.digest in revoked else None
        return found.model_copy(update={"revoked": since})

    return page.listing(visit.session, statement, attestation_order(caller), item, descending=True)


@router.get("/attestations:by-subject")
def by_subject(visit: VisitDep, sha256: Sha256) -> Subjects:
    """The attestations about a file, by the file's SHA-256. A supplier finds public ones."""
    digest = sha256.removeprefix("sha256:")
    rows = visit.session.execute(
        select(
            col(SubjectRow.attestation),
            col(SubjectRow.name),
            col(AttestationRow.run),
            col(AttestationRow.public),
        )
        .join(AttestationRow, col(AttestationRow.digest) == col(SubjectRow.attestation))
        .where(
            col(SubjectRow.sha256).in_([digest, full_digest(digest)]),
            whole_attestations(visit.caller),
        )
        .order_by(
            col(AttestationRow.started).desc(), col(SubjectRow.attestation), col(SubjectRow.name)
        )
        .limit(200)
    ).all()
    return Subjects(sha256=digest, items=[SubjectItem.model_validate(row) for row in rows])


@router.get("/attestations/{digest}", response_class=Response, responses=ENVELOPE_RESPONSES)
async def envelope(
    visit: VisitDep, digest: DigestPath, if_none_match: IfNoneMatch = None
) -> Response:
    """The exact bytes of an attestation, for those who may read it whole."""
    statement = select(
        col(AttestationRow.envelope),
        col(AttestationRow.envelope_digest),
        col(AttestationRow.public),
    ).where(col(AttestationRow.digest) == full_digest(digest), whole_attestations(visit.caller))
    row = await asked(visit.session, lambda: visit.session.execute(statement).one_or_none())
    if row is None:
        raise absent(visit.caller, "attestation", digest, SEE_MODELS)
    return immutable(
        row.envelope, row.envelope_digest, public=row.public, asked=if_none_match, media_type=DSSE
    )


def immutable(
    data: bytes, etag: str, *, public: bool, asked: str | None, media_type: str
) -> Response:
    """Bytes that never change, or a 304 for who has them. ``etag``: what names the bytes; quoted
    here. ``public``: whether caches between may keep them."""
    tag = f'"{etag}"'
    headers = {
        "ETag": tag,
        "Cache-Control": f"{'public' if public else 'private'}, max-age=31536000, immutable",
        "Vary": "Authorization, Cookie",
        "X-Content-Type-Options": "nosniff",
    }
    tags = [each.strip().removeprefix("W/") for each in (asked or "").split(",")]
    if tag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


async def _body(request: Request, _caller: CallerDep) -> bytes:
    """The bytes as they came: FastAPI would parse what says that it is JSON. First the caller, so
    that a token that is not accepted is told before a body is read."""
    return await request.body()


@router.post(
    "/attestations:verify",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The envelope, as it is in `governance/attestation.dsse.json`.",
            "content": ENVELOPE_CONTENT,
        }
    },
)
async def verify(visit: VisitDep, data: Annotated[bytes, Depends(_body)]) -> CheckAnswer:
    """What of the verifier's seventeen steps an uploaded envelope alone shows.

    It is checked against the newest version here of each trust root that you may read a version
    of. The steps that need the model's
    files are named and not checked. Nothing is stored.
    """
    checks: CapacityLimiter = visit.request.app.state.checks
    state = visit.request.app.state
    if state.uploads >= checks.total_tokens + MAX_WAITING:
        raise Problem(
            503,
            "Busy",
            f"{MAX_WAITING} attestations wait to be checked",
            "Try again, or check it where you are with `govray verify`",
            headers={"Retry-After": "5"},
        )

    def check() -> CheckAnswer:
        at, (lists, pinned) = datetime.now(UTC), state.revocations.readable()
        check = check_envelope(
            data,
            trust_roots(visit.session, visit.caller),
            at=at,
            revocations=lists,
            pinned=pinned,
            verified=state.revocations.verified,
        )
        return _told(visit, check, at)

    state.uploads += 1  # counted here: a thread's queue is joined only at a later turn of the loop
    try:
        return await to_thread.run_sync(check, limiter=checks)
    finally:
        state.uploads -= 1


def trust_roots(session: Session, caller: Caller) -> list[TrustGiven]:
    """The trust roots whose names the caller may read, each in its newest version here.

    An older version names keys that its owner has withdrawn since, so it is never tried. That holds
    even if the newest refuses, and for callers who read nothing under the newest.

    Each is tried alone first, since some envelopes need no delegation. Then it is tried with each
    model's set of delegations, since sets may contradict each other.
    """
    root, table = tables.TrustRootRow, tables.Delegations
    order = (col(root.version).desc(), col(root.digest).desc())
    place = func.row_number().over(partition_by=col(root.name), order_by=order)
    ranked = select(col(root.digest), place.label("place")).subquery()
    statement = (
        select(col(root.name), col(root.envelope))
        .join(ranked, ranked.c.digest == col(root.digest))
        .where(ranked.c.place == 1)
        .order_by(*order)
    )
    readable = select(col(root.name)).where(visible_models.trust_roots(caller))
    statement = statement.where(col(root.name).in_(readable))
    roots = session.execute(statement.limit(MAX_ROOTS)).all()
    sets: dict[str, dict[str, tuple[bytes, ...]]] = {}
    for name, digest, lines in session.execute(
        select(col(root.name), col(table.digest), col(table.lines))
        .join(root, col(root.digest) == col(table.trust_root))
        .where(col(root.name).in_([each.name for each in roots]))
        .order_by(*order, col(table.digest))
        .limit(MAX_ROOTS)
    ):
        sets.setdefault(name, {})[digest] = tuple(lines.split(b"\n")[:-1])
    return [
        (each.envelope, delegations)
        for each in roots
        for delegations in ((), *sets.get(each.name, {}).values())
    ]


def _told(visit: Visit, check: EnvelopeCheck, at: datetime) -> CheckAnswer:
    attested = check.attested
    outcome: Literal["failed", "partlyChecked", "notChecked"] = "partlyChecked"
    if check.failed:
        outcome = "failed"
    elif attested is None or check.stale:
        outcome = "notChecked"
    indexed = (
        attested is not None
        and visit.session.execute(
            select(func.count())
            .select_from(AttestationRow)
            .where(col(AttestationRow.digest) == attested.digest, whole_attestations(visit.caller))
        ).scalar_one()
    )
    return CheckAnswer(
        outcome=outcome,
        meaning=_STALE if outcome == "notChecked" and check.stale else _MEANING[outcome],
        attestation=attested.digest if attested else None,
        run=attested.document.run.id if attested else None,
        signer=attested.authority.name if attested else None,
        trust_root=check.trust.digest if check.trust else None,
        indexed=bool(indexed),
        at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        steps=[StepAnswer.model_validate(step) for step in check.steps],
    )
