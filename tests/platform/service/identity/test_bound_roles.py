"""Who reads what by roles in parts of the organisation; what is elsewhere reads like nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import true
from sqlmodel import Session

from govray.platform.service.acting import acting
from govray.platform.service.identity import access, rights
from govray.platform.service.identity.caller import SCOPES, Caller, PlaceRole, Role
from govray.platform.service.identity.rights import (
    RIGHTS,
    everywhere,
    may,
    roles_in,
    somewhere,
)
from govray.platform.service.visible import visible_models, visible_runs
from govray.platform.store import role_bindings
from govray.platform.store.database import open_store
from govray.platform.store.role_bindings import ROLES, Grant
from govray.platform.store.tables import ProjectRow, WorkspaceRow
from tests.support.library import library
from tests.support.people import NOW, PAGE
from tests.support.places import BY, GRANTS, READS, RUNS, Places, placed

RUN_ADDRESSES = (
    "/v1/experiments/e-{}",
    "/v1/runs/run-{}",
    "/v1/runs/run-{}/metrics",
    "/v1/runs/run-{}/metrics/stream",
    "/v1/runs/run-{}/decisions",
    "/v1/runs/run-{}/checkpoints",
    "/experiments/e-{}",
    "/runs/run-{}",
)
MODEL_ADDRESSES = (
    "/v1/models/{}",
    "/v1/models/{}/versions",
    "/v1/models/{}/versions/1.0.0",
    "/v1/models/{}/versions/1.0.0/lineage",
    "/v1/models/{}/versions/1.0.0/layers/head",
    "/v1/models/{}/versions/1.0.0/memorization",
    "/v1/ledgers/run-{}",
    "/v1/ledgers/run-{}/checkpoint",
    "/v1/ledgers/run-{}/proofs/inclusion?index=0",
    "/v1/ledgers/run-{}/entries/0",
    "/models/{}",
    "/models/{}/1.0.0",
)
DIGEST_ADDRESSES = (
    "/v1/attestations/{}",
    "/v1/attestations/{}/lineage",
    "/v1/attestations/{}/layers/head",
    "/v1/attestations/{}/memorization",
    "/attestations/{}",
)
PROJECT_ADDRESSES = (
    "/v1/projects/{}",
    "/v1/projects/{}/settings",
)
VERSION_ADDRESSES = (
    "/v1/models/guarded/versions/{}",
    "/v1/models/guarded/versions/{}/lineage",
    "/v1/models/guarded/versions/{}/layers/head",
    "/v1/models/guarded/versions/{}/memorization",
    "/models/guarded/{}",
)
CORPUS_ADDRESSES = ("/v1/corpora/{}", "/corpora/{}")
NOWHERE = "0" * 64
ABSENT = [
    ("/models/first/9.9.9", "/v1/models/first/versions/9.9.9"),
    ("/models/guarded/1.0.0", "/v1/models/guarded/versions/1.0.0"),
    ("/models/guarded", "/v1/models/guarded"),
    (f"/attestations/{NOWHERE}", f"/v1/attestations/{NOWHERE}/lineage"),
]
"""A page, and the address of the API that has the same."""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with library(tmp_path_factory.mktemp("bound")) as made:
        yield placed(made)


def leaks(held: Places, kinds: tuple[str, ...]) -> list[str]:
    """Where an answer is not what `READS` says: elsewhere reads as nowhere, to the letter. Of
    who stands there with no roles: ``guarded`` used none of a supplier's corpora, and is not
    public."""
    found = []
    for kind in kinds:
        client = held.library.service.client(kind)
        reads = READS.get(kind, frozenset())
        nothing: dict[str, tuple[int, str, dict[str, str]]] = {}
        for model, project in RUNS.items() if reads else [("guarded", "speech")]:
            digest = held.library.digest(model).removeprefix("sha256:")
            asked = [
                *((each, model, "none") for each in (*RUN_ADDRESSES, *MODEL_ADDRESSES)),
                *((each, digest, NOWHERE) for each in DIGEST_ADDRESSES),
                *((each, project, "none") for each in PROJECT_ADDRESSES),
                ("/v1/experiments/{}", held.entries[project], "none"),
                *((each, "1.0.0", "9.9.9") for each in VERSION_ADDRESSES if model == "guarded"),
                *((each, "alpha", "omega") for each in CORPUS_ADDRESSES if not reads),
            ]
            for address, there, nowhere in asked:
                answer = said(client, address.format(there))
                if model in reads:
                    if answer[0] != 200:
                        found.append(f"{kind} {address} {there}: {answer[0]}")
                    continue
                if address not in nothing:
                    nothing[address] = said(client, address.format(nowhere))
                status, text, headers = nothing[address]
                if answer != (status, text.replace(nowhere, there), headers):
                    found.append(f"{kind} {address} {there}: tells what is elsewhere")
    return found


def said(client: TestClient, path: str) -> tuple[int, str, dict[str, str]]:
    answer = client.get(path, headers={} if path.startswith("/v1/") else PAGE)
    of_it = {"content-length", "x-request-id"}
    return (
        answer.status_code,
        answer.text,
        {k: v for k, v in answer.headers.items() if k not in of_it},
    )


@pytest.mark.slow
def test_who_has_a_role_somewhere_reads_that_and_nothing_elsewhere(held: Places) -> None:
    assert leaks(held, ("viewer", "space-viewer", "supplier", "public")) == []


def test_without_the_condition_on_models_a_hidden_one_is_shown(
    held: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the rule is the one function, for pages and routes."""
    for name in ("versions", "attestations"):
        monkeypatch.setattr(visible_models, name, lambda _: true())
    found = leaks(held, ("public",))
    for address in ("/v1/models/{}/versions/1.0.0 ", "/v1/ledgers/run-{} "):
        assert any(address in each for each in found), address


