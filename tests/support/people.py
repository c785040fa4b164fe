"""A service with people: a store, one user and token of every kind, and clients for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.verify.verifier import VerifiedModel
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.identity import browser_sessions, tokens
from govray.platform.service.identity.session_cookie import COOKIE
from govray.platform.service.visible.near_records import NearSearch
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.store_secret import KEY_ENV
from govray.platform.store.tables import UserRow
from govray.tune.experiment_cost import experiment_cost

KEY = b"k" * 32
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

KINDS = (
    "admin",
    "engineer",
    "auditor",
    "supplier",
    "other supplier",
    "member",
    "public",
    "expired",
    "revoked",
    "disabled",
)
"""Everyone who may knock. The last three were engineers."""


@dataclass
class Service:
    """The application, and a token of everyone."""

    app: FastAPI
    tokens: dict[str, str]
    clock: list[datetime] = field(default_factory=lambda: [NOW])

    def client(self, kind: str, **headers: str) -> TestClient:
        """A client with the token of ``kind``; errors of the server become responses."""
        token = self.tokens.get(kind)
        if token is not None:
            headers = {"Authorization": f"Bearer {token}", **headers}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)

    @property
    def engine(self) -> Engine:
        engine: Engine = self.app.state.engine
        return engine


def on_page(service: Service, kind: str = "engineer", **headers: str) -> TestClient:
    """A client like a browser that is on one of the service's pages, and follows no redirect."""
    made = service.client(kind, **(PAGE | OWN_PAGE | headers))
    made.follow_redirects = False
    return made


@contextmanager
def serve(
    url: str,
    *,
    supplier: str = "acme",
    other: str = "umbrella",
    rate: float = 1e6,
    burst: int = 1_000_000,
    near: NearSearch | None = None,
    **settings: object,
) -> Iterator[Service]:
    """A service over the store at ``url``."""
    clock = [NOW]
    app = create_app(
        Settings(store=url, rate=rate, burst=burst, **settings),  # type: ignore[arg-type]
        check=experiment_cost,
        near=near,
        clock=lambda: clock[0],
    )
    try:
        yield Service(app, make_tokens(app.state.engine, supplier, other), clock)
    finally:
        app.state.engine.dispose()


@contextmanager
def serve_models(
    folder: Path, root: bytes, models: Iterable[VerifiedModel], *, public: bool = False, **more: Any
) -> Iterator[Service]:
    """A service over a new store with these models, which were verified against ``root``."""
    (secret := folder / "store.key").touch(0o600)
    secret.write_bytes(KEY)
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        for each in models:
            path = str(each.path)
            index_model(session, each, trust_root=root, key=KEY, public=public, folder=path)
        session.commit()
    engine.dispose()
    with pytest.MonkeyPatch.context() as patch, serve(url, **more) as served:
        patch.setenv(KEY_ENV, str(secret))
        yield served


def make_tokens(engine: Engine, supplier: str, other: str) -> dict[str, str]:
    """One user and token of every kind of `KINDS` but public."""
    at = NOW - timedelta(days=10)
    made: dict[str, str] = {}
    with Session(engine) as session:

        def new(kind: str, role: str, of: str | None = None, **more: object) -> None:
            name = kind.replace(" ", "-")
            made[kind] = tokens.new(
                session, name, role=role, supplier=of, scopes=("admin",), at=at, **more
            )

        new("admin", "admin")
        new("engineer", "engineer")
        new("auditor", "auditor")
        new("supplier", "supplier", supplier)
        new("other supplier", "supplier", other)
        new("member", "member")
        new("expired", "engineer", days=9)
        new("revoked", "engineer")
        new("disabled", "engineer")
        tokens.revoke(session, made["revoked"], at=at)
        session.get_one(UserRow, "disabled").disabled = True
        session.commit()
    return made


OWN_PAGE = {"sec-fetch-site": "same-origin"}
PAGE = {"accept": "text/html"}
"""What a browser says of a form that a page of this service sends."""


def sign_in(client: TestClient, token: str) -> str:
    """Sign in by a typed token; the secret of the session, which the client's cookie holds."""
    answer = client.post(
        "/sign-in", data={"token": token}, headers=OWN_PAGE, follow_redirects=False
    )
    assert answer.status_code == 303, answer.text
    return answer.cookies[COOKIE]


def begin_session(engine: Engine, token: str, at: datetime) -> str:
    """The secret of a session that was begun with ``token``, for a browser's cookie."""
    with Session(engine) as session:
        text = browser_sessions.begin(session, tokens.accept(session, token, at=at), at=at)
        session.commit()
    return text
