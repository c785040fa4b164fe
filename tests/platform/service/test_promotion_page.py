"""Registering, annotating and promoting a version from its page, which asks the gates anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import Session

from govray.platform.store import registry
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from tests.support.gates import UNMONITORED, gated, signed
from tests.support.people import Service, on_page, serve
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


def stage(service: Service, version: str = "1.0.0") -> str:
    with Session(service.engine) as session:
        return registry.get(session, "first", version).stage


def test_a_version_goes_from_stage_to_stage(running: Service) -> None:
    page = on_page(running).get(ONE).text
    assert re.findall(r"promote\?stage=(\w+)", page) == ["staging", "archived"]
    for wanted in ("staging", "production"):
        page = on_page(running).get(f"{ONE}/promote", params={"stage": wanted}).text
        assert f"Move it to {wanted}</button>" in page
        assert ">holds<" in page
        answer = on_page(running).post(f"{ONE}/promote", data={"stage": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, ONE)
        assert stage(running) == wanted
    page = on_page(running).get(f"{ONE}/promote", params={"stage": "staging"}).text
    assert "does not go to staging" in page
    assert "</form>" not in page.partition("<main")[2]
    assert on_page(running).post(f"{ONE}/promote", data={"stage": "staging"}).status_code == 409
    on_page(running).post(f"{ONE}/promote", data={"stage": "archived"})
    assert stage(running) == "archived"


def test_gates_that_fail_are_named_and_nothing_changes(running: Service) -> None:
    gates: Path = running.app.state.settings.promotion
    before = gates.read_bytes()
    two = "/models/first/1.1.0"
    try:
        head = UNMONITORED.partition("stages:")[0]
        asked = f"{head}stages:\n  staging: [monitored]\n  production: []\n"
        gates.write_bytes(signed(made_once().world, asked))
        page = on_page(running).get(f"{two}/promote", params={"stage": "staging"}).text
        assert ">fails<" in page
        assert "Move it to staging</button>" not in page
        answer = on_page(running).post(f"{two}/promote", data={"stage": "staging"})
        assert answer.status_code == 409
        assert "monitored" in answer.text
        gates.unlink()
        page = on_page(running).get(f"{two}/promote", params={"stage": "staging"}).text
        assert "The gates could not be asked" in page
        assert "Move it to staging</button>" not in page
        assert on_page(running).post(f"{two}/promote", data={"stage": "staging"}).status_code == 422
    finally:
        gates.write_bytes(before)
    assert stage(running, "1.1.0") == "none"


def test_an_attestation_becomes_a_version_with_labels_and_notes(running: Service) -> None:
    digest = on_page(running).get("/v1/models/first/versions/1.0.0").json()["attestation"]
    shown = f"/attestations/{digest.removeprefix('sha256:')}"
    assert f'href="{shown}/register"' in on_page(running).get(shown).text
    assert ">Register it</button>" in on_page(running).get(f"{shown}/register").text
    new = {
        "model": "fresh",
        "version": "2.0.0",
        "labels": " team=code\r\n\r\nuse=a=b ",
        "notes": "x",
    }
    made = on_page(running).post(f"{shown}/register", data=new)
    assert (made.status_code, made.headers["location"]) == (303, "/models/fresh/2.0.0")
    assert on_page(running).post(f"{shown}/register", data=new).status_code == 409
    edit = "/models/fresh/2.0.0/edit"
    assert "team=code\nuse=a=b</textarea>" in on_page(running).get(edit).text
    changed = on_page(running).post(edit, data={"labels": "team=law", "notes": "<b>mind</b>"})
    assert changed.status_code == 303
    page = on_page(running).get("/models/fresh/2.0.0").text
    assert "team=law" in page
    assert "&lt;b&gt;mind&lt;/b&gt;" in page
    for wrong in ({"labels": "team"}, {"labels": "a=1\na =2"}, {"labels": "ä=1"}):
        assert on_page(running).post(edit, data=wrong).status_code == 422
    for wrong in ({"model": "../up"}, {"version": "1"}, {"model": ""}):
        assert on_page(running).post(f"{shown}/register", data=new | wrong).status_code in (
            400,
            422,
        )
    for kind, headers in (("auditor", {}), ("engineer", {"sec-fetch-site": "cross-site"})):
        for path in (edit, f"{shown}/register"):
            answer = on_page(running, kind, **headers).post(path, data=new | {"version": "3.0.0"})
            assert answer.status_code == 403
    assert "/edit" not in on_page(running, "auditor").get("/models/fresh/2.0.0").text
    with Session(running.engine) as session:
        row = registry.get(session, "fresh", "2.0.0")
        assert (row.labels, row.notes, row.user) == ({"team": "law"}, "<b>mind</b>", "engineer")
        assert [each.version for each in registry.versions(session, "fresh")] == ["2.0.0"]


def test_who_may_not_promote_sees_no_link_and_is_refused(running: Service) -> None:
    for kind in ("auditor", "supplier"):
        assert "/promote?stage=" not in on_page(running, kind).get(ONE).text
        assert on_page(running, kind).get(f"{ONE}/promote?stage=staging").status_code == 403
        answer = on_page(running, kind).post(f"{ONE}/promote", data={"stage": "archived"})
        assert answer.status_code == 403
    elsewhere = on_page(running, **{"sec-fetch-site": "cross-site"})
    assert elsewhere.post(f"{ONE}/promote", data={"stage": "archived"}).status_code == 403
    assert on_page(running).post(f"{ONE}/promote", data={"stage": "gold"}).status_code == 422
