"""Which address something is sent to: one that was checked, and no other.

Whoever may add a webhook could make this machine ask others that they cannot reach: a database
beside it, or a cloud's metadata service. So only addresses of the public internet are sent to. A
name is resolved once. If one of its addresses is not public, all are refused, and the connection
goes to an address that was checked, not to the name. An operator names the hosts that are exempt.

Source: OWASP, Server-Side Request Forgery Prevention Cheat Sheet; the registries of RFC 6890.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from typing import Any

from govray.errors import InfrastructureFailed, Refused

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
