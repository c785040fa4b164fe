"""Models and versions over HTTP: who sees which, who writes, and what gates say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlmodel import Session

from govray.governance.formats import canonical_json
from govray.governance.formats.canonical_json import sha256
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import Signer
from govray.platform.store import registry
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.promotion_gates import read_promotion_policy
from tests.support.gates import UNMONITORED, gated, signed
from tests.support.people import Service, serve
from tests.support.shelf_of_models import Shelf, made_once
from tests.support.world import World

EVE = ChangedBy(user="eve", at="2026-11-20T10:00:00Z")
STAFF = ("admin", "engineer", "auditor")
ONE = "/v1/models/first/versions/1.0.0"


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return made_once()


@pytest.fixture
def running(shelf: Shelf, tmp_path: Path) -> Iterator[Service]:
    """``first`` used a corpus of acme-legal's; ``narrow`` did not, and is public."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        (first,) = shelf.index(session, "first")
        (narrow,) = shelf.index(session, "narrow", public=True)
        for name, version, row in [
            ("first", "1.0.0", first),
            ("first", "1.2.0", first),
            ("narrow", "1.0.0", narrow),
            ("mixed", "2.0.0", first),
            ("mixed", "1.0.0", narrow),
        ]:
            registry.register(
                session, model=name, version=version, attestation=row.digest, by=EVE, notes="ours"
            )
        session.commit()
    engine.dispose()
    gates = gated(shelf.world, tmp_path)
    with serve(url, supplier="acme-legal", other="umbrella", **gates) as service:
        yield service


def names(service: Service, kind: str, path: str = "/v1/models", key: str = "name") -> list[str]:
    response = service.client(kind).get(path)
    assert response.status_code == 200, response.text
    return [each[key] for each in response.json()["items"]]


def test_who_sees_which_model(running: Service) -> None:
    seen = {kind: names(running, kind) for kind in (*STAFF, "supplier", "other supplier", "public")}
    everything = ["first", "mixed", "narrow"]
    assert seen == {
        "admin": everything,
        "engineer": everything,
        "auditor": everything,
        "supplier": ["first", "mixed", "narrow"],
        "other supplier": ["mixed", "narrow"],
        "public": ["mixed", "narrow"],
    }
    for kind, visible in seen.items():
        for name in [*everything, "nothing"]:
            status = running.client(kind).get(f"/v1/models/{name}").status_code
            assert status == (200 if name in visible else 404)


def test_who_sees_which_version(running: Service) -> None:
    path = "/v1/models/mixed/versions"
    kinds = ("auditor", "supplier", "other supplier", "public")
    seen = {kind: names(running, kind, path, "version") for kind in kinds}
    both, public = ["2.0.0", "1.0.0"], ["1.0.0"]
    assert seen == dict(zip(kinds, (both, both, public, public), strict=True))
    assert running.client("other supplier").get("/v1/models/first/versions").status_code == 404
    for sort in ("version", "created", "stage"):
        assert names(running, "auditor", f"{path}?sort={sort}", "version") == both[::-1]
    for kind, visible in seen.items():
        for version in ("2.0.0", "1.0.0", "3.0.0", "99999999999.0.0"):
            status = running.client(kind).get(f"{path}/{version}").status_code
            expected = 200 if version in visible else 422 if len(version) > 9 else 404
            assert status == expected, (kind, version)


@pytest.mark.parametrize("kind", ["supplier", "public"])
def test_outsiders_see_three_fields_of_a_version(running: Service, kind: str) -> None:
    client = running.client(kind)
    for path in ("/v1/models/mixed/versions", "/v1/models/mixed/versions/{}"):
        version = "2.0.0" if kind == "supplier" else "1.0.0"
        body = client.get(path.format(version)).json()
        for shown in body.get("items", [body]):
            assert set(shown) == {"model", "version", "attestation"}
    assert client.get("/v1/models/mixed").json() == {"name": "mixed"}


WRITES = [
    (
        "POST",
        "/v1/models/first/versions",
        {"version": "9.0.0", "attestation": "sha256:" + 64 * "0"},
    ),
    ("PATCH", ONE, {"notes": "x"}),
    ("POST", f"{ONE}:promote", {"stage": "staging"}),
]


def test_a_token_that_only_reads_does_not_write(running: Service) -> None:
    from datetime import timedelta

    from govray.platform.service.identity import tokens
    from tests.support.people import NOW

    with Session(running.engine) as session:
        text = tokens.new(
            session, "reader", role="engineer", supplier=None, scopes=("read",),
            at=NOW - timedelta(days=1),
        )  # fmt: skip
        session.commit()
    running.tokens["reader"] = text
    assert running.client("reader").get(ONE).status_code == 200
    for method, path, body in WRITES:
        assert running.client("reader").request(method, path, json=body).status_code == 403


def test_a_version_is_made_of_an_indexed_attestation(running: Service) -> None:
    client = running.client("engineer")
    digest = client.get(ONE).json()["attestation"]
    new = {"version": "2.0.0", "attestation": digest, "labels": {"a": "b"}}
    made = client.post("/v1/models/fresh/versions", json=new)
    assert made.status_code == 201, made.text
    assert made.json()["validation"] is None, "its run was not validated"
    assert made.json()["user"] == "engineer"
    again = client.post("/v1/models/fresh/versions", json=new)
    assert again.status_code == 409
    unknown = new | {"version": "3.0.0", "attestation": "sha256:" + 64 * "0"}
    assert client.post("/v1/models/fresh/versions", json=unknown).status_code == 400
    for wrong in ({"version": "1.0.0-rc.1"}, {"stage": "production"}, {"metrics": {"loss": 2}}):
        assert client.post("/v1/models/fresh/versions", json=new | wrong).status_code == 422