@pytest.mark.parametrize("kind", ["supplier", "public"])
@pytest.mark.parametrize(("page", "route"), ABSENT)
def test_a_page_says_what_the_route_says(held: Places, kind: str, page: str, route: str) -> None:
    client = held.library.service.client(kind)
    problem = client.get(route).json()
    text = said(client, page)[1].replace("&#39;", "'")
    assert problem["detail"] in text
    assert problem["do"] in text


def test_without_the_condition_on_projects_elsewhere_is_read(
    held: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rights, visible_runs):
        monkeypatch.setattr(module, "in_projects", lambda *_: true())
    found = leaks(held, ("viewer",))
    for address in ("/v1/experiments", "/v1/runs", "/v1/attestations"):
        assert any(address in each for each in found), address


@pytest.mark.parametrize("kind", [*GRANTS, "member"])
def test_listings_have_what_the_caller_reads_and_no_more(held: Places, kind: str) -> None:
    client = held.library.service.client(kind)
    reads = READS.get(kind, frozenset())
    projects = {RUNS[model] for model in reads}

    def listed(path: str, name: str) -> set[str]:
        answer = client.get(f"/v1{path}")
        if answer.status_code == 403:
            return set()
        assert answer.status_code == 200, path
        return {item[name] for item in answer.json()["items"]}

    public = {held.library.digest("narrow")}
    assert listed("/experiments", "id") == {f"e-{each}" for each in reads} | {
        held.entries[each] for each in projects
    }
    assert listed("/runs", "id") == {f"run-{each}" for each in reads}
    assert listed("/attestations", "digest") == public | {held.library.digest(m) for m in reads}
    assert listed("/models", "name") == reads | {"narrow"}
    assert listed("/projects", "name") >= projects
    assert listed("/projects", "name") <= projects | {"default"}
    assert listed("/usage", "name") == projects
    assert listed("/usage?by=user", "name") == projects_users(projects)
    for path in ("/", "/experiments", "/models"):
        page = client.get(path, headers=PAGE)
        hidden = [each for each in RUNS if each not in reads and f"run-{each}" in page.text]
        assert hidden == [], path


def projects_users(projects: set[str]) -> set[str]:
    """Who submitted to them, by the index and by the queue."""
    return {f"{each}-user" for each in projects} | ({"admin"} if projects else set())


