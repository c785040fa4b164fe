"""One POST to one receiver, within bounds of time and size, without redirects and proxies.

Of the answer only the status counts, so its body is never read. The whole exchange ends at a time,
however slowly the receiver answers: a timeout of a socket alone begins anew with each byte.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from govray import __version__
from govray.alerts.address import Resolve, checked_address
from govray.errors import GovrayError
from govray.store.webhooks import check_url

LIMIT_S = 15.0
"""Seconds of one try, from the connection to the head of the answer."""
LONGEST_WHY = 300


@dataclass(frozen=True)
class ReceiverAnswer:
    """What became of one try: the answer's status, or why there is none."""

    status: int | None = None
    why: str | None = None

    @property
    def accepted(self) -> bool:
        """Whether the receiver has it."""
        return self.status is not None and 200 <= self.status < 300


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was checked, under the name that it was checked for."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=LIMIT_S)
        self._address, self._context = address, context

    def connect(self) -> None:
        """Connect to the address; TLS is with the name."""
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed: Collection[str] = (),
    limit: float = LIMIT_S,
    resolve: Resolve = socket.getaddrinfo,
) -> ReceiverAnswer:
    """Send ``body`` to ``url``. Whatever goes wrong is in the answer.

    Args:
        allowed: See `checked_address`.
        limit: Seconds until it must be answered.
    """
    late = threading.Event()
    try:
        parts = check_url(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        address = checked_address(host, port, allowed=allowed, resolve=resolve)
        context = ssl.create_default_context() if secure else None
        connection = _Pinned(host, port, address, context)
    except GovrayError as error:
        return ReceiverAnswer(why=str(error)[:LONGEST_WHY])

    def end() -> None:
        late.set()
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.timeout = limit
        connection.request("POST", target, body, {"User-Agent": f"govray/{__version__}", **headers})
        return ReceiverAnswer(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            return ReceiverAnswer(why=f"no answer within {limit:g} s")
        return ReceiverAnswer(why=_reason(error))
    finally:
        timer.cancel()
        connection.close()


def _reason(error: Exception) -> str:
    """Why nothing was answered, in words of ours and the system's: never what was sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the receiver's certificate is not accepted ({error.verify_message})"[:LONGEST_WHY]
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be reached ({error.strerror})"[:LONGEST_WHY]
    return f"its answer is not HTTP ({type(error).__name__})"
