"""`govray model`: register what verifies, list, promote past gates, download what is whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from govray.governance.verify.verifier import verify
from tests.support.command import Run
from tests.support.gates import SHIPPED, signed
from tests.support.people import Service
from tests.support.world import AT, World


@pytest.fixture
def register(run: Run, service: Service, model: Path, root: Path, at: str) -> Any:
    """Register a folder as a version; further words are further options."""

    def register(version: str, *words: object, code: int = 0, folder: Path = model) -> Any:
        named = ["--name", "gpt", "--version", version, "--trust-root", root, "--at", at]
        return run("model", "register", folder, *named, *words, code=code)

    return register


def test_a_folder_becomes_a_version_that_is_promoted_and_downloaded(
    run: Run, register: Any, model: Path, root: Path, at: str, tmp_path: Path, world: World
) -> None:
    words = ["--label", "team=code", "--metric", "loss=2.31", "--notes", "first", "--json"]
    made = register("1.0.0", *words).json
    assert (made["stage"], made["labels"], made["metrics"]) == (
        "none",
        {"team": "code"},
        {"loss": 2.31},
    )
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

    got = run(
        "model", "download", "gpt", "1.0.0", "--out", "copy", "--trust-root", root, "--at", at
    )
    assert made["attestation"] in got.out
    assert (
        run("verify", "copy", "--trust-root", root, "--at", at, "--json").json["attestation"]
        == (made["attestation"])
    )
    names = sorted(p.relative_to(model) for p in model.rglob("*"))
    assert sorted(p.relative_to("copy") for p in Path("copy").rglob("*")) == names
    assert (Path("copy").stat().st_mode & 0o777) == 0o755
    again = run("model", "download", "gpt", "--out", "x", "--trust-root", root, "--at", at, code=2)
    assert "no version is in production" in again.err


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
    (model / "handler.py").write_text("")
    get = ("gpt", "1.0.0", "--out", "copy", "--trust-root", root, "--at", at)
    got = run("model", "download", *get, code=1)
    assert "handler.py" in got.err
    assert not (tmp_path / "copy").exists()


def test_a_download_is_whole_or_not_there(
    run: Run, register: Any, model: Path, root: Path, at: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    register("1.0.0")
    get = ["model", "download", "gpt", "1.0.0", "--trust-root", root, "--at", at, "--out"]
    there = {path.name for path in tmp_path.iterdir()}

    def left() -> set[str]:
        return {path.name for path in tmp_path.iterdir()} - there

    # A disk that fills up half-way.
    done: list[object] = []

    def full(source: Path, target: Path, **_: object) -> None:
        if len(done) == 3:
            raise OSError(28, "No space left on device")
        done.append(Path(target).write_bytes(Path(source).read_bytes()))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        assert "No space left" in run(*get, "copy", code=2).err
    assert left() == set()

    # A copy that came out otherwise.
    def torn(source: Path, target: Path, **_: object) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:-1])

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", torn)
        run(*get, "copy", code=1)
    assert left() == set()

    # Without the verification it would be there: the test can fail.
    whole = verify(model, trust_root=root.read_bytes(), at=AT)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", torn)
        patched.setattr("govray.governance.verify.verifier.verify", lambda *_, **__: whole)
        run(*get, "copy")
    assert left() == {"copy"}
    shutil.rmtree("copy")

    # A name that is taken, and a folder that was damaged.
    assert "already exists" in run(*get, "model", code=2).err
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "already exists" in run(*get, "link", code=2).err
    (tmp_path / "link").unlink()
    (model / "config.json").write_bytes(b"{}")
    assert "step 4" in run(*get, "copy", code=1).err
    assert left() == set()
    shutil.rmtree(model)
    assert "not where it was registered from" in run(*get, "copy", code=3).err
    run(*get[:-1], "--out", "copy", code=3)
    assert left() == set()
