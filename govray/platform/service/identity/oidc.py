"""Tokens of an identity provider: OpenID Connect, verified by PyJWT.

A token is accepted if a key of the provider's JWKS signed it with an algorithm of `ALGORITHMS`.
That is never ``none`` and never a shared secret. Issuer, audience, expiry and not-before must hold,
within `LEEWAY`. Keys come over https, or from this machine itself; RSA keys have `RSA_BITS` at
least. A token says in ``typ`` that it is a JWT or an access token, or nothing. Its role is what the
settings say of a claim; without a match it is refused, not public.

A token of a provider is not in the store: it ends when it expires, and a user is disabled at the
provider. It is good for every scope of its role.

An id token is for the client that asked for it, not a bearer token for us. It is checked by the
same rules, with the client as its audience. Beyond them it holds the nonce of the sign-in that it
answers.

Sources: OpenID Connect Core 1.0 section 3.1.3.7, and of id tokens sections 3.1.3.6 and 3.1.3.8.
RFC 7519; RFC 7518 section 3.3 (RSA keys); RFC 8725 (algorithms, issuer, explicit types); RFC 9068
(``at+jwt``).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from govray.errors import UsageError
from govray.platform.service.http.settings import OidcSettings
from govray.platform.service.identity.caller import ROLES, SCOPES, Caller
from govray.platform.service.identity.provider_address import check_address
from govray.platform.service.identity.tokens import AcceptedToken, NotAccepted

ALGORITHMS = ("RS256", "ES256", "EdDSA")
RSA_BITS = 2048
TYPES = ("jwt", "at+jwt")
"""What the header's ``typ`` may say, in any case and with or without ``application/``."""
LEEWAY = timedelta(seconds=30)
LONGEST_GROUP = 255
MOST_GROUPS = 1000
"""Of one token; further ones give no role."""
KEYS_SECONDS = 300.0
"""How long the provider's keys are remembered; an unknown key is looked for at most each 30 s."""

_DIGESTS = {"RS256": "sha256", "ES256": "sha256", "EdDSA": "sha512"}
"""Algorithm → the hash that ``at_hash`` is the left half of."""


class Oidc:
    def __init__(self, settings: OidcSettings) -> None:
        for role in settings.roles.values():
            if role not in ROLES or role == "public":
                raise UsageError(f"{role!r} is no role", where="oidc")
        if not settings.issuer or not settings.audience:
            raise UsageError("an issuer and an audience are needed", where="oidc")
        check_address(settings.jwks_url, "jwks_url")
        self._settings = settings
        try:
            self._keys = _Keys(settings.jwks_url, lifespan=KEYS_SECONDS, timeout=5)
        except jwt.PyJWTError as error:
            raise UsageError(str(error).rstrip("."), where="oidc jwks_url") from None

    def verify(self, text: str) -> AcceptedToken:
        """The caller that ``text`` stands for. Raises `NotAccepted`."""
        claims = self._checked(text, self._settings.audience, TYPES)
        caller = self._caller(claims)
        try:
            expires = datetime.fromtimestamp(int(claims["exp"]), UTC) + LEEWAY
        except (ValueError, OverflowError, OSError):
            raise NotAccepted("The token's expiry is no time") from None
        return AcceptedToken(caller, expires)

    def verify_id_token(
        self, text: str, *, client: str, nonce: str, access_token: str | None
    ) -> Caller:
        """Whom an id token says it is, which answers the sign-in that ``nonce`` is of.

        Args:
            access_token: What came with it; ``at_hash`` is compared with that, where there is one.
        """
        claims = self._checked(text, client, ("jwt",))
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else client) != client:
            raise NotAccepted("The id token was made for another client")
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise NotAccepted("The id token answers another sign-in")
        stated = claims.get("at_hash")
        if stated is not None and stated != _left_half(text, access_token or ""):
            raise NotAccepted("The id token came with another access token")
        return self._caller(claims)

    def _checked(self, text: str, audience: str, kinds: tuple[str, ...]) -> dict[str, Any]:
        try:
            return self._claims(text, audience, kinds)
        except jwt.PyJWKClientConnectionError:
            raise NotAccepted("The identity provider's keys cannot be fetched") from None
        except jwt.ExpiredSignatureError:
            raise NotAccepted("The token has expired") from None
        # Besides its own errors PyJWT lets through what Python says of claims that are no time,
        # no text, or nested too deep.
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise NotAccepted("This is no token of this service") from None

    def _claims(self, text: str, audience: str, kinds: tuple[str, ...]) -> dict[str, Any]:
        settings = self._settings
        kind = jwt.get_unverified_header(text).get("typ")  # the signature covers it
        if kind is not None and str(kind).lower().removeprefix("application/") not in kinds:
            raise jwt.InvalidTokenError("made for another use")
        key = self._keys.get_signing_key_from_jwt(text)
        _check_key(key.key)
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=list(ALGORITHMS),
            audience=audience,
            issuer=settings.issuer,
            leeway=LEEWAY,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
        return claims

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
        return Caller(
            name=name,
            account=role,
            supplier=supplier,
            scopes=frozenset(SCOPES),
            groups=_groups(claims.get(settings.groups_claim)),
        )


def _groups(given: object) -> frozenset[str]:
    """The groups that a claim names: texts of a bounded number and length."""
    values = given if isinstance(given, list) else [given]
    texts = [each for each in values if isinstance(each, str) and 0 < len(each) <= LONGEST_GROUP]
    return frozenset(texts[:MOST_GROUPS])


class _Keys(jwt.PyJWKClient):
    """The provider's keys; an answer that is no set of keys is one that could not be fetched."""

    def get_jwk_set(self, refresh: bool = False) -> jwt.PyJWKSet:
        try:
            return super().get_jwk_set(refresh)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise jwt.PyJWKClientConnectionError("The answer is no set of keys") from error


def _left_half(token: str, of: str) -> str:
    """What ``at_hash`` of an id token has to be for the access token ``of``."""
    name = _DIGESTS[jwt.get_unverified_header(token)["alg"]]
    whole = hashlib.new(name, of.encode()).digest()
    return base64.urlsafe_b64encode(whole[: len(whole) // 2]).rstrip(b"=").decode()


def _check_key(key: object) -> None:
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS:
        raise jwt.InvalidKeyError(f"an RSA key of {key.key_size} bits")
    if isinstance(key, EllipticCurvePublicKey) and not isinstance(key.curve, SECP256R1):
        raise jwt.InvalidKeyError(f"a key on {key.curve.name}")
