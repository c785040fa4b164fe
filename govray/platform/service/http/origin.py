"""Where a task's pages live: an origin of their own, never the service's.

What a notebook shows is arbitrary script. On the service's origin it would act as whoever looks at
it. Another port is not enough: browsers send cookies to every port of a host, and count ports of
one host as one site. So every task has a host name of its own, as JupyterHub advises
(``subdomain_host``). Then

* the service's cookie is never sent there, and the task's never here;
* to the service, a request from there is from another site (``access.py``);
* tasks of different people are origins of their own, so one notebook cannot use another's session.

The names are those below one that the operator gives: ``https://{task}.tasks.example.org``. On
loopback they are ``http://{task}.localhost:PORT``, which browsers take for this machine (RFC 6761).
The name should belong to another domain than the service's. A script may set cookies for a domain
that both share, which could sign a person out, or in as somebody else.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from govray.errors import UsageError
from govray.storage.place import Place

MARK = "{task}"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True)
class TaskOrigins:
    """Where tasks are shown, and where they may run.

    Attributes:
        url: ``scheme://{task}.NAME[:PORT]``, the origin of each.
        storage: Where tasks say that they answer.
        networks: Those that the proxy connects to, as the operator names them. Without any it
            connects to the node that the queue names, for whoever writes to the storage names
            addresses.
    """

    url: str
    storage: Place
    networks: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        parts = urlsplit(self.url.replace(MARK, "task"))
        first, _, rest = urlsplit(self.url).netloc.partition(".")
        right = parts.scheme in ("http", "https") and first == MARK and rest
        if not right or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise UsageError(
                "a task's address has a name of its own",
                where=self.url,
                do=f"Write https://{MARK}.tasks.example.org, with a DNS entry for all such names",
            )

    def of(self, task: str) -> str:
        """The origin of a task (RFC 6454)."""
        return self.url.replace(MARK, task).rstrip("/")

    def host(self, task: str) -> str:
        """What the ``Host`` header of its requests says."""
        return urlsplit(self.of(task)).netloc

    @property
    def secure(self) -> bool:
        """Whether its cookies travel over TLS only."""
        return self.url.startswith("https:")

    def reaches(self, address: Address, node: str | None) -> bool:
        """Whether the proxy may connect to ``address`` for a task that runs on ``node``."""
        if self.networks:
            return any(address in network for network in self.networks)
        if node is None or address.is_link_local or address.is_multicast:
            return False
        known = ipaddress.ip_address(node)
        # All of loopback is this machine, on which Ray then runs.
        return address == known or (address.is_loopback and known.is_loopback)


def network(text: str) -> Network:
    """A network that tasks run in."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise UsageError(
            f"{text[:60]!r} is no network", do="Give one, such as 10.0.0.0/16 or 127.0.0.1/32"
        ) from None
