"""Every page × every role × a store with nothing and with many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import make_transient
from sqlmodel import Session, col

from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.identity.session_cookie import COOKIE
from govray.platform.service.pages import rendering
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.states import (
    CheckpointState,
    ExperimentState,
    RunState,
)
from govray.platform.store.store_secret import KEY_ENV
from govray.platform.tasks.task_file import KINDS
from tests.support.chromium import browser
from tests.support.people import NOW, Service, begin_session, make_tokens
from tests.support.runs import submission
from tests.support.shelf_of_models import KEY, Shelf, made_once
from tests.support.shown import ZERO, add_decision, add_experiment, add_run
from tests.support.site import served

ROLES = ("admin", "engineer", "auditor", "supplier", "other supplier", "public")
STAFF = ROLES[:3]
MANY = 60
"""More than the rows of one page of a listing."""
AT = "2026-11-20T08:00:00Z"

LISTINGS = {
    "/": ROLES,
    "/models": ROLES,
    "/versions": ROLES,
    "/versions?best=true&withoutLicense=copyleft&group=block.*": ROLES,
    "/experiments": STAFF,
    "/experiments?state=COMPLETED": STAFF,
    "/queue": STAFF,
    "/tasks": STAFF,
    "/tasks?state=RUNNING": STAFF,
    "/experiments?state=QUEUED": STAFF,
    "/new": ("admin", "engineer"),
    "/runs": STAFF,
    "/runs?state=COMPLETED&sort=loss": STAFF,
    "/compare": STAFF,
    "/corpora": ROLES[:5],
    "/corpora?named=a": ROLES[:5],
    "/policies": ROLES,
    "/search": ROLES,
    "/sign-in": ROLES,
}
NOWHERE = (
    "/models/none",
    "/models/none/1.0.0",
    f"/attestations/{'0' * 64}",
    "/experiments/none",
    "/tasks/none",
    "/runs/none",
    "/compare?run=none",
    "/compare?version=none",
    "/runs?sort=nonsense",
    "/corpora/none",
    f"/policies/{'0' * 64}",
    "/none",
    "/models?nonsense=1",
)
ITEMS = {
    # ``first`` used corpora of both suppliers, and is public.
    "/models/gpt": ROLES[:5],
    "/models/gpt/1.0.0": ROLES[:5],
    "/attestations/{first}": ROLES[:5],
    "/experiments/e-0": STAFF,
    "/runs/t-0": STAFF,
    "/experiments/s-0": STAFF,
    "/new?fork=s-0": ("admin", "engineer"),
    "/models/gpt/1.0.0/promote?stage=archived": ("admin", "engineer"),
    "/models/gpt/1.0.0/edit": ("admin", "engineer"),
    "/attestations/{first}/register": ("admin", "engineer"),
    "/runs/t-0?from=1&to=1&smooth=0.5&log=1": STAFF,
    "/experiments/e-0?x=lr": STAFF,
    "/compare?run=t-0": STAFF,
    "/compare?run=t-0&version=gpt%2F1.0.0": STAFF,
    "/runs/t-0/logs": STAFF,
    "/corpora/acme": (*STAFF, "supplier"),
    "/corpora/alpha": (*STAFF, "other supplier"),
}


@dataclass
class Filled:
    """A store, and who may read which address of it."""

    url: str
    tokens: dict[str, str]
    pages: dict[str, tuple[str, ...]] = field(default_factory=dict)


def filled(folder: Path, shelf: Shelf, how_many: int) -> Filled:
    url = f"sqlite:///{folder / f'store-{how_many}.db'}"
    engine = open_store(url, create=True)
    try:
        made = Filled(url, make_tokens(engine, "acme-legal", "archive"), dict(LISTINGS))
        if how_many:
            first = _fill(engine, shelf, how_many)
            items = {path.format(first=first): who for path, who in ITEMS.items()}
            made.pages |= {
                path: ROLES
                if path.startswith(("/models", "/att", "/led")) and who == ROLES[:5]
                else who
                for path, who in items.items()
            }
        return made
    finally:
        engine.dispose()


def _fill(engine: Engine, shelf: Shelf, how_many: int) -> str:
    with Session(engine) as session:
        (row,) = shelf.index(session, "first", public=True)
        digest = row.digest
        session.add(tables.ModelRow(name="gpt", labels={}, created=AT, user="ada"))
        session.flush()
        for number in range(how_many):
            session.add(
                tables.ModelVersion(
                    model="gpt",
                    version=f"1.0.{number}",
                    major=1,
                    minor=0,
                    patch=number,
                    attestation=digest,
                    stage="production" if number == 0 else "none",
                    labels={},
                    created=AT,
                    user="ada",
                )
            )
            add_experiment(session, f"e-{number}", "gpt", "train", ExperimentState.COMPLETED)
            # All runs are of the first experiment, so that it is a search of many.
            rate = 10.0 ** -(1 + number % 5)
            add_run(
                session,
                f"t-{number}",
                "e-0",
                ZERO,
                steps=2,
                floor=2.0,
                hyperparameters={"lr": rate},
                state=RunState.COMPLETED,
            )
            for named, corpus in enumerate(("acme", "not-indexed")):
                add_decision(session, f"t-{number}", named, "flag", "why", corpus=corpus)
            state, size = CheckpointState.COMPLETED, 10**6
            session.add(
                tables.CheckpointRow(
                    run=f"t-{number}", step=1, state=state, digest=ZERO, bytes=size, at=None
                )
            )
            row = submission(f"s-{number}")
            row.state = list(ExperimentState)[number % len(ExperimentState)]
            session.add(row)
            task = submission(f"s-task-{number}")
            task.kind, task.state = KINDS[number % len(KINDS)], row.state
            session.add(task)
        session.flush()
        for number in range(1, how_many):
            _copy(session, tables.LedgerRow, "run", "run-first", f"run-{number:03}")
            _copy(session, tables.Corpus, "name", "acme", f"acme-{number:03}")
            _copy(session, tables.Corpus, "name", "alpha", f"alpha-{number:03}")
        session.commit()
    return digest.removeprefix("sha256:")


def _copy(session: Session, table: type, key: str, of: str, name: str) -> None:
    row = session.execute(select(table).where(col(getattr(table, key)) == of)).scalar_one()
    session.expunge(row)
    make_transient(row)
    setattr(row, key, name)
    session.add(row)
    session.flush()


def written(address: str, page: str) -> set[str]:
    """The links that a page has when it leaves the server."""
    found = re.findall(r'<a\b[^>]*\bhref="([^"]*)"', page)
    return {urljoin(address, unescape(each)) for each in found}


def status(roles: tuple[str, ...], role: str, path: str) -> tuple[int, ...]:
    """What a caller of ``role`` may get for a page that ``roles`` may read."""
    if role in roles:
        return (200,)
    return (401, 404) if role == "public" else (403, 404)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Filled]]:
    folder = tmp_path_factory.mktemp("everyone")
    secret = folder / "store.key"
    secret.touch(0o600)
    secret.write_bytes(KEY)
    shelf = made_once()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_ENV, str(secret))
        yield {how_many: filled(folder, shelf, how_many) for how_many in (0, MANY)}


@contextmanager
def asked(store: Filled) -> Iterator[Service]:
    """The application of a store without a server."""
    app = create_app(Settings(store=store.url, rate=1e6, burst=1_000_000), clock=lambda: NOW)
    try:
        yield Service(app, store.tokens)
    finally:
        app.state.engine.dispose()


class Links:
    """The links of a role's pages, one of those that differ in a number or a cursor."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.values())

    def of(self, page: str, links: list[str]) -> None:
        """Add those of a page, but for those that lead to a place on the page itself."""
        for each in links:
            link = each.partition("#")[0]
            if link != page:
                self._found[re.sub(r"\d+|cursor=.*", "", link)] = link


