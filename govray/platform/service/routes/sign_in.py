"""``/v1/sign-in``: where people of this service sign in. For everyone, and nothing in it is secret.

`govray login` asks it before there is a token. The provider's own addresses are in its discovery
document (OpenID Connect Discovery 1.0), below the issuer.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from govray.platform.service.http.answer import Answer
from govray.platform.service.http.settings import Settings

router = APIRouter(tags=["service"])


class SignIn(Answer):
    """The identity provider that people sign in to, if there is one."""

    issuer: str | None = Field(default=None, description="null: tokens are made by an admin.")
    client_id: str | None = Field(default=None, description="The client to sign in as.")
    scopes: list[str] = Field(description="What to ask the provider for.")


@router.get("/sign-in")
async def get_sign_in(request: Request) -> SignIn:
    """Where to sign in. For everyone; the device flow (RFC 8628) begins here."""
    settings: Settings = request.app.state.settings
    oidc = settings.oidc
    if oidc is None or oidc.client_id is None:
        return SignIn(scopes=[])
    return SignIn(issuer=oidc.issuer, client_id=oidc.client_id, scopes=oidc.scope.split())
