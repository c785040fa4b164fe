"""Signing in at a terminal: OAuth 2.0 Device Authorization Grant (RFC 8628).

1. The provider's discovery document names its addresses, and must be of the issuer that was asked
   for (OpenID Connect Discovery 1.0, section 4.3).
2. The provider gives a code for a person and one for this program (section 3.2).
3. The person enters the code in any browser, and signs in there.
4. This program asks at the provider's interval, slower when told so (sections 3.4 and 3.5). It ends
   when the person is done or refuses, or the code has ended.

All addresses are https, or this machine. Nothing follows a redirect. No token is in a message.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from urllib.parse import urlencode, urlsplit

from govray.errors import GovrayError, InfrastructureFailed, Malformed, Refused, UsageError
from govray.platform.client.connection import checked_url, opener

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DISCOVERY = "/.well-known/openid-configuration"
INTERVAL_S = 5.0
"""Between two questions where the provider states none, and what `slow_down` adds."""
LONGEST_S = 1800.0
"""How long a code is waited for at most, whatever the provider says."""
_LARGEST = 1 << 20
_TIMEOUT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Code:
    """What the person is told. ``whole_address``: the same with the code in it, if the provider has
    one."""

    user_code: str
    address: str
    whole_address: str | None


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The tokens of a person who signed in. ``expires_in_s``: seconds that the first is good for;
    None: the provider does not say."""

    access_token: str = field(repr=False)
    id_token: str | None = field(default=None, repr=False)
    expires_in_s: float | None = None


def sign_in(
    issuer: str,
    client_id: str,
    scopes: Sequence[str],
    show: Callable[[Code], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Granted:
    """Let a person sign in at ``issuer``, and return the tokens.

    Args:
        clock: Seconds, monotonic.

    Raises:
        Refused: The person or the provider refuses.
        UsageError: The provider has no device flow, or an address that is not https.
    """
    addresses = _discovered(issuer)
    told = _post(addresses["device"], {"client_id": client_id, "scope": " ".join(scopes)})
    if "error" in told:
        raise _refused(told, issuer)
    code = Code(
        user_code=_text(told, "user_code", issuer),
        address=checked_url(_text(told, "verification_uri", issuer)),
        whole_address=_address(told, "verification_uri_complete"),
    )
    device_code = _text(told, "device_code", issuer)
    until = clock() + min(_seconds(told, "expires_in") or LONGEST_S, LONGEST_S)
    interval = _seconds(told, "interval") or INTERVAL_S
    show(code)
    asked = {"grant_type": GRANT, "device_code": device_code, "client_id": client_id}
    while True:
        sleep(interval)
        if clock() >= until:
            raise _ended(issuer)
        try:
            answer = _post(addresses["token"], asked)
        except InfrastructureFailed:
            interval *= 2  # section 3.5: on a timeout, ask less often
            continue
        match answer.get("error"):
            case None:
                return Granted(
                    access_token=_text(answer, "access_token", issuer),
                    id_token=answer["id_token"] if _is_text(answer.get("id_token")) else None,
                    expires_in_s=_seconds(answer, "expires_in"),
                )
            case "authorization_pending":
                pass
            case "slow_down":
                interval += INTERVAL_S
            case "expired_token":
                raise _ended(issuer)
            case _:
                raise _refused(answer, issuer)


def _discovered(issuer: str) -> Mapping[str, str]:
    base = checked_url(issuer)
    document = _read(urllib.request.Request(base + DISCOVERY))  # noqa: S310 (checked)
    if document.get("issuer") != issuer:
        raise Malformed("its discovery document is of another issuer", where=issuer)
    if not _is_text(document.get("device_authorization_endpoint")):
        raise UsageError(
            "the identity provider does not offer the device flow",
            where=issuer,
            do="Make a token by `govray token new`, and give it by govray login --token -",
        )
    names = {"device": "device_authorization_endpoint", "token": "token_endpoint"}
    return {key: checked_url(_text(document, name, issuer)) for key, name in names.items()}


def _post(address: str, form: Mapping[str, str]) -> dict[str, Any]:
    data = urlencode(form).encode()
    return _read(urllib.request.Request(address, data=data))  # noqa: S310 (checked)


def _read(request: urllib.request.Request) -> dict[str, Any]:
    """The JSON object of an answer; of a 400 or 401 too, which says what is wrong (RFC 6749)."""
    host = urlsplit(request.full_url).hostname or ""
    request.add_header("Accept", "application/json")
    try:
        with opener(host).open(request, timeout=_TIMEOUT_S) as response:
            raw = response.read(_LARGEST)
    except urllib.error.HTTPError as error:
        with error:
            if error.code not in (400, 401, 403):
                raise InfrastructureFailed(
                    f"the identity provider answered {error.code}", where=host
                ) from None
            raw = error.read(_LARGEST)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise InfrastructureFailed(
            f"the identity provider does not answer ({reason})", where=host
        ) from None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Malformed("the identity provider's answer is no JSON object", where=host)
    return value


def _refused(answer: Mapping[str, Any], issuer: str) -> GovrayError:
    error = answer["error"]
    if error == "access_denied":
        return Refused("the sign-in was refused at the identity provider", where=issuer)
    said = f" ({error[:60]})" if _is_text(error) else ""
    return Refused(
        f"the identity provider refuses this client{said}",
        where=issuer,
        do="Ask the service's operator whether client_id may use the device flow",
    )


def _ended(issuer: str) -> GovrayError:
    return InfrastructureFailed(
        "nobody signed in before the code ended", where=issuer, do="Say govray login again"
    )


def _text(document: Mapping[str, Any], name: str, issuer: str) -> str:
    value = document.get(name)
    if not _is_text(value):
        raise Malformed(f"the identity provider's answer has no {name}", where=issuer)
    return str(value)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= 1 << 16


def _address(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return checked_url(value, query=True) if _is_text(value) else None


def _seconds(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if good else None  # type: ignore[arg-type]
