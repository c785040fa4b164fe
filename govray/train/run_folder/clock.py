"""The driver's clock: whole seconds, in UTC. Its times are the operator's own assertion."""

from __future__ import annotations

from datetime import UTC, datetime

from govray.governance.formats.document import format_time


def instant() -> datetime:
    """Now, without fractions of a second."""
    return datetime.now(UTC).replace(microsecond=0)


def now() -> str:
    """Now, as documents write it."""
    return format_time(instant())
