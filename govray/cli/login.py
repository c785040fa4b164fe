"""``govray login`` and ``logout``: the token for a service, kept in a file of one's own.

A person signs in at the service's identity provider, in any browser (RFC 8628). Where there is no
provider, a token comes by standard input. None is ever an argument, which other users of a machine
can read, and none is printed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.output import field, line, note, report
from govray.cli.server_option import VARIABLE, service
from govray.errors import Refused, UsageError

if TYPE_CHECKING:
    from govray.platform.client.device_flow import Code
    from govray.platform.client.logins import Login

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The service. Default: GOVRAY_SERVER."),
]


def login(
    server: Server = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="-", help="Read a token from standard input."),
    ] = None,
) -> None:
    """Sign in to a service, in a browser or by a token.

    The token is kept in govray/logins.json of your configuration folder, for you alone.
    """
    from govray.platform.client import Client
    from govray.platform.client.logins import Login, keep_login

    address = _address(server)
    if token not in (None, "-"):
        raise UsageError(
            "a token on the command line can be read by others of this machine",
            where="--token",
            do="Say --token - and give the token on standard input",
        )
    if token is not None:
        text = sys.stdin.readline(1 << 16).strip()
        if not text:
            raise UsageError("there is no token on standard input", where="--token -")
        _check(Client(address, text))
        kept = Login(token=text)
    else:
        kept = _signed_in(address)
    path = keep_login(address, kept)
    report({"server": address, "file": str(path), "expires": kept.expires})
    line(f"Logged in to {address}")
    field("kept in", str(path))


def logout(server: Server = None) -> None:
    """Forget the token of a service. It stays good until it ends or is revoked there."""
    from govray.platform.client.logins import forget_login

    address = _address(server)
    known = forget_login(address)
    report({"server": address, "forgotten": known})
    line(f"Logged out of {address}" if known else f"There is no login for {address}")


def whoami() -> None:
    """Show your name, roles and scopes at the service."""
    found = service().people.whoami()
    report(found)
    until = f", until {found['roleUntil']}" if found["roleUntil"] else ""
    line(f"{found['name']}  {found['role']}{until}")
    if found["supplier"]:
        field("supplier", found["supplier"])
    field("scopes", ", ".join(found["scopes"]))
    for each in found["bound"]:
        until = f", until {each['until']}" if each["until"] else ""
        field("role", f"{each['role']} in {each['scope']} {each['place']}".rstrip() + until)


def _address(server: str | None) -> str:
    from govray.cli import server_option
    from govray.platform.client.connection import checked_url

    given = server or server_option.chosen() or os.environ.get(VARIABLE)
    if not given:
        raise UsageError("no service is named", where="--server", do="Give its address")
    return checked_url(given)


def _signed_in(address: str) -> Login:
    """Sign in at the provider that the service names; the token that the service accepts."""
    import time

    from govray.platform.client import Client
    from govray.platform.client.device_flow import sign_in
    from govray.platform.client.logins import Login

    place = Client(address).service.sign_in()
    issuer, client_id = place.get("issuer"), place.get("clientId")
    if issuer is None or client_id is None:
        raise UsageError(
            "this service has no identity provider to sign in to",
            where=address,
            do="Get a token from its operator, and give it by govray login --token -",
        )
    granted = sign_in(issuer, client_id, place["scopes"], _show)
    now, refusal = time.time(), Refused("the service accepts no token of its provider")
    # Which of both is meant for the service is the provider's to say; each goes to it alone.
    for text, lasts in ((granted.access_token, granted.expires_in_s), (granted.id_token, None)):
        if text is None:
            continue
        try:
            _check(Client(address, text))
        except Refused as error:
            refusal = error
        else:
            return Login(token=text, expires=now + lasts if lasts else None)
    raise refusal


def _show(code: Code) -> None:
    note(f"Open {code.whole_address or code.address} in a browser")
    note(f"and enter {code.user_code}")


def _check(client: object) -> None:
    """Return if the service accepts the client's token: a listing that everybody may read."""
    from govray.platform.client import Client

    assert isinstance(client, Client)
    next(client.models.list(), None)
