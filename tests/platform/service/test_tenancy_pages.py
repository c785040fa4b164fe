"""Pages of projects, people, the audit log and versions in a real browser, by who may use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from sqlmodel import Session

from govray.platform.service.identity import access
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import Experiment, Project
from tests.support.chromium import browser
from tests.support.library import CREATED
from tests.support.licensed_versions import register_all, verified
from tests.support.people import make_tokens
from tests.support.shown import ZERO, add_experiment, add_run
from tests.support.site import reader, served, whole

pytestmark = [pytest.mark.story, pytest.mark.browser]

HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REMEMBERED", 0.0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def test_an_admin_sets_a_project_up_and_its_engineer_sees_it(
    tmp_path: Path, chromium: Browser
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    tokens = make_tokens(engine, "acme", "umbrella")
    engine.dispose()
    with served(url, auth=True) as address:
        member = reader(chromium, address, tokens["member"], 390)
        member.goto(f"{address}/projects")
        expect(member.locator("main")).to_contain_text("You have no role in a project")
        whole(member, 390)

        admin = reader(chromium, address, tokens["admin"], 390)
        admin.goto(f"{address}/projects")
        admin.locator("#name").fill("vision")
        admin.locator("#description").fill(HOSTILE)
        admin.get_by_role("button", name="Make the project").click()
        expect(admin.locator("h1")).to_have_text("vision")
        expect(admin.locator("main")).to_contain_text(HOSTILE)
        admin.locator("#subject").fill("member")
        admin.locator("#role").select_option("engineer")
        admin.get_by_role("button", name="Give the role").click()
        expect(admin.get_by_role("button", name="Remove engineer of member")).to_be_visible()
        admin.locator("#settings-text").fill("max_slots: 8\nfixed: {seed: 1}\n")
        admin.get_by_role("button", name="Set the policy").click()
        expect(admin.locator("#settings-text")).to_have_value("max_slots: 8\nfixed:\n  seed: 1\n")
        whole(admin, 390)

        member.goto(f"{address}/projects/vision")
        expect(member.locator("dl.facts")).to_contain_text("engineer")
        expect(member.get_by_role("button", name="Give the role")).to_have_count(0)
        expect(member.locator("main")).to_contain_text("max_slots: 8")
        whole(member, 390)

        admin.get_by_role("button", name="Remove engineer of member").click()
        expect(admin.get_by_role("button", name="Remove engineer of member")).to_have_count(0)
        admin.locator("#settings-text").fill("max_slot: 8")
        admin.get_by_role("button", name="Set the policy").click()
        expect(admin.locator("main")).to_contain_text("max_slot: Extra inputs")
        assert "400" in admin.wrong.pop()  # type: ignore[attr-defined]
        admin.goto(f"{address}/audit?subject=project%20vision")
        expect(admin.locator("tbody")).to_contain_text("role.unbind")
        admin.goto(f"{address}/users")
        admin.get_by_role("button", name="Disable member").click()
        expect(admin.get_by_role("button", name="Enable member")).to_be_visible()
        whole(admin, 390)
        for page in (admin, member):
            page.context.close()


def test_an_admin_deletes_a_project_and_an_experiment_and_takes_it_back(
    tmp_path: Path, chromium: Browser
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    (tmp_path / "gpt").mkdir()
    with Session(engine) as session:
        session.add(
            Project(name="vision", workspace="default", settings={}, created=CREATED, user="admin")
        )
        add_experiment(session, "gpt", HOSTILE, "train", ExperimentState.COMPLETED)
        given = {"steps": 3, "floor": 2.0, "hyperparameters": {}, "state": RunState.COMPLETED}
        add_run(session, "gpt", "gpt", ZERO, **given)
        values = {"storage": str(tmp_path), "project": "vision", "config": {}}
        session.get_one(Experiment, "gpt").sqlmodel_update(values)
        session.commit()
    tokens = make_tokens(engine, "acme", "umbrella")
    engine.dispose()
    with served(url, auth=True) as address:
        page = reader(chromium, address, tokens["admin"], 390)
        for path in ("/experiments/gpt", "/projects/vision"):
            page.goto(address + path)
            page.get_by_role("link", name="Delete …").click()
            expect(page.get_by_role("alertdialog")).to_contain_text("or not at all, and goes after")
            whole(page, 390)
            page.get_by_role("link", name="Leave it").click()
            expect(page.get_by_role("alertdialog")).to_have_count(0)
            page.get_by_role("link", name="Delete …").click()
            page.get_by_role("button", name="Delete it").click()
            expect(page.get_by_role("status")).to_contain_text("admin deleted it. It goes after")
            whole(page, 390)
            page.get_by_role("button", name="Restore it").click()
            expect(page.get_by_role("link", name="Delete …")).to_be_visible()
        page.context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_an_engineer_finds_registers_and_labels_a_version(
    tmp_path: Path, chromium: Browser, width: int
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        register_all(session)
    tokens = make_tokens(engine, "acme", "umbrella")
    engine.dispose()
    with served(url, auth=True) as address:
        page = reader(chromium, address, tokens["engineer"], width)
        page.goto(f"{address}/models/gpt")
        page.get_by_role("link", name="Find one by what it learnt from").click()
        page.get_by_label("Layer groups").fill("block.*")
        page.get_by_label("copyleft", exact=True).check()
        page.get_by_label("Best validation first").check()
        page.get_by_role("button", name="Find").click()
        expect(page.locator("tbody th").first).to_contain_text("1.1.0")
        expect(page.locator("tbody tr")).to_have_count(3)
        whole(page, width)

        digest = verified()[1]["1.1.0"].digest.removeprefix("sha256:")
        page.goto(f"{address}/attestations/{digest}")
        page.get_by_role("link", name="Register it as a version").click()
        page.locator("#model").fill("chosen")
        page.locator("#version").fill("1.0.0")
        page.locator("#labels").fill("why=best\nteam=code")
        whole(page, width)
        page.get_by_role("button", name="Register it").click()
        expect(page.locator("h1")).to_have_text("chosen 1.0.0")
        expect(page.locator("header.head")).to_contain_text("team=code")
        page.get_by_role("link", name="Change labels and notes").click()
        page.locator("#notes").fill(HOSTILE)
        page.get_by_role("button", name="Save").click()
        expect(page.locator("header.head")).to_contain_text(HOSTILE)
        whole(page, width)
        page.context.close()
