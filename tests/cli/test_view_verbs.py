"""`disclose` and `view`: sign once, show an audience a part, verify it alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from govray.evidence.views.disclosure import DisclosedFacts, weights_of
from govray.evidence.views.view import View
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import seal
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import verify
from tests.support.command import Run, write_key
from tests.support.world import AT, World

Check = tuple[Any, ...]
BUYER = "fields: [run, corpora.credentialClass.licenseCategory, taint]\nnames: [alpha]\n"
SECRET = ("--secret", "disclosure.secret")


@pytest.fixture
def check(root: Path, at: str) -> Check:
    return ("--trust-root", root, "--at", at)


@pytest.fixture
def key(world: World, tmp_path: Path) -> Path:
    return write_key(tmp_path / "operator.pem", world.keys.operator)


@pytest.fixture
def made(run: Run, untouched: Path, check: Check, key: Path, tmp_path: Path) -> Path:
    """A view for a buyer; the disclosure and the secret lie beside it."""
    (tmp_path / "buyer.yaml").write_text(BUYER)
    run("view", "disclose", untouched, "--key", key, *SECRET, *check)
    made = ("--audience", "buyer.yaml", "--out", "buyer.json")
    run("view", "make", untouched, *made, *SECRET, *check)
    return tmp_path / "buyer.json"


def test_a_view_is_made_verified_and_checked(
    run: Run, untouched: Path, made: Path, check: Check, tmp_path: Path
) -> None:
    assert (tmp_path / "disclosure.secret").stat().st_mode & 0o777 == 0o600
    said = run("view", "verify", made, *check)
    assert "VERIFIED view   " in said.out
    assert re.search(r"taint of alpha of block\.0: .*true", said.out)
    assert "acme" not in said.out + made.read_text()
    assert "govray view verify" in run("verify", made, *check, code=2).err
    told = run("view", "verify", made, *check, "--json").json
    assert (told["signer"], told["names"]) == ("operator", ["alpha"])
    assert told["shown"] + told["withheld"] == 256
    assert {"field": "run.id", "value": "run-7f3a"} in told["facts"]
    assert list(told["subjects"]) == ["model.safetensors"]
    said = run("view", "check", made, "--model", untouched, *SECRET, *check)
    assert "all 256 leaves follow from" in said.out


def test_only_the_operator_discloses(
    run: Run, world: World, untouched: Path, check: Check, tmp_path: Path
) -> None:
    for name, signer in (("auditor", world.keys.auditor), ("anyone", LocalSigner.generate())):
        key = write_key(tmp_path / f"{name}.pem", signer)
        run("view", "disclose", untouched, "--key", key, *SECRET, *check, code=1)
    assert not (tmp_path / "disclosure.secret").exists()
    assert not (tmp_path / "disclosure.dsse.json").exists()


def test_a_false_disclosure_is_found_with_the_model_and_the_secret(
    run: Run, world: World, untouched: Path, made: Path, check: Check, tmp_path: Path
) -> None:
    """Its signer is the operator, so the view verifies: it shows what the signer stated."""
    model = verify(untouched, trust_root=TrustAnchor(world.root), at=AT)
    secret = (tmp_path / "disclosure.secret").read_bytes()
    told = model.attestation.model_copy(update={"replays": (), "quarantine": ()})
    facts = DisclosedFacts.of(told, model.digest, secret)
    signed = seal(facts.document, [weights_of(model)], [world.keys.operator])
    fields = ("quarantine", "disclaimer", "assuranceLevel")
    chosen = [i for i, leaf in enumerate(facts.leaves) if leaf.field in fields]
    made.write_bytes(View.make(facts, chosen, signed, ()).encode())
    run("view", "verify", made, *check)
    said = run("view", "check", made, "--model", untouched, *SECRET, *check, code=1).err
    assert "does not commit to what this model's attestation states" in said
    (tmp_path / "other.dsse.json").write_bytes(signed)
    words = ("--audience", "buyer.yaml", "--out", "x.json", "--disclosure", "other.dsse.json")
    run("view", "make", untouched, *words, *SECRET, *check, code=1)
    assert not (tmp_path / "x.json").exists()


def test_what_would_tell_a_name_is_not_written(
    run: Run, untouched: Path, made: Path, check: Check, tmp_path: Path
) -> None:
    words = ("view", "make", untouched, "--out", "x.json", *SECRET, *check)
    for fields, said in (
        ("corpora.credentialClass.license", "would show the withheld name 'acme'"),
        ("attestation", "a guess of a withheld name can be tested"),
        ("corpra", "no field 'corpra'"),
    ):
        (tmp_path / "a.yaml").write_text(f"fields: [{fields}]\n")
        assert said in run(*words, "--audience", "a.yaml", code=2).err
    (tmp_path / "a.yaml").write_text("field: [run]\n")
    assert "a.yaml:1" in run(*words, "--audience", "a.yaml", code=1).err
    assert not (tmp_path / "x.json").exists()
    (tmp_path / "a.yaml").write_text("fields: [attestation]\nnames: ['*']\n")
    run(*words, "--audience", "a.yaml")  # control
