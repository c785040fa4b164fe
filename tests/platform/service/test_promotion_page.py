"""Promoting a version from its page: what the gates say, and the change that asks them anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session

from govray.platform.store import registry
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from tests.support.gates import UNMONITORED, gated, signed
from tests.support.people import OWN_PAGE, Service, serve
from tests.support.shelf_of_models import made_once

EVE = ChangedBy(user="eve", at="2026-11-20T10:00:00Z")
ONE = "/models/first/1.0.0"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("promotion")
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        (first,) = made_once().index(session, "first")
        for version in ("1.0.0", "1.1.0"):
            registry.register(
                session, model="first", version=version, attestation=first.digest, by=EVE
            )
        session.commit()
    engine.dispose()
    with serve(url, supplier="acme-legal", **gated(made_once().world, folder)) as service:
        yield service


def client(service: Service, kind: str = "engineer", **headers: str) -> TestClient:
    made = service.client(kind, accept="text/html", **(OWN_PAGE | headers))
    made.follow_redirects = False
    return made


def stage(service: Service, version: str = "1.0.0") -> str:
    with Session(service.engine) as session:
        return registry.get(session, "first", version).stage


def test_a_version_goes_from_stage_to_stage(running: Service) -> None:
    page = client(running).get(ONE).text
    assert re.findall(r"promote\?stage=(\w+)", page) == ["staging", "archived"]
    for wanted in ("staging", "production"):
        page = client(running).get(f"{ONE}/promote", params={"stage": wanted}).text
        assert f"Move it to {wanted}</button>" in page
        assert ">holds<" in page
        answer = client(running).post(f"{ONE}/promote", data={"stage": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, ONE)
        assert stage(running) == wanted
    page = client(running).get(f"{ONE}/promote", params={"stage": "staging"}).text
    assert "does not go to staging" in page
    assert "</form>" not in page.partition("<main")[2]
    assert client(running).post(f"{ONE}/promote", data={"stage": "staging"}).status_code == 409
    client(running).post(f"{ONE}/promote", data={"stage": "archived"})
    assert stage(running) == "archived"


def test_gates_that_fail_are_named_and_nothing_changes(running: Service) -> None:
    gates: Path = running.app.state.settings.promotion
    before = gates.read_bytes()
    two = "/models/first/1.1.0"
    try:
        head = UNMONITORED.partition("stages:")[0]
        asked = f"{head}stages:\n  staging: [monitored]\n  production: []\n"
        gates.write_bytes(signed(made_once().world, asked))
        page = client(running).get(f"{two}/promote", params={"stage": "staging"}).text
        assert ">fails<" in page
        assert "Move it to staging</button>" not in page
        answer = client(running).post(f"{two}/promote", data={"stage": "staging"})
        assert answer.status_code == 409
        assert "monitored" in answer.text
        gates.unlink()
        page = client(running).get(f"{two}/promote", params={"stage": "staging"}).text
        assert "The gates could not be asked" in page
        assert "Move it to staging</button>" not in page
        assert client(running).post(f"{two}/promote", data={"stage": "staging"}).status_code == 422
    finally:
        gates.write_bytes(before)
    assert stage(running, "1.1.0") == "none"


def test_who_may_not_promote_sees_no_link_and_is_refused(running: Service) -> None:
    for kind in ("auditor", "supplier"):
        assert "/promote?stage=" not in client(running, kind).get(ONE).text
        assert client(running, kind).get(f"{ONE}/promote?stage=staging").status_code == 403
        answer = client(running, kind).post(f"{ONE}/promote", data={"stage": "archived"})
        assert answer.status_code == 403
    elsewhere = client(running, **{"sec-fetch-site": "cross-site"})
    assert elsewhere.post(f"{ONE}/promote", data={"stage": "archived"}).status_code == 403
    assert client(running).post(f"{ONE}/promote", data={"stage": "gold"}).status_code == 422
