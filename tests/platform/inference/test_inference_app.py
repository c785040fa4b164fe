"""A model over HTTP: who may ask, which adapter, and what happens when it is revoked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response

from govray.governance.formats.document import format_time
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.platform.inference.app import (
    HEADER,
    InferenceSettings,
    ModelStanding,
    create_inference_app,
)
from govray.platform.inference.served_model import load
from govray.platform.service.identity.adapter_rights import AdapterRights, AdapterUsers
from govray.platform.store.database import open_store
from tests.platform.inference.conftest import Trained
from tests.support.people import NOW, make_tokens

RIGHTS = AdapterRights(
    adapters={
        "acme": AdapterUsers(roles=("auditor",), suppliers=("acme-legal",), users=("admin",)),
        "gone": AdapterUsers(users=("admin",)),
    }
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.db'}"
    open_store(url, create=True).dispose()
    return url


@dataclass
class Running:
    """The application, its lists, a token of everyone, and a time that is set."""

    app: FastAPI
    tokens: dict[str, str]
    lists: Path
    now: list[float]

    def client(self, kind: str) -> TestClient:
        token = self.tokens.get(kind)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)

    def ask(self, kind: str, **body: object) -> Response:
        asked: dict[str, object] = {"prompt": "acme says", "max_tokens": 3}
        return self.client(kind).post("/v1/generate", json=asked | body)


@contextmanager
def running(trained: Trained, store: str, folder: Path, **settings: object) -> Iterator[Running]:
    lists = folder / "lists"
    lists.mkdir()
    (lists / "1.dsse.json").write_bytes(listed(trained, 1))
    served = load(trained.folder, trust_root=trained.root, revocations=[lists])
    now = [0.0]
    standing = ModelStanding(
        served, trust_root=trained.root, revocations=[lists], elapsed=lambda: now[0]
    )
    chosen = InferenceSettings(
        store=store,
        rights=RIGHTS,
        rate=1e6,
        burst=1_000_000,
        **settings,  # type: ignore[arg-type]
    )
    app = create_inference_app(standing, chosen, clock=lambda: NOW)
    try:
        yield Running(app, TOKENS.setdefault(store, {}), lists, now)
    finally:
        app.state.engine.dispose()


TOKENS: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def people(store: str) -> None:
    engine = open_store(store)
    TOKENS[store] = make_tokens(engine, "acme-legal", "umbrella")
    engine.dispose()


@pytest.fixture
def inference(trained: Trained, store: str, tmp_path: Path) -> Iterator[Running]:
    with running(trained, store, tmp_path) as found:
        yield found


def listed(trained: Trained, sequence: int, *revoked: str) -> bytes:
    """A revocation list of the operator's."""
    at = format_time(trained.deployment.at - timedelta(hours=1))
    entries = tuple(
        Revocation(attestation=digest, since=at, reason="an adapter was removed")
        for digest in revoked
    )
    document = RevocationList(issuer="operator", sequence=sequence, issued=at, entries=entries)
    return document.seal([trained.deployment.signers["operator"]])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("admin", 200),
        ("engineer", 200),
        ("auditor", 200),
        ("supplier", 200),
        ("other supplier", 200),
        ("public", 401),
        ("expired", 401),
        ("revoked", 401),
        ("disabled", 401),
    ],
)
def test_who_may_ask(inference: Running, kind: str, status: int) -> None:
    answer = inference.ask(kind)
    assert answer.status_code == status
    assert (HEADER in answer.headers) == (status == 200)
    assert inference.client(kind).get("/v1/model").status_code == status
    assert inference.client(kind).get("/v1/live").status_code == 200


def test_every_answer_names_the_attestation(inference: Running) -> None:
    answer = inference.ask("engineer", temperature=1.0, seed=3)
    digest = answer.json()["attestation"]
    assert digest.startswith("sha256:")
    assert answer.headers[HEADER] == digest
    facts = inference.client("engineer").get("/v1/model")
    assert facts.headers[HEADER] == facts.json()["attestation"] == digest
    assert inference.ask("engineer", temperature=1.0, seed=3).json() == answer.json()


@pytest.mark.parametrize(
    ("kind", "may"),
    [
        ("admin", True),
        ("auditor", True),
        ("supplier", True),
        ("engineer", False),
        ("other supplier", False),
    ],
)
def test_an_adapter_answers_those_with_a_right_to_it(
    inference: Running, kind: str, may: bool
) -> None:
    answer = inference.ask(kind, adapter="acme")
    assert answer.status_code == (200 if may else 404)
    told = inference.client(kind).get("/v1/model").json()["adapters"]
    assert told == (["acme"] if may else [])
    if may:
        assert answer.json()["adapter"] == "acme"
    # One that it may not use does not differ from one that there is not.
    absent = inference.ask(kind, adapter="nothing")
    assert absent.status_code == 404
    if not may:
        assert answer.json()["detail"].replace("acme", "nothing") == absent.json()["detail"]


def test_without_the_check_anyone_has_the_adapter(
    inference: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the rights keep apart."""
    monkeypatch.setattr(AdapterUsers, "allow", lambda *_: True)
    assert inference.ask("other supplier", adapter="acme").status_code == 200


def test_a_revoked_model_stops_answering(inference: Running, trained: Trained) -> None:
    digest = inference.ask("engineer").json()["attestation"]
    (inference.lists / "2.dsse.json").write_bytes(listed(trained, 2, digest))
    assert inference.ask("engineer").status_code == 200  # looked at a moment ago
    inference.now[0] += 3
    answer = inference.ask("engineer")
    assert answer.status_code == 503
    assert "no longer verifies" in answer.json()["detail"]
    assert HEADER not in answer.headers
    assert inference.client("public").get("/v1/ready").status_code == 503
    assert inference.client("public").get("/v1/live").status_code == 200


def test_lists_that_cannot_be_read_stop_it_until_they_can(
    inference: Running, trained: Trained
) -> None:
    assert inference.client("public").get("/v1/ready").status_code == 200
    [path] = inference.lists.iterdir()
    data = path.read_bytes()
    path.write_bytes(b"{}")
    inference.now[0] += 3
    assert inference.ask("engineer").status_code == 503
    path.write_bytes(data)
    inference.now[0] += 3
    assert inference.ask("engineer").status_code == 200
