"""`verify`, `trace` and pinning: the right answer with the right exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from govray.cli import main, trust
from govray.governance.formats import merkle
from govray.governance.formats.canonical_json import sha256
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.record.ledger import origin
from tests.support.command import Run, write_key
from tests.support.flipped import flip
from tests.support.gates import signed
from tests.support.world import RUN, World


def test_a_model_verifies_and_the_block_says_what_holds(
    run: Run, untouched: Path, root: Path, at: str
) -> None:
    out = run("verify", untouched, "--trust-root", root, "--at", at).out
    first = out.splitlines()[0]
    assert first.startswith("VERIFIED ")
    assert "4 files, root sha256:" in first
    assert first.endswith("signer operator")
    assert "licences v3, signed by compliance" in out
    assert "acme 1 (exclusion counted), copyleft_limited 1 (exclusion counted)" in out
    assert "a share of 0.25, drawn by preparation" in out
    assert "permissive 1" not in out  # it reaches every layer group of the base
    assert "selfAttested: not shown are" in out
    # Steps, not leaves: three steps have a second one.
    assert "6 steps, run run-7f3a" in out
    assert "norm" not in out.replace("final_norm", "")


def test_revocations_are_checked_if_a_list_is_given(
    run: Run, world: World, untouched: Path, root: Path, at: str, tmp_path: Path
) -> None:
    check = ("verify", untouched, "--trust-root", root, "--at", at)
    assert "revocations not checked" in run(*check).out
    assert run(*check, "--json").json["revocations"] is None
    write_key(tmp_path / "acme.pem", world.keys.acme)
    source = tmp_path / "revoked.yaml"
    text = (
        "schema: govray.dev/revocations/v1\nissuer: acme-legal\nsequence: 1\n"
        "issued: 2026-11-18\nentries: [{corpus: acme, since: 2026-11-15, reason: ended}]\n"
    )
    source.write_text(text)
    run("sign", source, "--key", "acme.pem")
    check = (*check, "--revocations", "revoked.dsse.json")
    assert "acme since 2026-11-15T00:00:00Z (ended), by list 1 of acme-legal" in run(*check).out
    told = run(*check, "--json").json
    assert told["revokedSince"]["acme"]["reason"] == "ended"
    assert told["revocations"][0]["sequence"] == "1"
    source.write_text(text.replace("sequence: 1", "sequence: 2").replace("11-15", "11-09"))
    run("sign", source, "--key", "acme.pem")
    assert "step 13 (revocations)" in run(*check, code=1).err


def test_a_changed_file_is_refused(run: Run, model: Path, root: Path, at: str) -> None:
    name = "model.safetensors"
    flip(model / name)
    done = run("verify", model, "--trust-root", root, "--at", at, code=1)
    assert "step 4 (files)" in done.err
    assert name in done.err
    failed = run("verify", model, "--trust-root", root, "--at", at, "--json", code=1).json
    assert failed["error"]["kind"] == "VerificationFailed"


def test_without_a_root_it_could_not_check(run: Run, untouched: Path) -> None:
    assert "no trust root" in run("verify", untouched, code=3).err
    assert "no trust root" in run("verify", untouched, "--json", code=3).json["error"]["what"]


def test_pinning_keeps_the_root_and_refuses_to_go_back(
    run: Run, untouched: Path, world: World, root: Path, tmp_path: Path, at: str
) -> None:
    run("verify", untouched, "--trust-root", root, "--at", at, "--pin")
    assert (tmp_path / "config" / "govray" / "trust-root.json").read_bytes() == world.root
    run("verify", untouched, "--at", at)

    newer = tmp_path / "newer.json"
    newer.write_bytes(world.sign_root(version=2))
    run("verify", untouched, "--trust-root", newer, "--at", at, "--pin")
    done = run("verify", untouched, "--trust-root", root, "--at", at, "--pin", code=1)
    assert "does not follow the pinned root" in done.err
    # The pin is as it was, and the older root is refused without --pin too.
    run("verify", untouched, "--at", at)
    done = run("verify", untouched, "--trust-root", root, "--at", at, code=1)
    assert "version 1 is older than the trusted version 2" in done.err
    assert "confirms the change" in done.err
    export = ("adapter", "export", untouched, "acme", "--out", "out", "--trust-root", root)
    assert "older than" in run(*export, "--at", at, code=1).err
    # Control: with nothing pinned the older one is a root like any other.
    (tmp_path / "config" / "govray" / "trust-root.json").unlink()
    run("verify", untouched, "--trust-root", root, "--at", at)


def test_a_root_that_was_swapped_after_it_was_verified_is_not_pinned(
    run: Run,
    untouched: Path,
    world: World,
    root: Path,
    tmp_path: Path,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = world.sign_root(version=2)  # sound, and nobody looked at it
    pin = trust.pin

    def swapped(path: Path, *given: Any, **named: Any) -> Path:
        path.write_bytes(newer)
        return pin(path, *given, **named)

    monkeypatch.setattr(trust, "pin", swapped)
    said = run("verify", untouched, "--trust-root", root, "--at", at, "--pin", code=1).err
    assert "nothing was pinned" in said
    assert not (tmp_path / "config" / "govray" / "trust-root.json").exists()


def test_nothing_is_pinned_when_verification_fails(
    run: Run, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    (model / "govray.json").write_text("{}")
    run("verify", model, "--trust-root", root, "--at", at, "--pin", code=1)
    assert not (tmp_path / "config").exists()


def test_single_documents_verify(
    run: Run, world: World, root: Path, tmp_path: Path, at: str
) -> None:
    documents = {
        "policy.dsse.json": (world.policy, "policy licences v3"),
        "gamma.dsse.json": (world.credentials["gamma"], "credential gamma"),
        "gates.dsse.json": (signed(world), "promotion policy promotion v1"),
    }
    for name, (data, said) in documents.items():
        (tmp_path / name).write_bytes(data)
        out = run("verify", name, "--trust-root", root, "--at", at).out
        assert out.startswith(f"VERIFIED {said}")
    (tmp_path / "acme.dsse.json").write_bytes(world.credentials["acme"])
    check = ("verify", "acme.dsse.json", "--trust-root", root, "--at", at)
    run(*check, code=1)
    (tmp_path / "delegation.json").write_bytes(world.delegations[0])
    assert run(*check, "--delegation", "delegation.json", "--json").json["signer"] == "acme-legal"


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_changed_envelope_states_the_same_or_is_refused_without_a_traceback(
    world: World,
    root: Path,
    tmp_path: Path,
    at: str,
    capsys: pytest.CaptureFixture[str],
    data: st.DataObject,
) -> None:
    original = world.policy
    start = data.draw(st.integers(0, len(original) - 1))
    stop = data.draw(st.integers(start, min(start + 8, len(original))))
    changed = original[:start] + data.draw(st.binary(max_size=8)) + original[stop:]
    path = tmp_path / "policy.dsse.json"
    path.write_bytes(changed)
    capsys.readouterr()
    code = main(["verify", str(path), "--trust-root", str(root), "--at", at, "--json"])
    told = json.loads(capsys.readouterr().out)
    if code == 0:
        # Only key hints are not signed; they decide nothing.
        assert told["digest"] == sha256(Envelope.parse(original).payload)
    else:
        # 3: the changed bytes call themselves another kind of document.
        assert code in (1, 3), told


def corpus(run: Run, world: World, tmp_path: Path, name: str = "alpha") -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(5):
        (source / f"{i}.txt").write_text(f"record {i}")
    run(
        *("corpus", "build", source, "--name", name, "--license", "MIT", "--out", "corpora"),
        *("--issuer", "archive", "--jurisdiction", "DE"),
        *("--valid-from", "2026-01-01T00:00:00Z", "--valid-until", "2027-01-01T00:00:00Z"),
    )
    key = write_key(tmp_path / "archive.pem", world.keys.archive)
    run("sign", f"corpora/{name}/credential.yaml", "--key", key)
    return tmp_path / "corpora" / name


def test_a_corpus_verifies_down_to_its_records(
    run: Run, world: World, root: Path, tmp_path: Path, at: str
) -> None:
    folder = corpus(run, world, tmp_path)
    check = ("verify", folder, "--trust-root", root, "--at", at)
    assert "VERIFIED corpus alpha   5 records" in run(*check).out
    (tmp_path / "source" / "0.txt").write_text("another record")
    (tmp_path / "second").mkdir()
    run(
        *("corpus", "build", "source", "--name", "alpha", "--license", "MIT", "--out", "second"),
        *("--issuer", "archive", "--jurisdiction", "DE"),
    )
    records = "records-00000.parquet"
    (folder / records).write_bytes((tmp_path / "second" / "alpha" / records).read_bytes())
    assert "Merkle root" in run(*check, code=1).err


def test_a_head_from_elsewhere_shows_a_fork(
    run: Run, world: World, untouched: Path, root: Path, at: str, tmp_path: Path
) -> None:
    check = ("verify", untouched, "--trust-root", root, "--at", at)
    lines = (untouched / "governance" / "ledger.jsonl").read_bytes().splitlines()
    same, other = tmp_path / "same.checkpoint", tmp_path / "other.checkpoint"
    for file, held in ((same, lines[:4]), (other, [*lines[:3], b"{}"])):
        file.write_bytes(
            sign_checkpoint(origin(RUN), len(held), merkle.root(held), world.keys.operator)
        )
    assert "also" in run(*check, "--also", same).out
    assert run(*check, "--also", same, "--json").json["alsoHeads"][0]["size"] == "4"
    refused = run(*check, "--also", same, "--also", other, code=1)
    assert "other.checkpoint" in refused.err
    assert "fork" in refused.err
    run(*check, "--also", tmp_path / "none", code=2)


def test_what_a_loader_would_load_is_exit_1_unless_it_is_allowed(
    run: Run, model: Path, root: Path, at: str
) -> None:
    check = ("verify", model, "--trust-root", root, "--at", at)
    (model / "README.md").write_text("x")
    out = run(*check).out
    assert "NOT COVERED  README.md: the attestation says nothing about this file" in out
    told = run(*check, "--json").json
    assert (told["uncovered"], told["uncoveredLoadable"]) == (["README.md"], [])
    (model / "modeling_gpt.py").write_text("print()")
    refused = run(*check, code=1).err
    assert "step 4 (files)" in refused
    assert "modeling_gpt.py" in refused
    assert "--allow-uncovered" in refused
    run(*check, "--allow-uncovered", "*.gguf", code=1)
    out = run(*check, "--allow-uncovered", "*.gguf", "--allow-uncovered", "modeling_*.py").out
    assert "VERIFIED" in out
    assert "NOT COVERED  modeling_gpt.py: allowed here, and may be loaded or executed" in out
    told = run(*check, "--allow-uncovered", "*", "--json").json
    assert told["uncovered"] == ["README.md", "modeling_gpt.py"]
    assert told["uncoveredLoadable"] == ["modeling_gpt.py"]
    assert "no glob" in run(*check, "--allow-uncovered", "[a]", code=2).err


@pytest.mark.parametrize("verb", ["trace", "export", "remove"])
def test_every_verb_that_verifies_a_folder_follows_the_same_rule(
    run: Run, model: Path, prepared: Path, root: Path, at: str, world: World, tmp_path: Path,
    verb: str,
) -> None:  # fmt: skip
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "text").write_text("x")
    key = write_key(tmp_path / "operator.pem", world.keys.operator)
    check = ("--trust-root", root, "--at", at)
    command: tuple[str | Path, ...] = {
        "trace": ("trace", "text", "--model", model, "--records", prepared, *check),
        "export": ("adapter", "export", model, "acme", "--out", "copy", *check),
        "remove": ("adapter", "remove", model, "acme", "--key", key, *check),
    }[verb]
    assert "tokenizer.json" in run(*command, code=1).err
    allowed = (*command, "--allow-uncovered", "tokenizer.json")
    assert "tokenizer.json" not in run(*allowed).err
    assert (model / "tokenizer.json").exists()
