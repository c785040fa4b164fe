"""Workspaces, projects, roles, config policies and tokens, as used over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from httpx import Response
from sqlmodel import Session, select

from govray.governance.formats.document import format_time
from govray.platform.service.acting import project_rules
from govray.platform.service.identity import tokens
from govray.platform.service.routes import role_bindings as routes
from govray.platform.service.routes import tokens as token_routes
from govray.platform.store import pools, role_bindings
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import AuditEntry, PoolRow, QueueEntry, Token
from tests.support.happened import submission
from tests.support.people import NOW, Service, serve

FILE = """\
name: gpt
entrypoint: govray.engine.gpt:GPT
hyperparameters: {blocks: 4, width: 128, context: 256}
data: {corpora: data/corpora, rows_per_step: {everything: 16}}
governance: {policy: policies/licences.dsse.json, trust_root: policies/root.json}
resources: {num_workers: 2}
optimizer: {name: adamw, lr: 1.0e-3}
max_steps: 300
storage_path: runs
attestation_key: env:GOVRAY_KEY
"""
UNTIL = format_time(NOW + timedelta(days=30))


@pytest.fixture
def org(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with workspace research, projects vision and speech, and members."""
    url = f"sqlite:///{tmp_path_factory.mktemp('org') / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url) as running:
        admin = running.client("admin")
        assert admin.post("/v1/workspaces", json={"name": "research"}).status_code == 201
        for name in ("vision", "speech"):
            body = {"name": name, "workspace": "research"}
            assert admin.post("/v1/projects", json=body).status_code == 201
        for name in ("eve", "max", "lea"):
            body = {"user": name, "role": "member", "scopes": ["admin"]}
            running.tokens[name] = admin.post("/v1/tokens", json=body).json()["token"]
        yield running


def bind(org: Service, who: str, user: str, role: str, place: str, **more: Any) -> Response:
    scope = more.pop("scope", "project")
    body = {"user": user, "role": role, "scope": scope, "place": place, **more}
    answer: Response = org.client(who).post("/v1/role-bindings", json=body)
    # What is remembered of a token for two seconds would not have the role.
    org.clock[0] += timedelta(seconds=3)
    return answer


def submit(org: Service, who: str, **more: Any) -> Response:
    body = {"file": FILE, "project": "vision", **more}
    answer: Response = org.client(who).post("/v1/experiments", json=body)
    return answer


def settings(org: Service, **policy: Any) -> None:
    answer = org.client("admin").put("/v1/projects/vision/settings", json=policy)
    assert answer.status_code == 200, answer.text


def test_roles_are_given_by_admins_of_the_place_alone(org: Service) -> None:
    assert bind(org, "eve", "eve", "admin", "vision").status_code == 404
    assert bind(org, "admin", "eve", "admin", "vision").status_code == 201
    assert bind(org, "eve", "max", "engineer", "vision").status_code == 201
    assert bind(org, "eve", "max", "engineer", "speech").status_code == 404
    assert bind(org, "eve", "max", "engineer", "research", scope="workspace").status_code == 403
    assert bind(org, "eve", "eve", "admin", "", scope="organisation").status_code == 403
    assert bind(org, "max", "lea", "viewer", "vision").status_code == 403
    assert bind(org, "engineer", "max", "viewer", "vision").status_code == 403
    told = org.client("eve").get("/v1/role-bindings?scope=project&place=vision").json()["items"]
    assert {(each["subject"], each["role"]) for each in told} == {
        ("eve", "admin"),
        ("max", "engineer"),
    }
    assert org.client("lea").get("/v1/role-bindings").json()["items"] == []
    mine = next(each["id"] for each in told if each["subject"] == "max")
    assert org.client("lea").delete(f"/v1/role-bindings/{mine}").status_code == 404
    assert org.client("max").delete(f"/v1/role-bindings/{mine}").status_code == 403
    assert org.client("eve").delete(f"/v1/role-bindings/{mine}").status_code == 204


def test_without_the_check_of_the_place_anyone_gives_roles(
    org: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "demand_manage", lambda *_, **__: None)
    assert bind(org, "lea", "lea", "admin", "", scope="organisation").status_code == 201


