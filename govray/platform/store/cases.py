"""Rights holders' cases: received, searched, answered, decided, closed.

A case holds what somebody asked about until it is closed. Then the bytes go, and their digest
stays. The requester has a key, which is shown once; the store has its SHA-256.

Functions take a session and never commit. Times are arguments. Each change has its entry in the
audit log, in the same transaction. Entries have no text, no contact and no key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import func
from sqlmodel import Session, select

from govray.errors import Refused, UsageError
from govray.governance.attestation.case_answer import (
    CaseOutcome,
    CaseRequest,
    CaseSearch,
    Decision,
    ShownVersion,
)
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.database import begin_writing
from govray.platform.store.states import CaseState
from govray.platform.store.tables import RightsCase

PREFIX = "govc_"
PUBLIC = "public"
"""The requester of a case that came without a token."""

MOST_BYTES = 4 << 20
"""Of what is asked about."""
MOST_DOMAINS = 100
LONGEST_CONTACT = 320
LONGEST_REASON = 2000
MOST_OPEN = 500
"""Cases that came without a token and are not closed: what strangers can make the store hold."""

NEXT = {
    "search": (CaseState.RECEIVED, CaseState.SEARCHED, CaseState.ANSWERED),
    "answer": (CaseState.SEARCHED, CaseState.ANSWERED),
    "decide": (CaseState.ANSWERED, CaseState.DECIDED),
    "link": (CaseState.DECIDED,),
}

_WHY_NOT = {
    CaseState.RECEIVED: "nothing was searched for yet",
    CaseState.SEARCHED: "it has no answer yet",
    CaseState.ANSWERED: "nothing is decided yet",
    CaseState.DECIDED: "it is decided",
    CaseState.CLOSED: "it is closed",
}


@dataclass(frozen=True, kw_only=True)
class NewCase:
    """What somebody asks: about ``content``, or about ``domains``. ``model`` none: all public."""

    contact: str
    model: str | None = None
    content: bytes | None = None
    domains: tuple[str, ...] = ()


def receive(session: Session, new: NewCase, *, by: ChangedBy) -> tuple[RightsCase, str]:
    """Keep a new case.

    Args:
        by: Who asks; its user is `PUBLIC` without a token.

    Returns:
        The case, and the requester's key: shown once, and never again.

    Raises:
        Refused: There are `MOST_OPEN` open ones that came without a token, as this does.
    """
    if by.user == PUBLIC:
        begin_writing(session)
        c = RightsCase
        waiting = select(func.count()).where(c.requester == PUBLIC, c.state != CaseState.CLOSED)
        if session.exec(waiting).one() >= MOST_OPEN:
            raise Refused(
                "too many cases that came without a token wait for an answer",
                do="Try again in some days, or write to the operator",
            )
    key = PREFIX + secrets.token_urlsafe(32)
    row = RightsCase(
        id=f"c-{secrets.token_hex(6)}",
        state=CaseState.RECEIVED,
        model=new.model,
        contact=new.contact,
        requester=by.user,
        key_sha256=_digest(key),
        sha256=None if new.content is None else f"sha256:{hashlib.sha256(new.content).hexdigest()}",
        size=None if new.content is None else len(new.content),
        domains=sorted(set(new.domains)),
        content=new.content,
        received=by.at,
    )
    session.add(row)
    asked = {"bytes": row.size} if new.content is not None else {"domains": len(row.domains)}
    log(session, by, "case.receive", row.id, asked)
    return row, key


def of_key(session: Session, case: str, key: str) -> RightsCase | None:
    """The case of this number, if the key is its requester's. The time does not tell which."""
    row = session.get(RightsCase, case)
    stated = row.key_sha256 if row is not None else _digest("")
    return row if hmac.compare_digest(stated, _digest(key)) and row is not None else None


def request_of(row: RightsCase) -> CaseRequest:
    """What a case asks about, as its answer says it."""
    if row.sha256 is None:
        return CaseRequest(domains=tuple(row.domains))
    return CaseRequest(sha256=row.sha256, size=row.size)


