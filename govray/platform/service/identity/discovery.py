"""What an identity provider says of itself: where to send a browser, and where to ask for tokens.

The document is fetched from the issuer when it is first needed, and again after `KEYS_SECONDS`. It
has to name the same issuer. Its addresses have to be safe ones, and it must not rule out the
authorization code with PKCE by S256.

Sources: OpenID Connect Discovery 1.0 sections 3 and 4; RFC 8414; RFC 9207 section 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from govray.platform.service.identity.provider_address import NoAnswer, ask, is_safe

PATH = "/.well-known/openid-configuration"
KEYS_SECONDS = 300.0
"""How long what a provider publishes is remembered."""


@dataclass(frozen=True)
class ProviderMetadata:
    """What is used of the document.

    Attributes:
        states_issuer: Whether its answers to a browser say ``iss``.
        secret_in_header: Whether a client's secret goes into a header, not into the form.
    """

    authorization_endpoint: str
    token_endpoint: str
    states_issuer: bool
    secret_in_header: bool


class ProviderDiscovery:
    """The metadata of one issuer, remembered. ``clock``: seconds, monotonic."""

    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._lock = Lock()
        self._found: tuple[ProviderMetadata, float] | None = None

    def metadata(self) -> ProviderMetadata:
        """What the issuer says of itself. Raises `NoAnswer`."""
        with self._lock:
            now = self._clock()
            if self._found is None or now >= self._found[1]:
                document = ask(self._issuer.rstrip("/") + PATH)
                self._found = read_metadata(document, self._issuer), now + KEYS_SECONDS
            return self._found[0]


def read_metadata(document: dict[str, Any], issuer: str) -> ProviderMetadata:
    """What is used of a provider's document. Raises `NoAnswer`: it is another issuer's, has an
    address that is not safe, or rules out the flow."""
    if document.get("issuer") != issuer:
        raise NoAnswer("its document names another issuer")
    addresses = [document.get(f"{each}_endpoint") for each in ("authorization", "token")]
    authorization, token = (each if isinstance(each, str) else "" for each in addresses)
    if not (is_safe(authorization) and is_safe(token)):
        raise NoAnswer("its document has no https address to sign in at")
    if "code" not in _listed(document, "response_types_supported", "code"):
        raise NoAnswer("it gives no authorization code")
    if "S256" not in _listed(document, "code_challenge_methods_supported", "S256"):
        raise NoAnswer("it takes no PKCE by S256")
    ways = _listed(document, "token_endpoint_auth_methods_supported", "client_secret_basic")
    return ProviderMetadata(
        authorization_endpoint=authorization,
        token_endpoint=token,
        states_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        secret_in_header="client_secret_basic" in ways or "client_secret_post" not in ways,
    )


def _listed(document: dict[str, Any], name: str, default: str) -> list[Any]:
    """A list of the document; the one value ``default`` where it has none."""
    value = document.get(name, [default])
    return value if isinstance(value, list) else []