def test_the_project_of_a_file_needs_the_right_that_the_option_needs(org: Service) -> None:
    bind(org, "admin", "max", "engineer", "vision")

    def sent(file: str, **asked: Any) -> tuple[int, str | None]:
        answer = org.client("max").post("/v1/experiments", json={"file": file, **asked})
        return answer.status_code, answer.json().get("project")

    for name, status in (("vision", 201), ("speech", 404), ("default", 404)):
        due = (status, name if status == 201 else None)
        assert sent(f"{FILE}project: {name}\n") == sent(FILE, project=name) == due
    # The option comes before the file, in either direction.
    assert sent(f"{FILE}project: speech\n", project="vision") == (201, "vision")
    assert sent(f"{FILE}project: vision\n", project="speech") == (404, None)


def test_nobody_gives_what_lasts_longer_than_the_own(org: Service) -> None:
    assert bind(org, "admin", "eve", "admin", "vision", until=UNTIL).status_code == 201
    for until in (None, format_time(NOW + timedelta(days=31))):
        assert bind(org, "eve", "max", "viewer", "vision", until=until).status_code == 409
    assert bind(org, "eve", "max", "viewer", "vision", until=UNTIL).status_code == 201
    # Nor by a role in the whole organisation that is itself lent.
    assert bind(org, "admin", "lea", "admin", "", scope="organisation", until=UNTIL).is_success
    assert bind(org, "lea", "max", "admin", "", scope="organisation").status_code == 409
    assert bind(org, "lea", "max", "viewer", "speech", until=UNTIL).status_code == 201