@pytest.mark.parametrize("how_many", [pytest.param(0, marks=pytest.mark.story), MANY])
def test_every_page_answers_everyone(stores: dict[int, Filled], how_many: int) -> None:
    """The empty store is what every installation begins with."""
    wrong = []
    with asked(stores[how_many]) as service:
        for role in ROLES:
            client = service.client(role, accept="text/html")
            links = Links()
            for path, roles in stores[how_many].pages.items():
                answer = client.get(path)
                if answer.status_code not in status(roles, role, path):
                    wrong.append(f"{path} by {role}: {answer.status_code}")
                if not answer.headers["content-type"].startswith("text/html"):
                    wrong.append(f"{path} by {role}: {answer.headers['content-type']}")
                if len(re.findall(r"<h1\b", answer.text)) != 1:
                    wrong.append(f"{path} by {role}: not a page")
                links.of(path, [*written(path, answer.text)])
            for link in links:
                if (got := client.get(link).status_code) != 200:
                    wrong.append(f"a link to {link} by {role}: {got}")
    assert wrong == []


def test_every_failure_is_a_page(
    stores: dict[int, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong, foreseen or not, is a page for who asks for one."""

    def fails(*_: object) -> None:
        raise RuntimeError("secret detail")

    with asked(stores[0]) as service:
        client = service.client("admin", accept="text/html")
        for path in NOWHERE:
            answer = client.get(path)
            assert answer.status_code in (404, 422)
            assert answer.headers["content-type"].startswith("text/html"), path
        monkeypatch.setattr(rendering, "brief", fails)
        monkeypatch.setattr("govray.platform.service.pages.overview.model_rows", fails)
        answer = client.get("/")
        assert answer.status_code == 500
        assert answer.headers["content-type"].startswith("text/html")
        assert "urn:govray:error:" in answer.text
        assert "secret detail" not in answer.text
        told = client.get("/", headers={"accept": "application/json"})
        assert told.headers["content-type"] == "application/problem+json"
        answer = client.post("/sign-in", content=b"x" * (17 << 20))
        assert answer.status_code == 413
        assert answer.headers["content-type"].startswith("text/html")


def session_of(store: Filled, role: str) -> str:
    """A session of ``role``, as a browser holds it. It begins now: the server's clock is real."""
    engine = open_store(store.url)
    try:
        return begin_session(engine, store.tokens[role], datetime.now(UTC))
    finally:
        engine.dispose()


@pytest.mark.story
@pytest.mark.browser
def test_every_page_of_an_empty_store_is_whole_in_a_browser(stores: dict[int, Filled]) -> None:
    """`test_pages_browser` looks at pages with something on them."""
    store, wrong = stores[0], list[str]()
    with served(store.url, auth=True) as address, browser() as chromium:
        context = chromium.new_context()
        cookie = session_of(store, "admin")
        context.add_cookies([{"name": COOKIE, "value": cookie, "url": address}])
        page = context.new_page()
        heard: list[str] = []
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("console", lambda said: heard.append(said.text) if said.type == "error" else None)
        for path in (*store.pages, *NOWHERE):
            heard.clear()
            answer = page.goto(address + path)
            assert answer is not None
            if page.locator("main h1").count() != 1:
                wrong.append(f"{path}: not a page")
            if answer.status == 200:
                wrong += [f"{path}: {each}" for each in heard]
        context.close()
    assert wrong == []
