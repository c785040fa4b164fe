"""The pages on two servers, with and without tokens, and Chromium on them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect
from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.verify.verifier import verify
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.visible.near_records import NearSearch
from govray.platform.store.database import open_store
from govray.platform.store.store_secret import KEY_ENV, load_key
from govray.tune.experiment_cost import experiment_cost
from tests.support.chromium import browser
from tests.support.databases import Server
from tests.support.people import OWN_PAGE, make_tokens
from tests.support.shown import HOSTILE, LIVE, SEARCH, Shown, fill, index


@dataclass
class Site:
    """Two servers over one store: without tokens, and with them."""

    open: str
    guarded: str
    tokens: dict[str, str]
    shown: Shown
    engine: Engine
    browser: Browser


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def served(
    url: str,
    *,
    auth: bool,
    port: int | None = None,
    near: NearSearch | None = None,
    **more: Any,
) -> Iterator[str]:
    """The application on a free port of this machine, with ``more`` settings."""
    port = port or free_port()
    settings = Settings(store=url, auth=auth, rate=1e6, burst=1_000_000, **more)
    app = create_app(settings, check=experiment_cost, near=near)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=20)


@contextmanager
def sited(
    folder: Path, url: str | None = None, *, demo: Path | None = None, hostile_too: bool = True
) -> Iterator[Site]:
    """The site over a store, with the model of a finished demo if one is given."""
    url = url or f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    shown = fill(engine, url, folder, hostile_too=hostile_too)
    tokens = make_tokens(engine, "acme-legal", "archive")
    if demo is not None:
        root = demo / "policies" / "root.json"
        with Session(engine) as session:
            model = verify(demo / "model", trust_root=root)
            index(session, model, root.read_bytes(), load_key(url), folder)
            session.commit()
    with (
        served(url, auth=False) as unguarded,
        served(url, auth=True) as guarded,
        browser() as opened,
    ):
        yield Site(unguarded, guarded, tokens, shown, engine, opened)
    engine.dispose()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Site]:
    """Over PostgreSQL, as a service for many is."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_ENV, str(folder / "store.key"))
        with sited(folder, postgres.new("made")) as made:
            yield made


def paths(site: Site) -> dict[str, str]:
    """The name of a page of each kind, and where it is; where one can have them, hostile names."""
    hostile = [("run", "run-bad"), ("run", LIVE), ("version", f"{HOSTILE}/1.2.0")]
    return {
        "overview": "/",
        "models": "/models",
        "policies": "/policies",
        "model-versions": "/models/python-source-gpt",
        "model-version": "/models/python-source-gpt/1.2.0",
        "memorization": f"/attestations/{site.shown.monitored.removeprefix('sha256:')}",
        "hostile-model": f"/attestations/{site.shown.hostile.removeprefix('sha256:')}",
        "experiments": "/experiments",
        "hostile-experiment": "/experiments/hostile",
        "hostile-run": "/runs/run-bad",
        "queue": "/queue",
        "tasks": "/tasks",
        **({"hostile-submitted": f"/experiments/{site.shown.entry}"} if site.shown.entry else {}),
        **({"hostile-fork": f"/new?fork={site.shown.entry}"} if site.shown.entry else {}),
        "promote": "/models/python-source-gpt/1.2.0/promote?stage=production",
        "search": f"/experiments/{SEARCH}",
        "run": f"/runs/{LIVE}",
        "runs": "/runs",
        "comparison": "/compare?run=run-first&run=run-monitored&smooth=0.6",
        "hostile-comparison": "/compare?" + urlencode(hostile),
        "compare-choose": "/compare",
        "corpora": "/corpora",
        "corpus": "/corpora/alpha",
        "was-this-used": "/search",
        "sign-in": "/sign-in",
    }


@contextmanager
def reading(site: Site, *, scheme: str = "light", width: int = 1200) -> Iterator[Page]:
    """A page that fails the test at a console error, an exception, or a request that leaves."""
    context: BrowserContext = site.browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 900},
    )
    page, wrong = _watched(context)
    own = (site.open, site.guarded)
    page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    yield page
    context.close()


def reader(chromium: Browser, address: str, token: str | None = None, width: int = 1200) -> Page:
    """A page of somebody with this token; what goes wrong on it is in ``page.wrong``."""
    context = chromium.new_context(viewport={"width": width, "height": 900})
    if token is not None:
        context.request.post(f"{address}/sign-in", form={"token": token}, headers=OWN_PAGE)
    return _watched(context)[0]


def _watched(context: BrowserContext) -> tuple[Page, list[str]]:
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.wrong = wrong  # type: ignore[attr-defined]
    return page, wrong


def whole(page: Page, width: int = 1200) -> None:
    """No console error, no serious finding, and nothing wider than the screen."""
    page.wait_for_load_state()  # a slow machine has the text before the style
    assert page.wrong == []  # type: ignore[attr-defined]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    assert serious(page) == []


def settled(page: Page, url: str) -> None:
    """Go there and wait until its scripts are done."""
    page.goto(url)
    for name in ("#charts",):
        if page.locator(name).count():
            expect(page.locator(name)).to_have_attribute("data-ready", "yes", timeout=30_000)


def serious(page: Page) -> list[dict[str, Any]]:
    """What axe-core finds on a page that matters; of rules that hold it collects no examples."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [each for each in found if each["impact"] in ("serious", "critical")]