def test_a_steward_reads_the_corpora_of_the_place_and_their_uses_there_alone(held: Places) -> None:
    service, digest = held.library.service, held.library.digest("first")
    own = {c.corpus for c in held.library.model("first").attestation.corpora}
    elsewhere = {
        c.corpus for m in ("guarded", "second") for c in held.library.model(m).attestation.corpora
    }
    told = service.client("steward").get("/v1/corpora").json()["items"]
    assert {each["name"] for each in told} == own
    for name in own:
        corpus = service.client("steward").get(f"/v1/corpora/{name}").json()
        assert {each["attestation"] for each in corpus["uses"]} == {digest}
        whole = service.client("admin").get(f"/v1/corpora/{name}").json()
        assert len(whole["uses"]) > 1 or name not in elsewhere
    for name in elsewhere - own:
        assert service.client("steward").get(f"/v1/corpora/{name}").status_code == 404
    assert service.client("viewer").get("/v1/corpora").status_code == 403
    record = held.library.record("alpha", 0)
    seen = service.client("steward").get(f"/v1/records/{record}").json()["sightings"]
    assert {each["attestation"] for each in seen} <= {digest}
    assert "run-guarded" not in service.client("steward").get("/corpora/alpha").text


def test_an_auditor_of_a_project_reads_its_entries_and_no_others(held: Places) -> None:
    service = held.library.service
    for model in ("first", "guarded"):
        tagged = service.client("admin").put(f"/v1/experiments/e-{model}/tags", json={"tags": []})
        assert tagged.status_code == 200
    told = service.client("bound-auditor").get("/v1/audit").json()["items"]
    subjects = {each["subject"] for each in told}
    assert subjects == {"project vision", held.entries["vision"], "e-first"}
    assert service.client("viewer").get("/v1/audit").status_code == 403
    for kind, some in (("auditor", True), ("bound-auditor", False)):
        asked = service.client(kind).get("/v1/audit?subject=project%20payroll")
        assert bool(asked.json()["items"]) == some


def test_a_role_ends_at_its_time_at_once(held: Places) -> None:
    service = held.library.service
    client = service.client("bound-auditor")
    try:
        service.clock[0] = NOW + timedelta(days=1, seconds=-1)
        assert client.get("/v1/runs/run-first").status_code == 200
        service.clock[0] = NOW + timedelta(days=1)
        assert client.get("/v1/runs/run-first").status_code == 403
    finally:
        service.clock[0] = NOW


def test_a_role_that_is_taken_away_ends_within_what_is_remembered(held: Places) -> None:
    service = held.library.service
    client = service.client("member")
    grant = Grant(
        subject_kind="user", subject="member", role="viewer", scope="project", place="vision"
    )
    try:
        with Session(service.engine) as session:
            id_ = role_bindings.bind(session, grant, by=BY).id
            session.commit()
        service.clock[0] = NOW + timedelta(seconds=10)
        assert client.get("/v1/runs/run-first").status_code == 200
        with Session(service.engine) as session:
            role_bindings.unbind(session, id_, by=BY)
            session.commit()
        service.clock[0] += timedelta(seconds=access.REMEMBERED)
        assert client.get("/v1/runs/run-first").status_code == 403
    finally:
        service.clock[0] = NOW


def test_an_engineer_of_a_project_promotes_its_models_alone(held: Places) -> None:
    client = held.library.service.client("bound-engineer")
    first, guarded = held.library.digest("first"), held.library.digest("guarded")

    def register(model: str, attestation: str, version: str = "2.0.0") -> int:
        body = {"version": version, "attestation": attestation}
        return client.post(f"/v1/models/{model}/versions", json=body).status_code

    assert register("first", first) == 201
    assert register("mine", first) == 201
    assert register("mine", guarded, "3.0.0") == 404
    assert register("guarded", first) == 403
    patched = client.patch("/v1/models/first/versions/2.0.0", json={"notes": "mine"})
    assert patched.status_code == 200
    archived = client.post("/v1/models/first/versions/2.0.0:promote", json={"stage": "archived"})
    assert archived.status_code == 200
    hidden = client.post("/v1/models/guarded/versions/1.0.0:promote", json={"stage": "archived"})
    assert hidden.status_code == 404
    viewer = held.library.service.client("viewer")
    body = {"version": "4.0.0", "attestation": first}
    assert viewer.post("/v1/models/first/versions", json=body).status_code == 403


