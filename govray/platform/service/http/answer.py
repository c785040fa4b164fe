"""What all answers in JSON have in common, and all requests."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.platform.wire.answers import Answer as Answer
from govray.platform.wire.answers import Decimal as Decimal


class Body(BaseModel):
    """The base of what a request says. A field that there is not is refused."""

    model_config = ConfigDict(extra="forbid")


# Answers in gzip for whoever takes it: JSON, pages and scripts of 1 KiB and more.
#
# A lineage of a thousand corpora is megabytes of JSON that repeat themselves. Larger bodies are
# compressed in threads. Live streams go as they are; so do tiles, which are hashes, and signed
# envelopes, whose ETag is the digest of their bytes. A compressed answer has a weak ETag, since
# its bytes are others (RFC 9110 section 8.8.3).


LEVEL = 4
"""Of zlib: on lineages nearly as small as 9, in a fifth of the time."""
SMALLEST = 1024

_AS_THEY_ARE = ("application/octet-stream", "application/vnd.dsse.envelope.v1+json")

_REFUSED = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)")


class Compressed:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._gzip = GZipMiddleware(
            app,
            minimum_size=SMALLEST,
            compresslevel=LEVEL,
            exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, *_AS_THEY_ARE),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                tag = headers.get("etag")
                if tag and "content-encoding" in headers and not tag.startswith("W/"):
                    headers["ETag"] = f"W/{tag}"
            await send(message)

        plain = scope["type"] != "http" or _REFUSED.search(
            Headers(scope=scope).get("accept-encoding", "")
        )
        await (self.app if plain else self._gzip)(scope, receive, sending)
