"""Changes of what people edit: refused where somebody else was faster (RFC 9110 section 13.1.1).

What is read has an ``ETag``. A change that names it in ``If-Match`` is a 412 once it is stale, and
a change without the header goes through. A weak tag counts, for compressed answers have one. A form
has the tag of what its page showed in the hidden field `SHOWN`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response

from govray.platform.service.http.problems import Problem
from govray.platform.service.http.statuses import header

SHOWN = "shown"

ETAG: dict[int | str, dict[str, Any]] = {200: {"headers": header("ETag")}}
"""What a route answers that reads what people edit."""


def _takes(
    _shown: Annotated[
        str | None,
        Header(alias="If-Match", max_length=200, description="The ETag of what you read."),
    ] = None,
) -> None:
    """Describes the header; `check_unchanged` reads it."""


IF_MATCH = Depends(_takes)


def etag(value: object) -> str:
    """The name of what can be changed, as JSON has it."""
    return f'"{hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]}"'


def tell(response: Response, value: object) -> None:
    """Give an answer its ``ETag``."""
    response.headers["ETag"] = etag(value)


def check_unchanged(request: Request, value: object) -> None:
    """Ask with the lock of writers. Raises 412: ``value`` is not what ``If-Match`` names."""
    given = request.headers.get("if-match") or getattr(request.state, SHOWN, None)
    if given is None or given.strip() == "*":
        return
    if etag(value) not in [each.strip().removeprefix("W/") for each in given.split(",")]:
        raise Problem(
            412,
            "Changed meanwhile",
            "It is not as you read it: somebody changed it since",
            "Read it again, and send the change with its new ETag",
        )
