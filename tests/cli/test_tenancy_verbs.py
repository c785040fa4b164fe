"""The verbs of workspaces, projects, templates, groups and roles, on a store."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlmodel import Session, select

from govray.platform.store.database import open_store
from govray.platform.store.tables import AuditEntry
from tests.support.command import Run
from tests.support.tree import ROOT


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    return url


@pytest.mark.parametrize(
    ("words", "next_one"),
    [
        (("role", "ls"), "govray role bind --user"),
        (("group", "ls"), "govray group add GROUP USER"),
        (("template", "ls", "default"), "govray template put PROJECT NAME FILE"),
        (("usage",), "govray store index DIR"),
    ],
)
def test_an_empty_listing_says_what_fills_it(
    run: Run, url: str, words: tuple[str, ...], next_one: str
) -> None:
    assert next_one in run(*words, "--store", url).out


def test_an_organisation_is_set_up_by_commands(run: Run, url: str, tmp_path: Path) -> None:
    def said(*words: str) -> Any:
        done = run(*words, "--store", url, "--json")
        return done.json

    said("workspace", "new", "research")
    said("project", "new", "vision", "--workspace", "research")
    said("token", "new", "--user", "ada", "--role", "member")
    said("group", "add", "seers", "ada")
    bound = said("role", "bind", "--group", "seers", "--role", "engineer", "--project", "vision")
    found = said("role", "ls", "--project", "vision")["roles"]
    assert [(each["id"], each["subject"], each["role"]) for each in found] == [
        (bound["id"], "seers", "engineer")
    ]
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_slots: 8\nfixed: {seed: 17}\n")
    assert said("project", "settings", "vision", str(policy))["settings"]["max_slots"] == 8
    assert said("project", "settings", "vision")["settings"]["fixed"] == {"seed": 17}
    shown = run("project", "settings", "vision", "--store", url).out
    assert yaml.safe_load(shown) == {"fixed": {"seed": 17}, "max_slots": 8}
    file = tmp_path / "small.yaml"
    file.write_text("name: gpt\nseed: 1\n")
    said("template", "put", "vision", "small", str(file))
    filled = said("template", "fill", "vision", "small", "--set", "seed=2")
    assert filled["text"] == "name: gpt\nseed: 2\n"
    assert [t["template"] for t in said("template", "ls", "vision")["templates"]] == ["small"]
    said("template", "drop", "vision", "small")
    said("role", "unbind", bound["id"])
    assert said("role", "ls")["roles"] == []
    said("group", "remove", "seers", "ada")
    assert said("group", "ls")["members"] == []
    said("project", "archive", "vision")
    said("workspace", "archive", "research")
    assert {w["workspace"]: w["archived"] for w in said("workspace", "ls")["workspaces"]} == {
        "default": False,
        "research": True,
    }
    assert {p["project"]: p["archived"] for p in said("project", "ls")["projects"]}["vision"]
    assert said("usage", "--by", "workspace") == []
    engine = open_store(url)
    with Session(engine) as session:
        done = [entry.action for entry in session.exec(select(AuditEntry))]
    engine.dispose()
    assert done[:2] == ["workspace.make", "project.make"]
    assert {"role.bind", "role.unbind", "template.put", "template.drop"} <= set(done)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("role", "bind", "--role", "viewer"), "for a user or for a group"),
        (
            ("role", "bind", "--user", "x", "--role", "viewer", "--project", "a", "--model", "b"),
            "one place",
        ),
        (("role", "bind", "--user", "x", "--role", "viewer"), "no such user"),
        (("role", "unbind", "b-0"), "no such binding"),
        (("project", "new", "Vision"), "is no name for a project"),
        (("project", "new", "vision", "--workspace", "none"), "no such workspace"),
        (("project", "settings", "none"), "no such project"),
        (("template", "fill", "default", "none"), "no such template"),
        (("group", "remove", "a", "b"), "is not in it"),
    ],
)
def test_what_is_not_there_is_named(run: Run, url: str, words: tuple[str, ...], told: str) -> None:
    done = run(*words, "--store", url, code=2)
    assert told in done.err


def test_the_default_project_stays(run: Run, url: str) -> None:
    done = run("project", "archive", "default", "--store", url, code=1)
    assert "so it stays" in done.err


def test_the_page_s_commands_run_in_its_order(run: Run, url: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    page = (ROOT / "docs" / "tenancy.md").read_text()
    [policy] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (tmp_path / "policy.yaml").write_text(policy)
    bound = ""
    for line in re.findall(r"^govray (.*)", page, re.M):
        words = shlex.split(line)
        done = run(*(bound if each == "ID" else each for each in words), "--store", url)
        bound = "".join(re.findall(r"\((b-\w+)\)", done.out)) or bound


def test_a_time_may_be_a_date_and_an_error_names_the_option(run: Run, url: str) -> None:
    run("token", "new", "--user", "ada", "--role", "member", "--store", url)
    words = ("role", "bind", "--user", "ada", "--role", "viewer", "--store", url, "--json")
    run(*words, "--until", "2035-06-30")
    [bound] = run("role", "ls", "--user", "ada", "--store", url, "--json").json["roles"]
    assert bound["until"] == "2035-06-30T00:00:00Z"
    for verb, option in (
        (words, "--until"),
        (("usage", "--store", url), "--since"),
        (("verify", "."), "--at"),
    ):
        for wrong in ("2035-6-30", "2035-02-30", "2035-06-30T00:00:00", "June"):
            assert f"{option}: '{wrong}' is not a time" in run(*verb, option, wrong, code=2).err
