"""Bearer tokens of an identity provider: OpenID Connect, verified by PyJWT.

A token is accepted if a key of the provider's JWKS signed it with an algorithm of `ALGORITHMS`
(never ``none``, never a shared secret), and issuer, audience, expiry and not-before hold, within
`LEEWAY`. Its role is what the settings say of a claim; without a match it is refused, not public.

A token of a provider is not in the store: it ends when it expires, and a user is disabled at the
provider. It is good for every scope of its role.

Sources: OpenID Connect Core 1.0 section 3.1.3.7; RFC 7519; RFC 8725 (algorithms, issuer).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from govray.errors import UsageError
from govray.service.caller import ROLES, SCOPES, Caller
from govray.service.settings import OidcSettings
from govray.service.tokens import Accepted, NotAccepted

ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY = timedelta(seconds=30)
KEYS_SECONDS = 300.0
"""How long the provider's keys are remembered; an unknown key is looked for at most each 30 s."""


class Oidc:
    """Verifies tokens of one provider.

    Raises:
        UsageError: The settings are no provider, or give a role that there is not.
    """

    def __init__(self, settings: OidcSettings) -> None:
        for role in settings.roles.values():
            if role not in ROLES or role == "public":
                raise UsageError(f"{role!r} is no role", where="oidc")
        if not settings.issuer or not settings.audience:
            raise UsageError("an issuer and an audience are needed", where="oidc")
        self._settings = settings
        try:
            self._keys = jwt.PyJWKClient(settings.jwks_url, lifespan=KEYS_SECONDS, timeout=5)
        except jwt.PyJWTError as error:
            raise UsageError(str(error).rstrip("."), where="oidc jwks_url") from None

    def verify(self, text: str) -> Accepted:
        """The caller that ``text`` stands for.

        Raises:
            NotAccepted: It is not signed as it has to be, has ended, or has no role here.
        """
        settings = self._settings
        try:
            key = self._keys.get_signing_key_from_jwt(text)
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=list(ALGORITHMS),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError:
            raise NotAccepted("The identity provider's keys cannot be fetched") from None
        except jwt.ExpiredSignatureError:
            raise NotAccepted("The token has expired") from None
        except jwt.PyJWTError:
            raise NotAccepted("This is no token of this service") from None
        caller = self._caller(claims)
        expires = datetime.fromtimestamp(int(claims["exp"]), UTC) + LEEWAY
        return Accepted(caller, expires)

    def _caller(self, claims: dict[str, Any]) -> Caller:
        settings = self._settings
        name = f"oidc:{claims['sub']}"
        given = claims.get(settings.role_claim)
        values = given if isinstance(given, list) else [given]
        roles = [settings.roles[v] for v in values if isinstance(v, str) and v in settings.roles]
        if not roles:
            raise NotAccepted("The identity provider gives no role that this service knows")
        # Of several the one with the most rights, as the provider's groups add up.
        role = next(each for each in ROLES if each in roles)
        supplier = claims.get(settings.supplier_claim) if role == "supplier" else None
        if role == "supplier" and (not isinstance(supplier, str) or not supplier):
            raise NotAccepted(f"The token names no supplier ({settings.supplier_claim})")
        return Caller(name=name, role=role, supplier=supplier, scopes=frozenset(SCOPES))
