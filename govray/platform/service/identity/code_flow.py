"""Signing in at an identity provider: the authorization code flow with PKCE.

1. A browser is sent to the provider with ``state``, ``nonce`` and the challenge of the attempt that
   it holds (`sign_in_attempts`).
2. The provider's answer is taken from that browser alone, and only if it is from our provider.
3. The code and the attempt's verifier are exchanged at the token endpoint, by us.
4. The id token that comes is checked as any token of the provider, and against the attempt
   (`oidc.Oidc.verify_id_token`). It says who it is. No token of the provider is kept.

Own code on urllib and PyJWT, not a client library. What Authlib would save is one address and one
form. It would bring httpx and a session in a signed cookie, and it does not check ``iss``.

Sources: RFC 6749 section 4.1; RFC 7636 (PKCE); RFC 9207 (``iss``, against mix-up); RFC 9700 section
2.1; OpenID Connect Core 1.0 section 3.1.
"""

from __future__ import annotations

import base64
import hmac
import time
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import pydantic

from govray.errors import UsageError
from govray.governance.formats.keys import read_password
from govray.platform.service.http.settings import OidcSettings
from govray.platform.service.http.stated_file import read_stated
from govray.platform.service.identity.caller import Caller
from govray.platform.service.identity.oidc import Oidc
from govray.platform.service.identity.provider_address import NoAnswer, ask, check_address, is_safe
from govray.platform.service.identity.sign_in_attempts import BrowserSignIn
from govray.platform.service.identity.tokens import NotAccepted

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


CALLBACK = "/sign-in/callback"
LONGEST_CODE = 4096


class CodeFlow:
    def __init__(
        self,
        issuer: str,
        oidc: Oidc,
        *,
        client: str,
        redirect_url: str,
        secret: str | None,
        scope: str,
    ) -> None:
        self._issuer = issuer
        self._oidc = oidc
        self._client = client
        self._secret = secret
        self._scope = scope
        self._lock = Lock()
        self._found: tuple[ProviderMetadata, float] | None = None
        self.redirect_url = redirect_url
        self.provider = urlsplit(issuer).hostname or issuer
        """The provider's name, for people."""

    @property
    def secure(self) -> bool:
        """Whether people reach this service over https."""
        return self.redirect_url.startswith("https:")

    def _metadata(self) -> ProviderMetadata:
        """What the issuer says of itself, remembered. Raises `NoAnswer`."""
        with self._lock:
            now = time.monotonic()
            if self._found is None or now >= self._found[1]:
                document = ask(self._issuer.rstrip("/") + PATH)
                self._found = read_metadata(document, self._issuer), now + KEYS_SECONDS
            return self._found[0]

    def address(self, attempt: BrowserSignIn) -> str:
        """Where to send the browser that holds ``attempt``. Raises `NoAnswer`."""
        endpoint = self._metadata().authorization_endpoint
        asked = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self.redirect_url,
            "scope": self._scope,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    def check_issuer(self, stated: str | None) -> None:
        """Refuse an answer that another provider gave.

        Args:
            stated: The parameter ``iss`` of the answer, if it has one.

        Raises:
            NotAccepted: It names another issuer, or none though ours always does.
        """
        if stated is None and not self._metadata().states_issuer:
            return
        if stated is None or not hmac.compare_digest(stated.encode(), self._issuer.encode()):
            raise NotAccepted("The answer is not from this service's identity provider")

    def exchange(self, attempt: BrowserSignIn, code: str) -> Caller:
        """Whom the provider says came back with ``code``. Raises `NotAccepted` or `NoAnswer`."""
        metadata = self._metadata()
        answer = ask(metadata.token_endpoint, *self._request(metadata, attempt, code))
        token, access = answer.get("id_token"), answer.get("access_token")
        if not isinstance(token, str):
            raise NoAnswer("it sent no id token")
        return self._oidc.verify_id_token(
            token,
            client=self._client,
            nonce=attempt.nonce,
            access_token=access if isinstance(access, str) else None,
        )

    def _request(
        self, metadata: ProviderMetadata, attempt: BrowserSignIn, code: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_url,
            "client_id": self._client,
            "code_verifier": attempt.verifier,
        }
        if self._secret is None:
            return form, {}
        if not metadata.secret_in_header:
            return form | {"client_secret": self._secret}, {}
        # RFC 6749 section 2.3.1: both are encoded as a form is, before they are joined.
        pair = f"{quote_plus(self._client)}:{quote_plus(self._secret)}".encode()
        return form, {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def code_flow(settings: OidcSettings, oidc: Oidc) -> CodeFlow | None:
    """The flow that ``settings`` ask for, or None if they ask for none."""
    if settings.redirect_url is None:
        return None
    if not settings.client_id:
        raise UsageError(
            "a redirect_url needs a client_id", where="oidc", do="Give the name of this client"
        )
    check_address(settings.issuer, "issuer", "people sign in over https only")
    check_address(settings.redirect_url, "redirect_url", "people come back over https only")
    parts = urlsplit(settings.redirect_url)
    if parts.path != CALLBACK or parts.query or parts.fragment or parts.username:
        raise UsageError(
            f"the provider has to send people back to {CALLBACK}",
            where=f"oidc redirect_url {settings.redirect_url[:200]}",
            do=f"Give https://HOST{CALLBACK}, and register the same at the provider",
        )
    if "openid" not in settings.scope.split():
        raise UsageError(
            "the scope openid is missing", where=f"oidc scope {settings.scope[:200]!r}"
        )
    file = settings.client_secret_file
    return CodeFlow(
        settings.issuer,
        oidc,
        client=settings.client_id,
        redirect_url=settings.redirect_url,
        secret=read_password(file).decode() if file else None,
        scope=settings.scope,
    )


_PROVIDER = pydantic.TypeAdapter(OidcSettings)


def read_provider(path: Path) -> OidcSettings:
    """The identity provider that a YAML file states. A relative ``client_secret_file`` lies beside
    that file."""
    do = "See docs/service.md, An identity provider"
    settings = read_stated(path, _PROVIDER, do=do)
    if settings.client_secret_file is not None:
        beside = path.parent / settings.client_secret_file
        settings = replace(settings, client_secret_file=beside)
    code_flow(settings, Oidc(settings))  # refuses here what it would when a service starts
    return settings
