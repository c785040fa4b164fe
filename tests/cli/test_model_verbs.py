"""`govray model`: register what verifies, list, promote past gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from tests.support.command import Run
from tests.support.gates import SHIPPED, signed
from tests.support.licensed_versions import register_all
from tests.support.people import Service
from tests.support.world import World


@pytest.fixture
def register(run: Run, service: Service, model: Path, root: Path, at: str) -> Any:
    """Register a folder as a version; further words are further options."""

    def register(version: str, *words: object, code: int = 0, folder: Path = model) -> Any:
        named = ["--name", "gpt", "--version", version, "--trust-root", root, "--at", at]
        return run("model", "register", folder, *named, *words, code=code)

    return register


def test_a_folder_becomes_a_version_that_is_promoted(
    run: Run, register: Any, model: Path, root: Path, at: str, tmp_path: Path, world: World
) -> None:
    words = ["--label", "team=code", "--notes", "first", "--json"]
    made = register("1.0.0", *words).json
    assert (made["stage"], made["labels"]) == ("none", {"team": "code"})
    register("1.1.0")
    gates = tmp_path / "policies" / "promotion.dsse.json"
    gates.parent.mkdir()
    gates.with_name("promotion.yaml").write_text(SHIPPED)
    pinned = tmp_path / "config" / "govray" / "trust-root.json"
    pinned.parent.mkdir(parents=True)
    pinned.write_bytes(root.read_bytes())
    staging = ("gpt", "1.0.0", "--to", "staging")
    refused = " ".join(run("model", "promote", *staging, code=1).err.split())
    assert "govray sign policies/promotion.yaml --key KEY" in refused
    for version in ("1.0.0", "1.1.0"):
        for stage in ("staging", "production"):
            gates.write_bytes(signed(world))
            told = run("model", "promote", "gpt", version, "--to", stage, "--json")
            assert told.json["after"] == stage
            if stage == "staging":  # the shipped gates ask for a monitor, which its run had not
                more = SHIPPED + "    - {gate: replayed, corpora: [acme]}\n"
                gates.write_bytes(signed(world, more))
                production = ("gpt", version, "--to", "production")
                refused = " ".join(run("model", "promote", *production, code=1).err.split())
                assert "nothing was measured" in refused
                assert "govray replay RUN --without acme" in refused
    assert told.json["replaced"] == "1.0.0"
    listed = run("model", "versions", "gpt", "--json").json
    assert [(each["version"], each["stage"]) for each in listed] == [
        ("1.1.0", "production"),
        ("1.0.0", "archived"),
    ]
    assert "1.1.0" in run("model", "versions").out
    assert "production" in run("model", "versions", "gpt").out
    run("model", "promote", "gpt", "1.1.0", "--to", "archived")


def test_versions_are_found_by_what_reached_their_blocks(run: Run, service: Service) -> None:
    with Session(service.engine) as session:
        register_all(session)
    asked = ("--without-license", "copyleft", "--group", "block.*")
    best = run("model", "find", "gpt", "--best", "1", *asked, "--json").json
    assert [each["version"] for each in best] == ["1.1.0"]
    told = run("model", "find", "--at-most", "1.5", *asked).out
    assert "gpt 1.1.0" in told
    assert "loss 1.5" in told
    assert "gpt 1.2.0" not in told, "copyleft reached one block, with a small weight"
    assert "No version is like that" in run("model", "find", "--stage", "production").out
    assert "gama" in run("model", "find", "--without-corpus", "gama", code=2).err


def test_the_registry_takes_no_file_that_a_loader_may_load_and_no_digest_covers(
    run: Run, register: Any, model: Path, root: Path, at: str, tmp_path: Path
) -> None:
    """It hands folders on to others, so there is no exception to allow."""
    (model / "tokenizer.json").write_text("{}")
    refused = register("1.0.0", code=1).err
    assert "tokenizer.json" in refused
    assert not (tmp_path / "govray.db").exists()
    (model / "tokenizer.json").rename(model / "README.md")
    register("1.0.0")
