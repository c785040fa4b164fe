"""Attestations, ledgers, policies, trust roots: exact bytes, proofs that verify, whole or not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from govray.cli.app import app as command
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import verify_checkpoint
from govray.governance.formats.statement import read
from govray.governance.policy.depth_policy import Policy
from govray.governance.verify.trace import sighting
from govray.governance.verify.verifier import verify
from tests.support.library import Library, library

SUPPLIER = "supplier"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("library")) as running:
        yield running


def test_an_attestation_is_byte_for_byte_the_file_and_verifies(
    shelf: Library, tmp_path: Path
) -> None:
    fetched = shelf.get("auditor", f"/attestations/{shelf.digest('first')}")
    assert fetched.content == shelf.envelope("first")
    # In a folder of which nothing else came from the service, `govray verify` accepts it.
    folder = tmp_path / "model"
    folder.mkdir()
    for path in shelf.shelf.models["first"].rglob("*"):
        if path.is_file() and path.name != Path(model_folder.ATTESTATION).name:
            target = folder / path.relative_to(shelf.shelf.models["first"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (folder / model_folder.ATTESTATION).write_bytes(fetched.content)
    root = tmp_path / "root.json"
    root.write_bytes(shelf.shelf.root)
    done = CliRunner().invoke(
        command,
        ["verify", str(folder), "--trust-root", str(root), "--at", "2026-11-20T00:00:00Z"],
    )
    assert done.exit_code == 0, done.output
    assert verify(folder, trust_root=shelf.shelf.root).digest == shelf.digest("first")


def test_a_304_needs_the_right_to_read(shelf: Library) -> None:
    tag = f'"{canonical_json.sha256(shelf.envelope("first"))}"'
    path = f"/attestations/{shelf.digest('first')}"
    assert shelf.get("public", path, **{"If-None-Match": tag}).status_code == 404
    listed = [
        f"/{kind}/{shelf.get('auditor', f'/{kind}').json()['items'][0]['digest']}"
        for kind in ("policies", "trust-roots")
    ]
    size = shelf.get("auditor", "/ledgers/run-first").json()["size"]
    for each in (path, *listed, f"/ledgers/run-first/tile/0/000.p/{size}"):
        tag = shelf.get("auditor", each).headers["etag"]
        answer = shelf.get("auditor", each, **{"If-None-Match": f'"x", W/{tag}'})
        assert (answer.status_code, answer.content) == (304, b"")


def test_the_listing_tells_a_supplier_name_and_digest_only(shelf: Library) -> None:
    items = shelf.get(SUPPLIER, "/attestations").json()["items"]
    dated = [each["digest"] for each in shelf.get("admin", "/attestations").json()["items"]]
    old, new = "?before=2000-01-01T00:00:00Z", "?since=2000-01-01T00:00:00Z"
    assert shelf.get("admin", f"/attestations{old}").json()["items"] == []
    found = shelf.get("admin", f"/attestations{new}").json()["items"]
    assert [each["digest"] for each in found] == dated
    # When a run began is told of what a supplier reads whole, and of no other.
    found = shelf.get(SUPPLIER, f"/attestations{new}").json()["items"]
    assert found == [each for each in items if each["public"]]
    found = {item["digest"]: item for item in items}
    assert set(found) == {shelf.digest(name) for name in ("first", "second", "narrow")}
    known = {key for key, value in found[shelf.digest("first")].items() if value is not None}
    assert known == {"digest", "name", "public"}
    assert len(shelf.get("admin", "/attestations").json()["items"]) == 4
    public = shelf.get("public", "/attestations").json()["items"]
    assert [item["run"] for item in public] == ["run-narrow"]


def uploaded(shelf: Library, kind: str, data: bytes):  # type: ignore[no-untyped-def]
    answer = shelf.post(
        kind,
        "/attestations:verify",
        content=data,
        headers={"Content-Type": "application/vnd.dsse.envelope.v1+json"},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_envelope_shows_five_steps_of_seventeen(shelf: Library) -> None:
    told = uploaded(shelf, "auditor", shelf.envelope("first"))
    assert told["outcome"] == "partlyChecked"
    assert [s["number"] for s in told["steps"]] == list(range(1, 18))
    assert [s["number"] for s in told["steps"] if s["status"] == "passed"] == [1, 2, 3, 12, 17]
    assert {s["status"] for s in told["steps"]} == {"passed", "notChecked"}
    assert (told["attestation"], told["indexed"]) == (shelf.digest("first"), True)
    assert "VERIFIED" not in json.dumps(told)


def test_a_changed_envelope_fails_with_its_step(shelf: Library) -> None:
    envelope = Envelope.parse(shelf.envelope("first"))
    payload = envelope.payload.replace(b'"name":"world"', b'"name":"other"')
    changed = Envelope(envelope.payload_type, payload, envelope.signatures).encode()
    told = uploaded(shelf, "admin", changed)
    assert (told["outcome"], told["attestation"], told["indexed"]) == ("failed", None, False)
    assert [(s["number"], s["status"]) for s in told["steps"][:3]] == [
        (1, "passed"),
        (2, "failed"),
        (3, "notChecked"),
    ]
    stranger = envelope.cosign([LocalSigner.generate()])
    assert uploaded(shelf, "admin", stranger)["outcome"] == "failed"
    for junk in (b"{}", b"\xff", b'{"payload":1}'):
        assert uploaded(shelf, "admin", junk)["outcome"] == "failed"


def test_proofs_and_checkpoint_verify_with_the_operators_key(shelf: Library) -> None:
    operator = shelf.shelf.world.keys.operator.public_key
    ledger = shelf.model("first").ledger
    head = shelf.get(SUPPLIER, "/ledgers/run-first").json()
    note = verify_checkpoint(shelf.get(SUPPLIER, "/ledgers/run-first/checkpoint").content, operator)
    assert (note.origin, note.size, note.root) == (ledger.origin, ledger.size, ledger.root)
    assert (head["size"], head["tiles"]) == (str(ledger.size), True)
    for index, leaf in enumerate(ledger.leaves):
        for size in (index + 1, ledger.size):
            proof = shelf.get(
                SUPPLIER, f"/ledgers/run-first/proofs/inclusion?index={index}&size={size}"
            ).json()
            path = [base64.b64decode(each) for each in proof["path"]]
            root = merkle.root([each.line for each in ledger.leaves[:size]])
            merkle.verify_inclusion(merkle.leaf_hash(leaf.line), index, size, path, root)
    proof = shelf.get("admin", "/ledgers/run-first/proofs/consistency?first=3").json()
    merkle.verify_consistency(
        3,
        base64.b64decode(proof["firstRoot"]),
        note.size,
        note.root,
        [base64.b64decode(each) for each in proof["path"]],
    )


@pytest.mark.parametrize(
    "path", ["0/001", "0/000", "0/0", "../../../store.db", "entries/..%2f..%2f..%2fstore.db"]
)
def test_nothing_but_tiles_is_read(shelf: Library, path: str) -> None:
    assert shelf.get("admin", f"/ledgers/run-first/tile/{path}").status_code == 404


def test_entries_are_for_staff(shelf: Library) -> None:
    line = shelf.model("first").ledger.leaves[1].line
    assert shelf.get("auditor", "/ledgers/run-first/entries/1").content == line
    size = shelf.model("first").ledger.size
    for path in ("entries/1", f"tile/entries/000.p/{size}"):
        assert shelf.get(SUPPLIER, f"/ledgers/run-first/{path}").status_code == 403
        assert shelf.get("public", f"/ledgers/run-narrow/{path}").status_code == 403
        # Of a ledger that is nobody's business here, not even that there are entries.
        assert shelf.get(SUPPLIER, f"/ledgers/run-guarded/{path}").status_code == 404


def test_damaged_tiles_give_no_proof(shelf: Library) -> None:
    size = shelf.model("second").ledger.size
    path = shelf.tiles / "second" / f"tile/0/000.p/{size}"
    whole = path.read_bytes()
    model = shelf.model("second")
    records = range(model.records.count("gamma"))
    number = next(r for r in records if sighting(model, "gamma", r).steps)
    trained = shelf.record("gamma", number)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        proof = shelf.get("admin", "/ledgers/run-second/proofs/inclusion?index=0")
        assert proof.status_code == 500
        answer = shelf.get("admin", f"/records/{trained}").json()
        second = [s for s in answer["sightings"] if s["attestation"] == shelf.digest("second")]
        assert second
        assert {(len(s["proofs"]), s["noProof"]) for s in second if s["steps"]} == {
            (0, "The tiles on storage do not lead to the signed checkpoint.")
        }
        path.unlink()
        proof = shelf.get("admin", "/ledgers/run-second/proofs/inclusion?index=0")
        assert (proof.status_code, proof.json()["title"]) == (422, "Could not check")
    finally:
        path.write_bytes(whole)


def test_policies_and_roots_are_exact_and_public_where_an_attestation_is(shelf: Library) -> None:
    policy = shelf.model("first").policy.digest
    fetched = shelf.get("public", f"/policies/{policy}")
    assert fetched.content == shelf.shelf.world.policy
    assert read(Policy, Envelope.parse(fetched.content)).digest == policy
    root = shelf.model("first").trust_root.digest
    assert shelf.get("public", f"/trust-roots/{root}").content == shelf.shelf.root
    assert shelf.get("public", "/policies").json()["items"][0]["name"] == "licences"
    assert shelf.get("public", "/trust-roots").json()["items"][0]["digest"] == root
    assert shelf.get("public", f"/policies/{'0' * 64}").status_code == 404