def test_promotion_passes_gates_and_says_who_and_when(running: Service) -> None:
    client = running.client("engineer")
    for path in (ONE, "/v1/models/first/versions/1.2.0"):
        for stage in ("staging", "production"):
            done = client.post(f"{path}:promote", json={"stage": stage})
            assert done.status_code == 200, done.text
    assert done.json()["replaced"] == "1.0.0"
    assert client.get("/v1/models/first").json()["production"] == "1.2.0"
    history = client.get(ONE).json()["history"]
    assert [(each["user"], each["after"]) for each in history] == [
        ("eve", None),
        ("engineer", "staging"),
        ("engineer", "production"),
        ("engineer", "archived"),
    ]
    gates = Envelope.parse(running.app.state.settings.promotion.read_bytes())
    assert history[1]["gates"] == sha256(gates.payload), "what govray sign printed"
    skipped = client.post("/v1/models/narrow/versions/1.0.0:promote", json={"stage": "production"})
    assert skipped.status_code == 409


def test_gates_that_fail_are_told_and_nothing_moves(running: Service, shelf: Shelf) -> None:
    client = running.client("engineer")
    gates: Path = running.app.state.settings.promotion
    head = UNMONITORED.partition("stages:")[0]
    asked = "  staging:\n    - monitored\n    - {gate: replayed, corpora: [acme]}\n"
    gates.write_bytes(signed(shelf.world, f"{head}stages:\n{asked}  production: []\n"))
    told = client.post(f"{ONE}:promote", json={"stage": "staging"})
    assert told.status_code == 409
    assert "not monitored" in told.json()["detail"]
    assert "no replay without it" in told.json()["detail"]
    gates.unlink()
    missing = client.post(f"{ONE}:promote", json={"stage": "staging"})
    assert missing.status_code == 422
    assert str(gates) not in missing.text
    assert client.get(ONE).json()["stage"] == "none"
    assert client.post(f"{ONE}:promote", json={"stage": "archived"}).status_code == 200


STRANGERS = "no signature verifies under any policy authority"
FORGED: dict[str, tuple[Callable[[World], bytes], int, str]] = {
    "unsigned": (lambda w: UNMONITORED.encode(), 409, "govray sign policies/gates.yaml --key KEY"),
    "one key of two": (lambda w: sealed(w.keys.compliance[:1]), 422, "1 of 2 distinct keys"),
    "another's keys": (lambda w: signed(World()), 422, STRANGERS),
    "the operator's": (lambda w: sealed([w.keys.operator]), 422, STRANGERS),
    "altered": (lambda w: altered(signed(w)), 422, STRANGERS),
    "a depth policy": (lambda w: w.policy, 400, "predicate type"),
}


def sealed(keys: Sequence[Signer]) -> bytes:
    return read_promotion_policy(UNMONITORED).seal(keys)


def altered(envelope: bytes) -> bytes:
    """With lower bars, below the same signatures."""
    value = json.loads(envelope)
    payload = base64.b64decode(value["payload"]).replace(b'"atMost":0.25', b'"atMost":0.99')
    value["payload"] = base64.b64encode(payload).decode()
    return canonical_json.encode(value)


@pytest.mark.parametrize("kind", FORGED)
def test_gates_that_the_root_does_not_carry_let_nothing_through(
    running: Service, shelf: Shelf, kind: str
) -> None:
    client, settings = running.client("engineer"), running.app.state.settings
    forge, status, told = FORGED[kind]
    settings.promotion.write_bytes(forge(shelf.world))
    refused = client.post(f"{ONE}:promote", json={"stage": "staging"})
    assert refused.status_code == status, refused.text
    assert told in refused.text
    assert client.get(ONE).json()["stage"] == "none"
    settings.promotion.write_bytes(signed(shelf.world))  # the control
    assert client.post(f"{ONE}:promote", json={"stage": "staging"}).status_code == 200


def test_gates_outlive_neither_their_authority_nor_a_higher_minimum(
    running: Service, shelf: Shelf
) -> None:
    client, settings = running.client("engineer"), running.app.state.settings
    for change, told in (
        ({"expires": "2026-11-21T00:00:00Z"}, "expired at 2026-11-21"),
        ({"minimum_policy_versions": {"Promotion": 2}}, "older than version 2"),
    ):
        authorities = [
            each.model_copy(update=change) if each.role == "policy" else each
            for each in shelf.world.authorities()
        ]
        settings.trust_root.write_bytes(shelf.world.sign_root(authorities=tuple(authorities)))
        refused = client.post(f"{ONE}:promote", json={"stage": "staging"})
        assert (refused.status_code, told in refused.text) == (422, True), refused.text
    settings.trust_root.unlink()
    refused = client.post(f"{ONE}:promote", json={"stage": "staging"})
    assert (refused.status_code, str(settings.trust_root) in refused.text) == (422, False)
    settings.trust_root.write_bytes(shelf.world.root)
    assert client.post(f"{ONE}:promote", json={"stage": "staging"}).status_code == 200