PLACES = [
    ProjectRow(name=name, workspace=space, settings={}, created="", user="")
    for name, space in (("vision", "research"), ("speech", "research"), ("payroll", "finance"))
]
AT = "2026-11-21T12:00:00Z"
BOUND = st.builds(
    PlaceRole,
    role=st.sampled_from(ROLES),
    reach=st.sampled_from(["organisation", "workspace", "project"]),
    place=st.sampled_from(["vision", "research", "finance", "payroll"]),
).map(lambda each: replace(each, place="") if each.reach == "organisation" else each)


@given(st.lists(BOUND, max_size=6), st.sampled_from([None, *PLACES]))
def test_roles_in_a_project_are_those_of_all_around_it(
    bound: list[PlaceRole], project: ProjectRow | None
) -> None:
    def counts(each: PlaceRole) -> bool:
        around = {"organisation": ""}
        if project is not None:
            around |= {"workspace": project.workspace, "project": project.name}
        return around.get(each.reach) == each.place

    caller = Caller(name="x", account="member", bound=tuple(bound))
    assert roles_in(caller, project) == {each.role for each in bound if counts(each)}
    engineer = Caller(name="x", account="engineer", bound=tuple(bound))
    assert roles_in(engineer, project) == roles_in(caller, project) | {"engineer"}


@pytest.mark.parametrize("action", sorted(RIGHTS.keys() - {"account"}))
@pytest.mark.parametrize("scope", SCOPES)
def test_an_action_needs_a_role_and_a_scope(action: str, scope: str) -> None:
    for role in ("viewer", "engineer", "steward", "auditor", "admin"):
        bound = (PlaceRole(role=role, reach="project", place="vision"),)  # type: ignore[arg-type]
        caller = Caller(name="x", account="member", scopes=frozenset({scope}), bound=bound)
        enough = SCOPES.index(scope) >= SCOPES.index(RIGHTS[action].scope)  # type: ignore[index, arg-type]
        allowed = enough and role in RIGHTS[action].place  # type: ignore[index]
        assert may(caller, action, PLACES[0]) == allowed  # type: ignore[arg-type]
        assert not may(caller, action, PLACES[1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "bound", "first"),
    [
        ("engineer", (), "default"),
        ("member", (PlaceRole(role="engineer", reach="project", place="vision"),), "vision"),
        ("member", (PlaceRole(role="engineer", reach="workspace", place="research"),), "text"),
        ("member", (PlaceRole(role="viewer", reach="project", place="vision"),), ""),
    ],
)
def test_a_form_offers_a_project_that_the_caller_may_use(
    tmp_path: Path, role: Role, bound: tuple[PlaceRole, ...], first: str
) -> None:
    made = open_store(f"sqlite:///{tmp_path / 'store.db'}", create=True)
    with Session(made) as session:
        session.add(WorkspaceRow(name="research", description="", created=AT, user=""))
        session.flush()
        for name in ("vision", "text", "old"):
            session.add(
                ProjectRow(
                    name=name, workspace="research", settings={}, created=AT, user="",
                    archived=name == "old",
                )
            )  # fmt: skip
        session.flush()
        caller = Caller(name="x", account=role, scopes=frozenset(SCOPES), bound=bound)
        assert acting.offered(session, caller) == first
    made.dispose()


def allowed(caller: Caller) -> set[tuple[str, str]]:
    """What a caller may do in the whole organisation, and what may be open to it at all."""
    asked = (("everywhere", everywhere), ("somewhere", somewhere))
    return {(action, where) for action in RIGHTS for where, asks in asked if asks(caller, action)}


@given(st.sampled_from(["engineer", "auditor", "supplier", "member"]), st.lists(BOUND, max_size=4))
def test_roles_add_up_and_none_takes_away(account: Role, bound: list[PlaceRole]) -> None:
    alone = Caller(name="x", account=account, supplier="acme" if account == "supplier" else None)
    each = [Caller(name="x", account="member", bound=(one,)) for one in bound]
    together = allowed(replace(alone, bound=tuple(bound)))
    assert together >= set().union(*map(allowed, [alone, *each]))
