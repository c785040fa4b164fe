"""Lineage, corpora and records over HTTP, and that a supplier learns of nobody else's data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

import pytest
from sqlmodel import Session, select

from govray.governance.formats import merkle
from govray.governance.formats.signed_note import verify_checkpoint
from govray.governance.policy.record_commitment import commitment
from govray.governance.verify.trace import sighting
from govray.platform.store.lineage import encode, lineage
from govray.platform.store.store_secret import mask_secret
from govray.platform.store.tables import AuditEntry, RecordCommitment
from tests.support.library import Library, library
from tests.support.shelf_of_models import KEY

STAFF = ("admin", "engineer", "auditor")
ACME, ARCHIVE = "supplier", "other supplier"
OTHERS = ("alpha", "beta", "gamma", "delta", "archive")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("library")) as running:
        yield running


def kept(library: Library) -> list[tuple[str, str, str]]:
    with Session(library.service.engine) as session:
        rows = session.exec(select(AuditEntry)).all()
    return [(row.user, row.action, row.subject) for row in rows]


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


def test_a_layer_group_is_shown_alone(shelf: Library) -> None:
    whole = shelf.get("auditor", "/models/first/versions/1.0.0/layers/head").json()
    assert [[c["group"] for c in row["cells"]] for row in whole["corpora"]] == [["head"]] * 4
    own = shelf.get(ACME, f"/attestations/{shelf.digest('first')}/layers/adapter:acme").json()
    assert own["corpora"][0]["cells"][0]["direct"] is True
    assert shelf.get("auditor", "/models/first/versions/1.0.0/layers/x").status_code == 404
    # The other's adapter is no group.
    path = "/models/first/versions/1.0.0/layers/adapter:acme"
    refused = shelf.get(ARCHIVE, path)
    assert refused.status_code == 404
    assert refused.json() == {
        **shelf.get(ARCHIVE, path.replace("acme", "nobody")).json(),
        "detail": refused.json()["detail"],
    }


def test_what_is_public_is_whole_for_everyone(shelf: Library) -> None:
    staff = shelf.get("admin", "/models/narrow/versions/1.0.0/lineage").content
    for kind in ("public", ACME, ARCHIVE):
        assert shelf.get(kind, "/models/narrow/versions/1.0.0/lineage").content == staff


def test_a_corpus_tells_which_models_layers_and_steps(shelf: Library) -> None:
    answer = shelf.get(ACME, "/corpora/acme").json()
    assert [use["name"] for use in answer["uses"]] == ["world", "world"]
    assert [use["versions"] for use in answer["uses"]] == [
        [{"model": name, "version": "1.0.0"}]
        for name in sorted(("first", "second"), key=lambda n: shelf.digest(n))
    ]
    row = next(r for r in answer["uses"] if r["attestation"] == shelf.digest("first"))
    table = shelf.model("first").coverage
    cells = {layer["group"]: layer for layer in row["layers"]}
    assert cells["adapter:acme"]["tokens"] == str(table["acme", "adapter:acme"].tokens)
    assert (cells["head"]["direct"], cells["head"]["level"]) == (False, 1)
    assert answer["credentials"][0]["license"] == "LicenseRef-acme"


def test_listings_have_only_ones_own(shelf: Library) -> None:
    def names(kind: str) -> list[str]:
        return [item["name"] for item in shelf.get(kind, "/corpora").json()["items"]]

    assert names("admin") == ["acme", "alpha", "beta", "gamma"]
    assert (names(ACME), names(ARCHIVE)) == (["acme"], ["alpha", "beta", "gamma"])
    page = shelf.get("admin", "/corpora?limit=3").json()
    rest = shelf.get("admin", f"/corpora?limit=3&cursor={page['next']}").json()
    assert [i["name"] for i in (*page["items"], *rest["items"])] == names("admin")
    assert shelf.get("public", "/corpora").status_code == 401


def test_what_a_supplier_asks_for_in_vain_is_kept_there_or_not(shelf: Library) -> None:
    """In both cases, so that the one takes as long as the other."""
    before = len(kept(shelf))
    for path in ("/corpora/beta", "/corpora/none", "/ledgers/run-guarded", "/ledgers/none"):
        shelf.get(ACME, path)
    assert [subject for _, _, subject in kept(shelf)[before:]] == [
        "/v1/corpora/beta",
        "/v1/corpora/none",
        "/v1/ledgers/run-guarded",
        "/v1/ledgers/none",
    ]


def test_others_adapters_do_not_show_in_a_corpus(shelf: Library) -> None:
    assert "acme" not in shelf.get(ARCHIVE, "/corpora/beta").text
    assert "adapter:acme" in shelf.get("admin", "/corpora/beta").text  # the control


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


def test_without_a_hit_it_says_not_found_in_the_recorded_data(shelf: Library) -> None:
    answer = shelf.post("engineer", "/records:search", json={"text": "never presented"}).json()
    assert answer["found"] is False
    assert answer["meaning"] == "Not found in the recorded data."
    assert answer["sha256"] == hashlib.sha256(b"never presented").hexdigest()


def test_a_text_and_its_bytes_are_one_record(shelf: Library) -> None:
    text = "acme/0/0"  # what the simulated deployment hashes its records from
    number = 0
    assert hashlib.sha256(text.encode()).hexdigest() == shelf.record("acme", number)
    content = base64.b64encode(text.encode()).decode()
    for body in ({"text": text}, {"content": content}):
        answer = shelf.post(ACME, "/records:search", json=body).json()
        assert {s["corpus"] for s in answer["sightings"]} == {"acme"}
    assert shelf.post(ACME, "/records:search", json={"content": "%"}).status_code == 422
    assert shelf.post(ACME, "/records:search", json={}).status_code == 422
    assert not shelf.post(ACME, "/records:search", json={"text": text + "\n"}).json()["found"]


def test_records_are_found_with_the_stores_secrets_only(shelf: Library) -> None:
    """Without them the answer names the corpora that were not searched, to who may read them."""
    known = shelf.shelf.world.secrets
    hidden = shelf.record("gamma", trained(shelf, "gamma"))
    with Session(shelf.service.engine) as session:
        rows = session.exec(select(RecordCommitment)).all()
        held = {row.credential: row.secret for row in rows}
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
                session.get_one(RecordCommitment, credential).secret = secret
            session.commit()
    answer = shelf.get("auditor", f"/records/{hidden}").json()
    assert (answer["found"], answer["closed"]) == (True, [])
    # The leaf, which anyone reads in a manifest, is no record's hash.
    leaf = shelf.shelf.world.entry("gamma", hidden).hex()
    assert not shelf.get("auditor", f"/records/{leaf}").json()["found"]


def test_nobody_else_can_confirm_a_guess(shelf: Library) -> None:
    """Of another supplier's record, and of one that is nowhere, the answers are the same."""
    for kind, corpus in ((ARCHIVE, "acme"), (ACME, "alpha")):
        hidden = shelf.record(corpus, 0)
        there = shelf.get(kind, f"/records/{hidden}")
        absent = shelf.get(kind, f"/records/{'0' * 64}")
        assert there.status_code == absent.status_code == 200
        assert there.text.replace(hidden, "") == absent.text.replace("0" * 64, "")
    assert shelf.get("public", f"/records/{shelf.record('alpha', 0)}").status_code == 401