def search_of(row: RightsCase) -> CaseSearch | None:
    """What the last search found; None if there was none."""
    return CaseSearch.from_json(row.found, where=f"case {row.id}") if row.found else None


def outcome_of(row: RightsCase) -> CaseOutcome | None:
    """What was decided, as the answer of a closed case says it; None if nothing is."""
    if row.decision is None or row.reason is None or row.decided is None:
        return None
    decision: Any = row.decision
    return CaseOutcome(
        decision=decision,
        reason=row.reason,
        decided=row.decided,
        versions=tuple(ShownVersion.from_json(each, where="link") for each in row.links),
    )


def searched(session: Session, row: RightsCase, result: CaseSearch, *, by: ChangedBy) -> None:
    check_step(row, "search")
    row.state, row.searched, row.found = CaseState.SEARCHED, by.at, result.to_json()
    log(session, by, "case.search", row.id, {"findings": len(result.findings)})


def answered(
    session: Session, row: RightsCase, envelope: bytes, released: Collection[str], *, by: ChangedBy
) -> None:
    """Keep the signed answer, which the requester sees from now on."""
    check_step(row, "answer")
    row.state, row.answered, row.answer = CaseState.ANSWERED, by.at, envelope
    row.released = sorted(set(released))
    log(session, by, "case.answer", row.id, {"released": ", ".join(row.released) or "none"})


def decided(
    session: Session, row: RightsCase, decision: Decision, reason: str, *, by: ChangedBy
) -> None:
    """Keep what was decided. Before a version is linked, it may be decided again. Raises `Refused`:
    the case's state has no decision, or it contradicts what was found."""
    check_step(row, "decide")
    if decision not in get_args(Decision):
        raise UsageError(
            f"{decision[:40]!r} is no decision", do=f"Choose from {', '.join(get_args(Decision))}"
        )
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise UsageError(
            f"a decision has a reason of 1 to {LONGEST_REASON} characters", where="reason"
        )
    if row.links:
        raise Refused("a version is linked already", where=f"case {row.id}")
    result = search_of(row)
    some = result is not None and bool(result.findings)
    if some and decision == "nothing_found":
        raise Refused("there are findings", where=f"case {row.id}", do="Decide on them")
    if not some and decision in ("removed", "revoked"):
        raise Refused(
            "nothing was found that could be taken out",
            where=f"case {row.id}",
            do="Decide nothing_found, or refused",
        )
    row.state, row.decision, row.reason = CaseState.DECIDED, decision, reason.strip()
    row.decided, row.decided_by = by.at, by.user
    log(session, by, "case.decide", row.id, {"decision": decision})


def linked(session: Session, row: RightsCase, version: ShownVersion, *, by: ChangedBy) -> None:
    """Keep that a version's attestation shows what was decided; who calls has checked it."""
    check_step(row, "link")
    others = [each for each in row.links if each["model"] != version.model]
    row.links = [*others, version.to_json()]
    told = {"version": f"{version.model} {version.version}", "attestation": version.attestation}
    log(session, by, "case.link", row.id, told)


def closed(session: Session, row: RightsCase, envelope: bytes, *, by: ChangedBy) -> None:
    """Close a case: the bytes that were asked about go, and the answer says what was decided."""
    check_step(row, "link")
    row.state, row.closed, row.answer, row.content = CaseState.CLOSED, by.at, envelope, None
    log(session, by, "case.close", row.id, {"decision": row.decision or ""})


def shown(session: Session, row: RightsCase, *, by: ChangedBy) -> None:
    """Log that somebody read the case or its answer."""
    log(session, by, "case.read", row.id, {})


def check_step(row: RightsCase, what: str) -> None:
    """Return if ``what`` may be done now."""
    if row.state not in NEXT[what]:
        raise Refused(
            f"there is nothing to {what}: {_WHY_NOT[row.state]}",
            where=f"case {row.id}",
            do=f"A case can do this while it is {' or '.join(NEXT[what]).lower()}",
        )


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
