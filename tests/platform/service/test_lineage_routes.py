"""Lineage, corpora and records over HTTP, and that a supplier learns of nobody else's data."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from sqlmodel import Session, select

from govray.governance.formats import merkle
from govray.governance.formats.signed_note import verify_checkpoint
from govray.governance.policy.record_commitment import commitment
from govray.governance.verify.trace import sighting
from govray.platform.store.lineage import encode, lineage
from govray.platform.store.store_secret import mask_secret
from govray.platform.store.tables import CredentialRow
from tests.support.library import Library, library
from tests.support.shelf_of_models import KEY

STAFF = ("admin", "engineer", "auditor")
ACME, ARCHIVE = "supplier", "other supplier"
OTHERS = ("alpha", "beta", "gamma", "delta", "archive")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("library")) as running:
        yield running


def test_staff_gets_the_bytes_that_were_stored(shelf: Library) -> None:
    expected = encode(lineage(shelf.model("first").attestation, shelf.digest("first"), {}))
    for kind in STAFF:
        for path in (
            "/models/first/versions/1.0.0/lineage",
            f"/attestations/{shelf.digest('first')}/lineage",
            f"/attestations/{shelf.digest('first').removeprefix('sha256:')}/lineage",
        ):
            answer = shelf.get(kind, path)
            assert (answer.status_code, answer.content) == (200, expected)


def test_a_supplier_gets_its_own_rows(shelf: Library) -> None:
    answer = shelf.get(ACME, "/models/first/versions/1.0.0/lineage").json()
    assert [row["corpus"] for row in answer["corpora"]] == ["acme"]
    assert answer["scope"] == "corpora"
    other = shelf.get(ARCHIVE, "/models/first/versions/1.0.0/lineage")
    assert [row["corpus"] for row in other.json()["corpora"]] == ["alpha", "beta", "gamma"]
    assert "acme" not in other.text


def trained(shelf: Library, corpus: str) -> int:
    """A record of the corpus that steps of ``first`` read."""
    model = shelf.model("first")
    records = range(model.records.count(corpus))
    return next(r for r in records if sighting(model, corpus, r).steps)


@pytest.mark.parametrize("corpus", ["acme", "gamma"])
def test_a_record_is_found_with_steps_groups_and_tokens(shelf: Library, corpus: str) -> None:
    number = trained(shelf, corpus)
    told = sighting(shelf.model("first"), corpus, number)
    answer = shelf.get("auditor", f"/records/{shelf.record(corpus, number)}").json()
    seen = next(s for s in answer["sightings"] if s["attestation"] == shelf.digest("first"))
    assert answer["found"]
    assert (seen["corpus"], seen["record"], seen["split"]) == (corpus, str(number), "train")
    assert (seen["steps"], seen["tokens"]) == (list(told.steps), str(told.tokens))
    assert seen["groups"] == list(told.groups)
    assert not seen["planted"]


def test_the_proof_of_a_step_leads_to_the_signed_checkpoint(shelf: Library) -> None:
    number = trained(shelf, "gamma")
    path = f"/records/{shelf.record('gamma', number)}?proofs=16"
    seen = next(
        s
        for s in shelf.get("auditor", path).json()["sightings"]
        if s["attestation"] == shelf.digest("first")
    )
    assert [proof["step"] for proof in seen["proofs"]] == seen["steps"]
    operator = shelf.shelf.world.keys.operator.public_key
    for proof in seen["proofs"]:
        note = verify_checkpoint(proof["checkpoint"].encode(), operator)
        leaf = merkle.leaf_hash(proof["leaf"].encode())
        assert base64.b64encode(leaf).decode() == proof["leafHash"]
        assert '"gamma"' in proof["leaf"]
        merkle.verify_inclusion(
            leaf,
            int(proof["index"]),
            note.size,
            [base64.b64decode(each) for each in proof["path"]],
            note.root,
        )


def test_a_supplier_gets_the_proof_but_not_the_leaf(shelf: Library) -> None:
    path = f"/records/{shelf.record('acme', trained(shelf, 'acme'))}?proofs=16"
    answer = shelf.get(ACME, path)
    proofs = [p for s in answer.json()["sightings"] for p in s["proofs"]]
    assert proofs
    assert {p["leaf"] for p in proofs} == {None}
    assert not [name for name in OTHERS if name in answer.text]
    # The control: staff's leaves name the others.
    assert [name for name in OTHERS if name in shelf.get("admin", path).text]


def test_records_are_found_with_the_stores_secrets_only(shelf: Library) -> None:
    """Without them the answer names the corpora that were not searched, to who may read them."""
    known = shelf.shelf.world.secrets
    hidden = shelf.record("gamma", trained(shelf, "gamma"))
    with Session(shelf.service.engine) as session:
        rows = session.exec(select(CredentialRow)).all()
        held = {row.digest: row.secret for row in rows}
        # Masked: the tables alone open nothing.
        assert {row.commitment for row in rows} == {commitment(each) for each in known.values()}
        assert not {row.secret for row in rows} & set(known.values())
        opened = {mask_secret(row.secret or b"", row.commitment, KEY) for row in rows}
        assert opened == set(known.values())
        for row in rows:
            row.secret = None
        session.commit()
    try:
        for kind, closed in (
            ("auditor", ["acme", "alpha", "beta", "gamma"]),
            (ACME, ["acme"]),
            (ARCHIVE, ["alpha", "beta", "gamma"]),
        ):
            answer = shelf.get(kind, f"/records/{hidden}").json()
            assert (answer["found"], answer["closed"]) == (False, closed)
    finally:
        with Session(shelf.service.engine) as session:
            for credential, secret in held.items():
                session.get_one(CredentialRow, credential).secret = secret
            session.commit()
    answer = shelf.get("auditor", f"/records/{hidden}").json()
    assert (answer["found"], answer["closed"]) == (True, [])
    # The leaf, which anyone reads in a manifest, is no record's hash.
    leaf = shelf.shelf.world.entry("gamma", hidden).hex()
    assert not shelf.get("auditor", f"/records/{leaf}").json()["found"]
