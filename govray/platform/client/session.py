"""Who asks which service: `connect` finds the address and the token, `Client` asks.

The address is given or GOVRAY_SERVER. The token is given, or GOVRAY_TOKEN, or the one that
`govray login` keeps for that address.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator

from govray.errors import UsageError
from govray.platform.client import documents
from govray.platform.client.connection import checked_url, segment
from govray.platform.client.counted_body import CountedBody, Told
from govray.platform.client.logins import read_login
from govray.platform.client.operations import Operations

ENDED = frozenset({"COMPLETED", "STOPPED", "KILLED", "ERROR"})
"""States that a submission stays in until somebody resumes it."""


class Client(Operations):
    """A service: a method for each of its operations, and what takes several of them."""

    def send_archive(self, data: bytes, *, told: Told = lambda sent, whole: None) -> str:
        """Send the archive of a working directory, unless the service has it. Returns its digest.

        Args:
            data: As `govray.governance.submission.code_archive.packed` returns it.
            told: Called with the bytes that were sent so far, and with all.

        Raises:
            Refused: The caller may not submit, or the service has no storage.
            UsageError: The service takes no archives, or not one of this size.
            InfrastructureFailed: It does not answer, or cannot at the moment.
        """
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        try:
            self.get_archive(digest)
        except UsageError:
            path, body = f"/v1/archives/{segment(digest)}", CountedBody(data, told)
            self.ask("PUT", path, documents.Archive, data=body, kind="application/zip")
        return digest

    def follow(
        self, submission: str, *, every_s: float = 2.0, timeout_s: float | None = None
    ) -> Iterator[documents.QueueEntry]:
        """A submission each time that it has changed, from now until it has ended.

        Args:
            every_s: Seconds between two looks.
            timeout_s: Seconds to wait at most; for ever by default.

        Raises:
            UsageError: There is none, or it has not ended in time.
        """
        began, seen = time.monotonic(), None
        while True:
            now = self.get_submission(submission)
            if now != seen:
                yield now
            seen = now
            if now.state in ENDED:
                return
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise UsageError(f"it is still {now.state}", where=f"submission {submission}")
            time.sleep(every_s)


def connect(server: str | None = None, token: str | None = None) -> Client:
    """A client of a service.

    Args:
        server: Its address; GOVRAY_SERVER by default.
        token: By default GOVRAY_TOKEN, or what `govray login` keeps for that address.

    Raises:
        UsageError: No address is given, or none that a token may be sent to.
        Refused: Others may read the file of tokens.
    """
    given = server or os.environ.get("GOVRAY_SERVER")
    if not given:
        raise UsageError("no service is named", where="GOVRAY_SERVER", do="Set it to its address")
    address = checked_url(given)
    if token is None:
        token = os.environ.get("GOVRAY_TOKEN") or None
    if token is None and (login := read_login(address)) is not None:
        token = login.token
    return Client(address, token)
