"""One POST to one receiver, within bounds of time and size, without redirects and proxies.

Of the answer only the status counts, so its body is never read. The whole exchange ends at a time,
however slowly the receiver answers: a timeout of a socket alone begins anew with each byte. The
name's address and the handshake of TLS are part of it.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from govray import __version__
from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.platform.store.webhooks import check_url

Resolve = Callable[..., list[tuple[Any, ...]]]
"""As `socket.getaddrinfo`."""

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        ("fec0::/10", "3fff::/20", "5f00::/16", "64:ff9b:1::/48", "192.88.99.0/24"),
    )
)
"""What Python 3.11 takes for global: site-local, documentation, segment routing, local NAT64, and
the 6to4 relays."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def checked_address(
    host: str,
    port: int,
    *,
    allowed: Collection[str] = (),
    resolve: Resolve = socket.getaddrinfo,
) -> str:
    """An address of ``host`` that may be sent to.

    Args:
        host: A name or an address, as a URL has it, without brackets.
        allowed: Hosts, in lower case, whose addresses may be any.

    Raises:
        Refused: One of its addresses is not public, and the host is not allowed.
    """
    try:
        found = resolve(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InfrastructureFailed("the name has no address", where=host) from None
    addresses = [str(each[4][0]) for each in found]
    if not addresses:
        raise InfrastructureFailed("the name has no address", where=host)
    if host.lower() not in allowed:
        for each in addresses:
            if not is_public(each):
                raise Refused(
                    "the name has an address that is not of the public internet",
                    where=host,
                    do=f"The operator may allow it: govray alerts run --allow-host {host}",
                )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is one that everybody reaches, and so is what it carries inside. An IPv6
    address may carry one of IPv4: mapped, 6to4, Teredo or NAT64."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if any(parsed in network for network in _NOT_PUBLIC):
        return False
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = [parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())]
        if parsed in _NAT64:
            inner.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
        return all(each is None or is_public(str(each)) for each in inner)
    return True


LIMIT_S = 15.0
"""Seconds of one try, from the name's address to the head of the answer."""
LONGEST_WHY = 300
_LEAST_S = 0.001


@dataclass(frozen=True)
class ReceiverAnswer:
    """What became of one try: the answer's status, or why none came."""

    status: int | None = None
    why: str | None = None

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was checked, under the name that it was checked for.
    ``limit``: seconds for one wait of its socket."""

    def __init__(
        self, host: str, port: int, address: str, context: ssl.SSLContext | None, limit: float
    ) -> None:
        super().__init__(host, port, timeout=limit)
        self._address, self._context = address, context
        self.late = threading.Event()

    def connect(self) -> None:
        """Connect to the address; TLS is with the name."""
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        self._check_in_time()
        if self._context is not None:
            # The handshake comes after, so that `end` finds the socket that it goes over.
            self.sock = self._context.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._check_in_time()
            self.sock.do_handshake()

    def _check_in_time(self) -> None:
        if self.late.is_set():
            raise TimeoutError

    def end(self) -> None:
        """End whatever it does, from another thread."""
        self.late.set()
        if self.sock is not None:
            with suppress(OSError):
                # The socket's own, below TLS: what goes over it just now sees its end.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed: Collection[str] = (),
    limit: float = LIMIT_S,
    resolve: Resolve = socket.getaddrinfo,
) -> ReceiverAnswer:
    """Send ``body`` to ``url``. Whatever goes wrong is in the answer. ``limit``: seconds until it
    must be answered."""
    began = time.monotonic()
    try:
        parts = check_url(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        address = _within(
            limit, lambda: checked_address(host, port, allowed=allowed, resolve=resolve)
        )
        context = ssl.create_default_context() if secure else None
    except GovrayError as error:
        return ReceiverAnswer(why=str(error)[:LONGEST_WHY])
    except TimeoutError:
        return ReceiverAnswer(why=f"its name has no address within {limit:g} s")
    left = max(began + limit - time.monotonic(), _LEAST_S)
    connection = _Pinned(host, port, address, context, left)
    timer = threading.Timer(left, connection.end)
    timer.daemon = True
    timer.start()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", target, body, {"User-Agent": f"govray/{__version__}", **headers})
        return ReceiverAnswer(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        if connection.late.is_set() or isinstance(error, TimeoutError):
            return ReceiverAnswer(why=f"no answer within {limit:g} s")
        return ReceiverAnswer(why=_reason(error))
    finally:
        timer.cancel()
        connection.close()


def _within(limit: float, look: Callable[[], str]) -> str:
    """What ``look`` finds. The system's resolver cannot be interrupted, so a thread asks it."""
    found: Future[str] = Future()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="govray-resolve", daemon=True).start()
    return found.result(limit)


def _reason(error: Exception) -> str:
    """Why nothing was answered, in words of ours and the system's: never what was sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the receiver's certificate is not accepted ({error.verify_message})"[:LONGEST_WHY]
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be reached ({error.strerror})"[:LONGEST_WHY]
    return f"its answer is not HTTP ({type(error).__name__})"
