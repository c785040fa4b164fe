"""Times that options take: an instant, or a date, which means its first second, all in UTC."""

from __future__ import annotations

import re
from datetime import datetime

from govray.errors import Malformed, UsageError

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def given_time(text: str, option: str) -> datetime:
    """The instant that ``option`` states by ``text``, aware and in UTC."""
    from govray.governance.formats.document import parse_time

    try:
        return parse_time(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    except Malformed:
        raise UsageError(
            f"{text!r} is not a time",
            where=option,
            do="Write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SSZ, in UTC",
        ) from None
