"""For every role and listing: page and route have the same, and no less than everyone sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from sqlalchemy import delete, select, true, update
from sqlmodel import Session, col

from govray.platform import service
from govray.platform.service.visible import visible_models
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import LedgerRow, ModelVersion
from tests.support.library import Library, library
from tests.support.shown import ZERO, add_experiment, add_run

ROLES = ("admin", "engineer", "auditor", "supplier", "other supplier", "public")
STAFF = ROLES[:3]
NOTES = "Passed the review"

Seen = frozenset[str] | None
"""What a listing has; None where the role has no such listing."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """``narrow`` is public; nobody registered ``second``; there are two experiments."""
    with library(tmp_path_factory.mktemp("agree")) as made:
        with Session(made.service.engine) as session:
            v = ModelVersion
            session.execute(delete(v).where(col(v.model) == "second"))
            session.execute(update(v).values(stage="staging", notes=NOTES))
            for number in range(2):
                add_experiment(session, f"e-{number}", "gpt", "train", ExperimentState.COMPLETED)
                add_run(
                    session,
                    f"t-{number}",
                    f"e-{number}",
                    ZERO,
                    steps=2,
                    floor=2.0,
                    hyperparameters={},
                    state=RunState.COMPLETED,
                )
            session.commit()
        yield made


def links(shelf: Library, role: str, path: str, to: str) -> Seen:
    """What the links of a page's main part name, that begin with ``to``."""
    answer = shelf.service.client(role, accept="text/html").get(path)
    if answer.status_code in (401, 403):
        return None
    assert answer.status_code == 200, (role, path)
    main = answer.text.split("<main", 1)[1]
    return frozenset(unquote(each) for each in re.findall(rf'href="{to}([^"#?]+)"', main))


def items(shelf: Library, role: str, path: str, *names: str) -> Seen:
    """What a route lists, each item by its fields ``names``."""
    answer = shelf.get(role, path)
    if answer.status_code in (401, 403):
        return None
    told = answer.json()
    assert told["next"] is None
    return frozenset("/".join(item[name] for name in names) for item in told["items"])


def versions(shelf: Library, role: str) -> dict[str, str]:
    """Version → digest of its attestation, by the routes."""
    models = items(shelf, role, "/models", "name")
    assert models is not None
    told = [
        item
        for model in models
        for item in shelf.get(role, f"/models/{model}/versions").json()["items"]
    ]
    return {f"{each['model']}/{each['version']}": each["attestation"] for each in told}


def ledgers(shelf: Library, role: str) -> Seen:
    """The runs whose ledger the route has."""
    with Session(shelf.service.engine) as session:
        runs = session.execute(select(col(LedgerRow.run))).scalars().all()
    return frozenset(run for run in runs if shelf.get(role, f"/ledgers/{run}").status_code == 200)


def unregistered(shelf: Library, role: str) -> Seen:
    found = items(shelf, role, "/attestations", "digest")
    assert found is not None
    registered = set(versions(shelf, role).values())
    return frozenset(digest.removeprefix("sha256:") for digest in found - registered)


def runs(shelf: Library, role: str) -> Seen:
    pages = [links(shelf, role, f"/experiments/e-{number}", "/runs/") for number in range(2)]
    return None if None in pages else frozenset().union(*(page or () for page in pages))


Listing = Callable[[Library, str], Seen]

SAME: dict[str, tuple[Listing, Listing]] = {
    "versions": (
        lambda s, r: links(s, r, "/models", "/models/"),
        lambda s, r: frozenset(versions(s, r)),
    ),
    "attestations": (lambda s, r: links(s, r, "/models", "/attestations/"), unregistered),
    "corpora": (
        lambda s, r: links(s, r, "/corpora", "/corpora/"),
        lambda s, r: items(s, r, "/corpora", "name"),
    ),
    "experiments": (
        lambda s, r: links(s, r, "/experiments", "/experiments/"),
        lambda s, r: items(s, r, "/experiments", "id"),
    ),
    "runs": (runs, lambda s, r: items(s, r, "/runs", "id")),
}
"""Listing → what the pages and what the routes have."""

ROUTES: dict[str, Listing] = {
    "models": lambda s, r: items(s, r, "/models", "name"),
    "ledgers": ledgers,
    "policies": lambda s, r: items(s, r, "/policies", "digest"),
    "trust roots": lambda s, r: items(s, r, "/trust-roots", "digest"),
} | {name: route for name, (_, route) in SAME.items()}


@pytest.mark.parametrize("listing", SAME)
def test_a_page_lists_what_its_route_lists(shelf: Library, listing: str) -> None:
    page, route = SAME[listing]
    for role in ROLES:
        assert page(shelf, role) == route(shelf, role), role
        # The control: staff see something everywhere, so nothing is equal for being empty.
        assert role not in STAFF or route(shelf, role), role


@pytest.mark.parametrize("listing", ROUTES)
def test_nobody_sees_less_than_everyone(shelf: Library, listing: str) -> None:
    seen = {role: ROUTES[listing](shelf, role) or frozenset() for role in ROLES}
    for role in ROLES:
        assert seen["public"] <= seen[role] <= seen["admin"], role


def test_roles_see_what_they_should(shelf: Library) -> None:
    """By name, so that a rule which is wrong for all alike is noticed too; of models they are in
    test_models_routes.py."""
    corpora = {role: ROUTES["corpora"](shelf, role) for role in ROLES}
    assert corpora["public"] is None
    assert corpora["supplier"] == {"acme"}
    assert corpora["other supplier"] == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("model", ["narrow", "first"])
def test_a_page_tells_no_more_of_a_version_than_its_route(
    shelf: Library, role: str, model: str
) -> None:
    told = shelf.get(role, f"/models/{model}/versions/1.0.0")
    client = shelf.service.client(role, accept="text/html")
    page = client.get(f"/models/{model}/1.0.0")
    assert page.status_code == told.status_code
    whole = "stage" in told.json()
    assert whole == (role in STAFF)
    assert (NOTES in page.text) == whole
    for path in (f"/models/{model}/1.0.0", f"/models/{model}", "/models"):
        assert ("staging" in client.get(path).text) == whole


def test_without_the_rule_more_is_listed_on_both(
    shelf: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: it is one rule, for pages and routes."""
    page, route = SAME["attestations"]
    before = route(shelf, "public")
    monkeypatch.setattr(visible_models, "whole_attestations", lambda _: true())
    assert page(shelf, "public") == route(shelf, "public") != before


def test_no_route_or_page_asks_for_the_role_itself() -> None:
    package = Path(service.__file__).parent
    asking = [
        path.name
        for room in ("routes", "pages")
        for path in (package / room).rglob("*.py")
        if re.search(r"caller\.(role|supplier)\b", path.read_text())
    ]
    assert asking == []
