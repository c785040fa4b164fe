"""The verbs of workspaces, projects, roles and tokens, at a service."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlmodel import Session, select

from govray.platform.store.tables import AuditEntry
from tests.support.command import Run
from tests.support.page_commands import part
from tests.support.people import Service
from tests.support.tree import ROOT


def test_an_organisation_is_set_up_by_commands(run: Run, service: Service, tmp_path: Path) -> None:
    def said(*words: str) -> Any:
        done = run(*words, "--json")
        return done.json

    said("workspace", "new", "research")
    said("project", "new", "vision", "--workspace", "research")
    said("token", "new", "--user", "ada", "--role", "member")
    bound = said("role", "bind", "--group", "seers", "--role", "engineer", "--project", "vision")
    found = said("role", "ls", "--project", "vision")
    assert [(each["id"], each["subject"], each["role"]) for each in found] == [
        (bound["id"], "seers", "engineer")
    ]
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_slots: 8\nfixed: {seed: 17}\n")
    assert said("project", "settings", "vision", str(policy))["settings"]["max_slots"] == 8
    assert said("project", "settings", "vision")["settings"]["fixed"] == {"seed": 17}
    shown = run("project", "settings", "vision").out
    assert yaml.safe_load(shown).items() >= {"fixed": {"seed": 17}, "max_slots": 8}.items()
    said("role", "unbind", bound["id"])
    assert said("role", "ls") == []
    said("project", "archive", "vision")
    said("workspace", "archive", "research")
    assert {w["name"]: w["archived"] for w in said("workspace", "ls")} == {
        "default": False,
        "research": True,
    }
    assert {p["name"]: p["archived"] for p in said("project", "ls")}["vision"]
    assert said("usage", "--by", "workspace") == []
    assert run("usage", "--by", "pool", "--csv").out.startswith("pool,submitted,runs,")
    with Session(service.engine) as session:
        entries = list(session.exec(select(AuditEntry)))
    done = [entry.action for entry in entries]
    assert done[:2] == ["workspace.make", "project.make"]
    assert {entry.user for entry in entries} == {"admin"}
    assert {"role.bind", "role.unbind"} <= set(done)
    logged = said("audit-log", "--user", "admin", "--since", "2020-01-01")
    assert [each["action"] for each in logged] == done[::-1]
    assert said("audit-log", "--action", "role.bind", "--limit", "1") == [
        each for each in logged if each["action"] == "role.bind"
    ]
    assert said("audit-log", "--before", "2020-01-01") == said("audit-log", "--refused") == []
    assert "role.bind" in run("audit-log").out


def test_the_page_s_commands_run_in_its_order(run: Run, service: Service, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    page = part("docs/service.md", "Workspaces and projects")
    page += part("docs/service.md", "A project's config policy") + part("docs/service.md", "Usage")
    [policy] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (tmp_path / "policy.yaml").write_text(policy)
    bound = ""
    for line in re.findall(r"^govray (.*)", page, re.M):
        words = shlex.split(line)
        done = run(*(bound if each == "ID" else each for each in words))
        bound = "".join(re.findall(r"\((b-\w+)\)", done.out)) or bound


def test_without_a_service_or_a_right_it_says_so(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVRAY_TOKEN", service.tokens["engineer"])
    assert "No role of yours" in run("workspace", "new", "research", code=1).err
    monkeypatch.delenv("GOVRAY_SERVER")
    assert "GOVRAY_SERVER: no service is named" in run("role", "ls", code=2).err
