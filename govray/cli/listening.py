"""The sockets of this machine that take connections, and whose they are.

Source: Linux's ``Documentation/networking/proc_net_tcp.rst``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

_LISTENS = "0A"


@dataclass(frozen=True)
class Listener:
    """A socket of this machine that takes connections, and whose process it is."""

    port: int
    loopback: bool
    uid: int


def owners(address: str) -> set[int]:
    """Whose process listens at an address of this machine; nobody's, if it is of another."""
    from govray.governance.submission.http_exchange import is_loopback

    parts = urlsplit(address)
    if not is_loopback(parts.hostname or ""):
        return set()
    return {each.uid for each in listeners() if each.port == parts.port}


def listeners() -> Iterator[Listener]:
    """The sockets of TCP that take connections on this machine."""
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net", name)
        for row in table.read_text().splitlines()[1:] if table.exists() else []:
            words = row.split()
            address, _, port = words[1].partition(":")
            if words[3] == _LISTENS:
                yield Listener(int(port, 16), _is_loopback(address), int(words[7]))


def _is_loopback(words: str) -> bool:
    """Of an address as the kernel prints it: words of four bytes, each in this machine's order."""
    groups = [bytes.fromhex(words[at : at + 8]) for at in range(0, len(words), 8)]
    if sys.byteorder == "little":
        groups = [each[::-1] for each in groups]
    address = ip_address(b"".join(groups))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
