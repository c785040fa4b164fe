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

from govray.errors import UsageError
from govray.governance.formats.document import format_time
from govray.governance.trust.revocation_list import Revocation, RevocationList, seal_revocations
from govray.platform.inference.adapter_rights import AdapterRights, AdapterUsers, read_rights
from govray.platform.inference.app import (
    HEADER,
    MAX_TOKENS,
    InferenceSettings,
    ModelStanding,
    create_inference_app,
)
from govray.platform.inference.served_model import load
from govray.platform.service.identity.caller import PUBLIC, Caller
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
    return seal_revocations(document, [trained.deployment.signers["operator"]])


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


def test_an_adapter_that_the_model_lacks_is_nobody_s(inference: Running) -> None:
    assert inference.ask("admin", adapter="gone").status_code == 404


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


def test_a_folder_that_changed_is_seen_at_the_next_verification(
    trained: Trained, store: str, tmp_path: Path
) -> None:
    moved = Trained(trained.deployment, trained.copy(tmp_path / "model"))
    with running(moved, store, tmp_path) as inference:
        assert inference.ask("engineer").status_code == 200
        (moved.folder / "model.safetensors").write_bytes(b"other")
        inference.now[0] += 3
        assert inference.ask("engineer").status_code == 200  # what answers is in memory
        inference.now[0] += 3600
        assert inference.ask("engineer").status_code == 503


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 0},
        {"max_tokens": MAX_TOKENS + 1},
        {"temperature": -1},
        {"temperature": "NaN"},
        {"seed": -1},
        {"prompt": None},
        {"prompt": "x" * (1 << 17)},
        {"unknown": 1},
        {"adapter": "x" * 129},
    ],
)
def test_what_is_out_of_bounds_is_refused(inference: Running, body: dict[str, object]) -> None:
    answer = inference.ask("engineer", **body)
    assert answer.status_code in {413, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_answer_ends_in_time(trained: Trained, store: str, tmp_path: Path) -> None:
    with running(trained, store, tmp_path, seconds=0.001) as inference:
        answer = inference.ask("engineer", max_tokens=MAX_TOKENS, temperature=5.0)
        assert answer.status_code in {200, 503}
        if answer.status_code == 200:
            assert answer.json()["finish"] in {"time", "separator"}


def test_rights_are_read_and_refused_by_field(tmp_path: Path) -> None:
    path = tmp_path / "rights.yaml"
    path.write_text("adapters:\n  acme: {roles: [engineer], users: [ada]}\n")
    rights = read_rights(path)
    assert rights.of(Caller(name="ada", role="supplier")) == {"acme"}
    assert rights.of(Caller(name="bob", role="auditor")) == frozenset()
    assert rights.of(PUBLIC) == frozenset()
    path.write_text("---\n  # nobody yet\n")
    assert read_rights(path).of(Caller(name="ada", role="admin")) == frozenset()
    for text, message in (
        ("adapters: {acme: {role: [engineer]}}", "adapters.acme.role"),
        ("adapters: {acme: {roles: [boss]}}", "adapters.acme.roles.0"),
        ("- acme", "the file"),
        ("a: [", "no YAML"),
        ("adapters: {acme: {users: [ada]}, acme: {users: [bob]}}", "'acme' stands twice"),
        ("a: &a [*a]", "aliases"),
        ("[" * 5000, "no YAML"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_rights(path)
    with pytest.raises(UsageError, match="cannot read it"):
        read_rights(tmp_path / "absent.yaml")


def test_a_lone_surrogate_is_a_field_that_is_not_valid(inference: Running) -> None:
    body = b'{"prompt": "\\ud800", "max_tokens": 1}'
    headers = {"Content-Type": "application/json"}
    answer = inference.client("engineer").post("/v1/generate", content=body, headers=headers)
    assert answer.status_code == 422
