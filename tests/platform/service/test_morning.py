"""A person's morning in Chromium: sign in, start, follow, promote, take evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time
from govray.platform.store import leases
from govray.platform.store.database import open_store
from govray.platform.store.queue_entries import move
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import ExperimentRow, QueueEntry, RunRow
from tests.support.chromium import browser
from tests.support.gates import gated
from tests.support.identity_provider import IdentityProvider, identity_provider
from tests.support.queue_shown import FILE
from tests.support.shelf_of_models import made_once
from tests.support.shown import Shown, fill
from tests.support.site import free_port, served
from tests.support.tree import ROOT

pytestmark = [pytest.mark.story, pytest.mark.browser]

PICTURES = ROOT / "docs" / "pages" if "GOVRAY_PICTURES" in os.environ else None
"""Where pictures of the morning are written, if they are asked for."""


@dataclass
class Office:
    """A service, its identity provider, and a browser."""

    address: str
    provider: IdentityProvider
    engine: Engine
    shown: Shown
    browser: Browser

    @contextmanager
    def person(self, width: int = 1200) -> Iterator[Page]:
        """A page in a browser of one's own, which hears of no error and asks nobody else."""
        context = self.browser.new_context(viewport={"width": width, "height": 900})
        page, wrong = context.new_page(), list[str]()

        def heard(told: ConsoleMessage) -> None:
            # A page that says what is wrong has the status of that, which the console names.
            if told.type == "error" and "the server responded with a status of 4" not in told.text:
                wrong.append(told.text)

        page.on("console", heard)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (self.address, self.provider.issuer)
        page.on(
            "request", lambda sent: None if sent.url.startswith(own) else wrong.append(sent.url)
        )
        yield page
        assert wrong == []
        context.close()

    def sign_in(self, page: Page, following: str = "/") -> None:
        page.goto(f"{self.address}/sign-in?next={following}")
        page.get_by_role("link", name="Sign in at localhost").click()
        page.wait_for_url(self.address + following)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    shown = fill(engine, url, folder, hostile_too=False)
    gates = gated(made_once().world, folder)
    port = free_port()
    # As localhost it is another site than 127.0.0.1, as providers are.
    with identity_provider("localhost") as provider:
        settings = provider.settings(f"http://127.0.0.1:{port}/sign-in/callback")
        with (
            served(url, auth=True, port=port, oidc=settings, **gates) as address,
            browser() as opened,
        ):
            yield Office(address, provider, engine, shown, opened)
    engine.dispose()


@pytest.fixture(autouse=True)
def _restored(office: Office) -> Iterator[None]:
    yield
    office.provider.restore()


def looked_at(page: Page, name: str) -> None:
    """Nothing of the page is in the way of anybody; a picture of it, if one is asked for."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(serious)[:2000]
    if PICTURES is not None:
        page.screenshot(path=PICTURES / f"{name}.png")


def works(office: Office) -> None:
    now = datetime.now(UTC)
    until = format_time(now + timedelta(minutes=30))
    with Session(office.engine) as session:
        leases.take(session, leases.RECONCILER, "test", at=format_time(now), until=until)


def moved(office: Office, name: str, state: ExperimentState, **changes: object) -> None:
    """What a reconciler writes down."""
    with Session(office.engine) as session:
        query = select(QueueEntry).where(col(QueueEntry.name) == name)
        row = session.exec(query.where(col(QueueEntry.user) == "oidc:ada")).one()
        assert move(session, row, state, changes=changes)
        session.commit()


def completed(office: Office, run: str) -> None:
    """The run is indexed, as `govray store index` does; it is there by hand already."""
    with Session(office.engine) as session:
        query = select(QueueEntry.id).where(col(QueueEntry.name) == "the-mornings")
        own = {"id": session.exec(query).one(), "name": "the-mornings"}
        session.add(ExperimentRow(**session.get_one(ExperimentRow, run).model_dump() | own))
        session.flush()
        session.get_one(RunRow, run).experiment = own["id"]
        session.commit()


def test_a_persons_morning(office: Office) -> None:
    with office.person() as page:
        page.goto(f"{office.address}/sign-in?next=/queue")
        looked_at(page, "morning-1-sign-in")
        page.get_by_role("link", name="Sign in at localhost").click()
        page.wait_for_url(f"{office.address}/queue")
        expect(page.locator(".who")).to_contain_text("oidc:ada (engineer)")
        expect(page.get_by_role("status")).to_contain_text("Nobody works off the queue yet")

        page.get_by_role("link", name="Start an experiment").click()
        text = FILE.replace("name: python-source-gpt", "name: the-mornings").strip()
        page.get_by_label("Experiment file").fill(text)
        page.get_by_label("Overrides").fill("max_steps=")
        page.get_by_role("button", name="Check it").click()
        expect(page.get_by_role("alert")).to_contain_text("max_steps")
        expect(page.get_by_label("Experiment file")).to_have_value(text)
        page.get_by_label("Overrides").fill("max_steps=300")
        page.get_by_label("Tags").fill("morning")
        page.get_by_role("button", name="Check it").click()
        expect(page.get_by_role("heading", name="Submit the-mornings?")).to_be_visible()
        looked_at(page, "morning-2-confirm")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.get_by_role("heading", name="the-mornings")).to_be_visible()
        there = page.url

        works(office)
        page.get_by_role("link", name="Queue").first.click()
        expect(page.get_by_text("A reconciler works on the queue")).to_be_visible()
        row = page.get_by_role("row").filter(has_text="the-mornings")
        expect(row).to_contain_text("it waits its turn")
        looked_at(page, "morning-3-queue")
        begun = {"started": format_time(datetime.now(UTC)), "attempt": 1}
        moved(office, "the-mornings", ExperimentState.RUNNING, **begun)
        page.reload()
        expect(row).to_contain_text("running")
        row.get_by_role("link").click()
        assert page.url == there
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        completed(office, "run-first")
        done = {"finished": format_time(datetime.now(UTC))}
        moved(office, "the-mornings", ExperimentState.COMPLETED, **done)
        page.reload()
        looked_at(page, "morning-4-experiment")
        page.get_by_role("link", name="run-first").click()
        expect(page.get_by_role("heading", name="run-first")).to_be_visible()

        page.goto(f"{office.address}/models/python-source-gpt/1.2.0")
        page.get_by_role("link", name="production").click()
        expect(page.get_by_text("holds").first).to_be_visible()
        looked_at(page, "morning-5-promote")
        page.get_by_role("button", name="Move it to production").click()
        expect(page.locator("header.head .badge", has_text="production")).to_be_visible()
        with page.expect_download() as loading:
            page.get_by_role("link", name="The signed attestation of").click()
        assert "payloadType" in json.loads(loading.value.path().read_text())


def test_without_the_page_between_a_strict_cookie_is_not_sent(office: Office) -> None:
    """Why the callback answers with a page: the provider's redirect carries no strict cookie."""
    with office.person() as page:
        office.sign_in(page)
        elsewhere = f"{office.provider.issuer}/nothing"
        page.route(
            elsewhere,
            lambda route: route.fulfill(status=302, headers={"Location": f"{office.address}/"}),
        )
        page.goto(elsewhere)
        expect(page.locator(".who")).to_contain_text("oidc:ada")  # typed: nobody's navigation
        page.route(
            f"{office.provider.issuer}/page",
            lambda route: route.fulfill(
                content_type="text/html", body=f'<a href="{office.address}/">There</a>'
            ),
        )
        page.goto(f"{office.provider.issuer}/page")
        page.get_by_role("link", name="There").click()
        expect(page.locator(".who")).to_contain_text("Sign in")
