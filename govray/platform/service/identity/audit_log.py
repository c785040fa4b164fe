"""The audit log: who read a confidential corpus, who changed what, who was refused.

An entry is written before the answer goes out: a read that cannot be recorded is not answered.
Entries name things; they never hold a token, a text that was searched, or a record. Whatever
looks like a token is cut out, wherever it comes from.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Lock

from fastapi import Request
from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.formats.document import format_time
from govray.platform.service.http.limits import Buckets
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.prometheus import route_template
from govray.platform.service.identity.caller import PUBLIC, Caller
from govray.platform.store.tables import AuditEntry

log = logging.getLogger("govray.platform.service")

MAX_TEXT = 200
ANONYMOUS_BURST = 200
_TOKEN = re.compile(r"gov[crs]_\w[\w-]*|eyJ[\w-]+\.[\w-]+\.[\w-]*|[Bb]earer\s+\S+")

LOGGED = frozenset({"confidential", "restricted"})
"""The sensitivities of corpora whose reads are written down."""

Detail = Mapping[str, str | int | bool]


def entry(
    caller: Caller, action: str, subject: str, outcome: str, detail: Detail | None = None
) -> AuditEntry:
    """One row: ``caller`` did ``action`` to ``subject``, with ``outcome`` done or refused."""
    return AuditEntry(
        at=format_time(datetime.now(UTC)),
        user=safe(caller.name),
        token=caller.token,
        action=safe(action),
        subject=safe(subject),
        outcome=outcome,
        detail={
            safe(key): safe(value) if isinstance(value, str) else value
            for key, value in (detail or {}).items()
        },
    )


def safe(text: str) -> str:
    """``text`` without what looks like a token or cannot be printed, at most `MAX_TEXT` long."""
    cut = without_tokens(text[: 4 * MAX_TEXT])
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)[:MAX_TEXT]


def without_tokens(text: str) -> str:
    """``text`` without what looks like a token."""
    return _TOKEN.sub("[cut]", text)


class Audit:
    """What a route writes entries with, for the request's caller."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine = engine
        self._caller = caller

    def read(self, action: str, subject: str, detail: Detail | None = None) -> None:
        """Record a read of something confidential, at once, in a transaction of its own."""
        with Session(self._engine) as session:
            session.add(entry(self._caller, action, subject, "done", detail))
            session.commit()

    def write(
        self, session: Session, action: str, subject: str, detail: Detail | None = None
    ) -> None:
        """Add the entry to the transaction of the write: both are committed, or neither."""
        session.add(entry(self._caller, action, subject, "done", detail))


class Refusals:
    """Records of refused requests.

    Callers without a token may cause `ANONYMOUS_BURST` entries at once and then one a second, of
    all addresses together. What is beyond is counted, and the next entry says how many there were.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._anonymous = Buckets(1.0, ANONYMOUS_BURST, clock)
        self._skipped = 0
        self._lock = Lock()

    def add(self, request: Request, status: int) -> None:
        """Record that ``request`` was refused with ``status``. The refusal stands even if this
        cannot be written."""
        caller: Caller = getattr(request.state, "caller", PUBLIC)
        detail: dict[str, str | int | bool] = {"status": status}
        if caller.public:
            with self._lock:
                try:
                    self._anonymous.take("anonymous")
                except Problem:
                    self._skipped += 1
                    return
                if self._skipped:
                    detail["unrecorded_before"] = self._skipped
                    self._skipped = 0
        action = f"{request.method} {route_template(request.scope)}"
        try:
            with Session(self._engine) as session:
                session.add(entry(caller, action, request.url.path, "refused", detail))
                session.commit()
        except Exception:
            log.exception("a refused access could not be recorded")