def test_the_last_admin_stays(org: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = org.client("admin")
    assert admin.patch("/v1/users/admin", json={"disabled": True}).status_code == 409
    made = bind(org, "admin", "eve", "admin", "", scope="organisation").json()["id"]
    assert admin.patch("/v1/users/admin", json={"disabled": True}).status_code == 200
    eve = org.client("eve")
    org.clock[0] += timedelta(seconds=3)
    assert admin.get("/v1/users").status_code == 401
    assert eve.delete(f"/v1/role-bindings/{made}").status_code == 409
    ending = bind(org, "eve", "eve", "admin", "", scope="organisation", until=UNTIL)
    assert ending.status_code == 409
    assert eve.patch("/v1/users/eve", json={"disabled": True}).status_code == 409
    monkeypatch.setattr(role_bindings, "has_admin", lambda _: True)  # negative control
    assert eve.delete(f"/v1/role-bindings/{made}").status_code == 204


def test_projects_are_made_by_admins_of_the_workspace_and_archived(org: Service) -> None:
    assert bind(org, "admin", "eve", "admin", "research", scope="workspace").status_code == 201
    eve, admin = org.client("eve"), org.client("admin")
    body = {"name": "sound", "workspace": "research"}
    assert eve.post("/v1/projects", json=body).json()["roles"] == ["admin"]
    assert eve.post("/v1/projects", json=body).status_code == 409
    assert eve.post("/v1/projects", json=body | {"name": "No"}).status_code == 422
    default = body | {"name": "x", "workspace": "default"}
    assert eve.post("/v1/projects", json=default).status_code == 404
    assert eve.post("/v1/workspaces", json={"name": "mine"}).status_code == 403
    archived = {"archived": True}
    assert eve.patch("/v1/workspaces/research", json=archived).status_code == 409
    assert eve.patch("/v1/projects/sound", json=archived).json()["archived"] is True
    assert submit(org, "eve", project="sound").status_code == 409
    for place in ("workspaces/default", "projects/default"):
        assert admin.patch(f"/v1/{place}", json=archived).status_code == 409
    with Session(org.engine) as session:
        entries = session.exec(select(AuditEntry).where(AuditEntry.user == "eve")).all()
        done = [(each.action, each.subject) for each in entries if each.outcome == "done"]
    assert done[:2] == [("project.make", "project sound"), ("project.change", "project sound")]


def test_the_runs_of_a_name_are_not_taken_by_making_a_project_of_it(org: Service) -> None:
    assert bind(org, "admin", "eve", "admin", "research", scope="workspace").status_code == 201
    with Session(org.engine) as session:
        row = session.exec(select(QueueEntry)).first()
        assert row is None
        submission(session, "s-old", ExperimentState.QUEUED, project="secret")
        session.commit()
    body = {"name": "secret", "workspace": "research"}
    assert org.client("eve").post("/v1/projects", json=body).status_code == 409
    assert org.client("admin").post("/v1/projects", json=body).status_code == 201


def test_who_submits_has_a_role_in_the_project(org: Service) -> None:
    assert submit(org, "eve").status_code == 403
    assert bind(org, "admin", "max", "viewer", "vision").status_code == 201
    assert submit(org, "max").status_code == 403
    assert bind(org, "admin", "eve", "engineer", "vision").status_code == 201
    made = submit(org, "eve")
    assert made.status_code == 201, made.text
    assert submit(org, "eve", project="speech").status_code == 404
    assert submit(org, "engineer", project="typo").status_code == 404
    id_ = made.json()["id"]
    assert bind(org, "admin", "lea", "engineer", "vision").status_code == 201
    assert org.client("lea").get(f"/v1/experiments/{id_}").status_code == 200
    assert org.client("lea").post(f"/v1/experiments/{id_}:stop").status_code == 403
    assert org.client("max").post(f"/v1/experiments/{id_}:stop").status_code == 403
    assert bind(org, "admin", "lea", "admin", "vision").status_code == 201
    assert org.client("lea").post(f"/v1/experiments/{id_}:stop").status_code == 200
    usage = org.client("eve").get("/v1/usage?by=user").json()["items"]
    assert [(each["name"], each["submitted"]) for each in usage] == [("eve", 1)]


def test_without_the_rules_of_a_project_its_limits_do_not_hold(
    org: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(org, max_slots_per_experiment=1)
    assert submit(org, "engineer").status_code == 409
    monkeypatch.setattr(project_rules, "settings_of", lambda _: project_rules.ProjectSettings())
    assert submit(org, "engineer").status_code == 201


def test_a_config_policy_limits_and_adds_to_what_is_submitted(org: Service) -> None:
    settings(
        org,
        pools=["cpu", "gpu"],
        default_pool="cpu",
        default_priority=1,
        max_priority=5,
        max_slots_per_experiment=4,
        defaults={"seed": 7, "optimizer": {"weight_decay": 0.5}},
        fixed={"governance": {"trust_root": "policies/root.json"}},
    )
    made = submit(org, "engineer").json()
    assert (made["pool"], made["priority"], made["slots"]) == ("cpu", 1, 2)
    assert "seed: 7" in made["file"]
    assert "weight_decay: 0.5" in made["file"]
    assert "lr: 0.001" in made["file"]
    checked = org.client("engineer").post(
        "/v1/experiments:check", json={"file": FILE, "project": "vision"}
    )
    assert checked.json()["pool"] == "cpu"
    for more, told in (
        ({"pool": "big"}, "not among cpu, gpu"),
        ({"priority": 6}, "above 5"),
        ({"set": ["resources.num_workers=5"]}, "more than 4"),
        ({"set": ["governance.trust_root=mine.json"]}, "governance.trust_root is fixed"),
        ({"set": ["+resources.num_workers=5"], "pool": "big"}, "more than 4"),
    ):
        answer = submit(org, "engineer", **more)
        assert (answer.status_code, told in answer.text) == (409, True), answer.text
    settings(org, depth_policies=["licences"])
    assert "depth policy is not known" in submit(org, "engineer").text
    # Defaults that ask for more than the limit are found, too.
    settings(org, max_slots_per_experiment=1)
    assert submit(org, "engineer").status_code == 409


def test_tokens_are_made_shown_once_and_revoked(org: Service) -> None:
    eve, admin = org.client("eve"), org.client("admin")
    made = eve.post("/v1/tokens", json={"name": "laptop", "scopes": ["write"]}).json()
    secret = made["token"]
    assert secret.split("_", 2)[2] not in eve.get("/v1/tokens").text
    with Session(org.engine) as session:
        assert secret.split("_", 2)[2] not in " ".join(
            each.model_dump_json()
            for table in (Token, AuditEntry)
            for each in session.exec(select(table)).all()
        )
    mine = {each["user"] for each in eve.get("/v1/tokens").json()["items"]}
    assert mine == {"eve"}
    assert len(admin.get("/v1/tokens").json()["items"]) > 5
    org.tokens["laptop"] = secret
    laptop = org.client("laptop")
    assert laptop.get("/v1/projects").status_code == 200
    assert laptop.post("/v1/tokens", json={"scopes": ["admin"]}).status_code == 403
    assert org.client("max").post(f"/v1/tokens/{made['id']}:revoke").status_code == 404
    assert eve.post(f"/v1/tokens/{made['id']}:revoke").json()["revoked"]
    org.clock[0] += timedelta(seconds=3)
    assert laptop.get("/v1/projects").status_code == 401
    assert eve.post("/v1/tokens", json={"user": "max"}).status_code == 403
    assert eve.post("/v1/tokens", json={"role": "admin"}).status_code == 403
    with Session(org.engine) as session:
        reading = tokens.new(session, "eve", role=None, scopes=["read"], at=NOW)
        session.commit()
    org.tokens["reading"] = reading
    assert org.client("reading").post("/v1/tokens", json={}).status_code == 403


TASK = {"name": "look", "config": "kind: notebook\n", "project": "vision"}


def test_a_member_sees_all_pools_and_of_what_is_in_them_its_own(org: Service) -> None:
    bind(org, "admin", "eve", "engineer", "vision")
    bind(org, "admin", "lea", "viewer", "speech")
    with Session(org.engine) as session:
        pools.state(session, [PoolRow(name="gpu", slots=4, labels={"pool": "gpu"}, folder=True)])
        session.commit()
    answer = org.client("eve").get("/v1/pools").json()["items"]
    assert answer == [{"name": "gpu", "slots": 4, "labels": {"pool": "gpu"}, "folder": True}]
    body = {**TASK, "pool": "gpu"}
    assert org.client("engineer").post("/v1/tasks", json=body).is_success
    assert org.client("eve").post("/v1/tasks", json={**body, "pool": "cpu"}).status_code == 409
    for who, waits in (("eve", 1), ("lea", 0)):
        page = org.client(who).get("/queue", headers={"accept": "text/html"}).text
        [row] = re.findall(r'<tr><th scope="row">gpu</th>(.*?)</tr>', page)
        assert re.findall(r">(\d+)<", row) == ["4", "0", "0", str(waits), str(waits)], who


def _gives_what_lasts(org: Service) -> list[int]:
    """What lea is answered, who is admin for thirty days, to what would last longer than that."""
    assert bind(org, "admin", "lea", "admin", "", scope="organisation", until=UNTIL).is_success
    lea = org.client("lea")
    return [
        lea.post("/v1/tokens", json={"user": "admin", "scopes": ["admin"]}).status_code,
        lea.post("/v1/tokens", json={"user": "new", "role": "admin", "days": 1}).status_code,
    ]


def test_a_lent_admin_makes_no_token_that_outlives_the_role(org: Service) -> None:
    assert _gives_what_lasts(org) == [409, 409]
    lea = org.client("lea")
    assert lea.post("/v1/tokens", json={"user": "max", "days": 20}).status_code == 201


def test_without_the_check_a_lent_admin_stays_for_ever(
    org: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_routes, "check_lent", lambda *_: None)
    assert _gives_what_lasts(org) == [201, 201]


def test_nothing_goes_back_into_the_queue_of_an_archived_project(org: Service) -> None:
    engineer, admin = org.client("engineer"), org.client("admin")
    path = f"/v1/experiments/{submit(org, 'engineer').json()['id']}"
    assert engineer.post(f"{path}:stop").is_success
    for archived, status in ((True, 409), (False, 200)):  # the second is the control
        body = {"archived": archived}
        assert admin.patch("/v1/projects/vision", json=body).is_success
        assert engineer.post(f"{path}:resume").status_code == status
