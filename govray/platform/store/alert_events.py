"""The identity of an event, and the event that says only that a webhook works."""

from __future__ import annotations

import hashlib

from govray.governance.formats import canonical_json
from govray.platform.store.tables import Alert
from govray.platform.store.webhooks import TEST


def event_id(kind: str, subject: str, mark: str) -> str:
    """The id of what these three name: 64 hex digits, the same whoever notices it, and when."""
    return hashlib.sha256(canonical_json.encode([kind, subject, mark])).hexdigest()


def probe(webhook: str, *, at: str, number: str) -> Alert:
    """An event that says only that a webhook works. ``number`` tells one from the next."""
    return Alert(
        id=event_id(TEST, webhook, number),
        kind=TEST,
        subject=webhook,
        mark=number,
        at=at,
        noticed=at,
        data={},
    )
