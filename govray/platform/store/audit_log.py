"""The audit log's entry of a change, written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from govray.platform.store.tables import AuditEntry


@dataclass(frozen=True)
class ChangedBy:
    """Who asks for a change, and when. ``at``: ``YYYY-MM-DDTHH:MM:SSZ``. ``token``: the id of the
    token that was used, over HTTP."""

    user: str
    at: str
    token: str | None = None


def log(
    session: Session, by: ChangedBy, action: str, subject: str, detail: Mapping[str, Any]
) -> None:
    """Note that ``by`` did ``action`` to ``subject``, and flush; it is committed, or lost, with the
    change."""
    session.add(
        AuditEntry(
            at=by.at,
            user=by.user,
            token=by.token,
            action=action,
            subject=subject,
            outcome="done",
            detail=dict(detail),
        )
    )
    session.flush()
