"""Deleting an experiment and registering a version, in a real browser, by those who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from sqlmodel import Session

from govray.platform.service.identity import access
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import ExperimentRow, ProjectRow
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


def test_an_admin_deletes_an_experiment_and_takes_it_back(
    tmp_path: Path, chromium: Browser
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    (tmp_path / "gpt").mkdir()
    with Session(engine) as session:
        session.add(
            ProjectRow(
                name="vision", workspace="default", settings={}, created=CREATED, user="admin"
            )
        )
        add_experiment(session, "gpt", HOSTILE, "train", ExperimentState.COMPLETED)
        given = {"steps": 3, "floor": 2.0, "hyperparameters": {}, "state": RunState.COMPLETED}
        add_run(session, "gpt", "gpt", ZERO, **given)
        values = {"storage": str(tmp_path), "project": "vision", "config": {}}
        session.get_one(ExperimentRow, "gpt").sqlmodel_update(values)
        session.commit()
    tokens = make_tokens(engine, "acme", "umbrella")
    engine.dispose()
    with served(url, auth=True) as address:
        page = reader(chromium, address, tokens["admin"], 390)
        page.goto(f"{address}/experiments/gpt")
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
