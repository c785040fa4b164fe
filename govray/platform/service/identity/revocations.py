"""The revocation lists that a service was given, and what they say of its store at the moment.

Lists are files, or folders of them, that others replace while the service runs. They are read
again every few seconds, when somebody asks. What cannot be read or does not verify makes the
answer "could not check", never "nothing is revoked".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from govray.errors import GovrayError
from govray.governance.trust.anchor import PinnedLists, read_lists
from govray.governance.trust.verified_lists import VerifiedLists
from govray.platform.store.standing import ANY, RevocationStanding, standing

LOOK_S = 2.0

HEADER = b"govray-revocations"
COULD_NOT_CHECK = b"could-not-check"


class Lists:
    """The lists, and the newest look at them.

    Args:
        pinned: Whether this person's pinned lists count beside them.

    Attributes:
        verified: What was verified of them, for every look and every check of an upload.
    """

    def __init__(
        self,
        engine: Engine,
        paths: Sequence[Path],
        clock: Callable[[], datetime],
        *,
        pinned: bool = False,
    ) -> None:
        self._engine, self._paths, self._clock = engine, tuple(paths), clock
        self._pinned = pinned
        self.verified = VerifiedLists()
        self._lock = threading.Lock()
        self._seen: tuple[float, RevocationStanding] | None = None

    def envelopes(self) -> tuple[tuple[bytes, ...], PinnedLists]:
        """The lists as they are now, and the pinned ones."""
        pinned = PinnedLists.read() if self._pinned else PinnedLists()
        return read_lists(self._paths), pinned

    def readable(self) -> tuple[tuple[bytes, ...], PinnedLists]:
        """As `envelopes`; none if one cannot be read, which `look` then says."""
        try:
            return self.envelopes()
        except GovrayError:
            return (), PinnedLists()

    @property
    def recent(self) -> RevocationStanding | None:
        """The last look, if it was a moment ago."""
        seen = self._seen
        return seen[1] if seen and time.monotonic() - seen[0] < LOOK_S else None

    def look(self) -> RevocationStanding:
        """What the lists say; read again if the last look is some seconds ago."""
        with self._lock:
            if (recent := self.recent) is not None:
                return recent
            try:
                lists, pinned = self.envelopes()
                with Session(self._engine) as session:
                    found = standing(
                        session, lists, at=self._clock(), pinned=pinned, verified=self.verified
                    )
            except GovrayError as error:
                found = RevocationStanding(0, {ANY: str(error)}, {})
            except SQLAlchemyError:  # what asks the store itself says so better
                found = RevocationStanding(0, {ANY: "the store does not answer"}, {})
            self._seen = time.monotonic(), found
            return found


class Marked:
    """The layer that marks every answer while revocations could not be checked."""

    def __init__(self, app: ASGIApp, lists: Lists) -> None:
        self.app, self.lists = app, lists

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        recent = self.lists.recent
        found = recent if recent is not None else await run_in_threadpool(self.lists.look)

        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start" and found.lacking:
                headers = [*message.get("headers", []), (HEADER, COULD_NOT_CHECK)]
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, marking)
