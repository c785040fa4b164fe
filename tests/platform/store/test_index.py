"""A verified model's rows say what the model says, whole or not at all, in any order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, SQLModel, select

from govray.errors import Damaged
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.policy import record_commitment
from govray.governance.verify.trace import trace
from govray.platform.store import model_index, tables
from tests.support.databases import on_both
from tests.support.shelf_of_models import KEY, Shelf
from tests.support.world import World

DERIVED: tuple[type[SQLModel], ...] = (
    tables.TrustRootRow,
    tables.Delegations,
    tables.PolicyRow,
    tables.CredentialRow,
    tables.Corpus,
    tables.AttestationRow,
    tables.SubjectRow,
    tables.CoverageRow,
    tables.CorpusUseRow,
    tables.Record,
    tables.LedgerRow,
)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def rows_of(engine: Engine) -> dict[str, list[Any]]:
    with Session(engine) as session:
        return {
            table.__name__: sorted(
                (row.model_dump() for row in session.exec(select(table))), key=str
            )
            for table in DERIVED
        }


@on_both
def test_rows_say_what_the_model_says(store: Engine, shelf: Shelf) -> None:
    model = shelf.verified("first")
    with Session(store) as session:
        shelf.index(session, "first")
        session.commit()
    with Session(store) as session:
        row = session.exec(select(tables.AttestationRow)).one()
        assert row.digest == model.digest
        assert row.envelope == (model.path / model_folder.ATTESTATION).read_bytes()
        assert row.envelope_digest == canonical_json.sha256(row.envelope)
        assert (row.public, row.folder) == (False, str(model.path))
        assert json.loads(row.lineage)["attestation"] == model.digest
        for use in session.exec(select(tables.CorpusUseRow)):
            reached = {c.group: c for c in model.attestation.coverage if c.corpus == use.corpus}
            assert {c.tokens for c in reached.values()} == {use.tokens}
        for cell in session.exec(select(tables.CoverageRow)):
            if cell.tokens:
                assert model.coverage[cell.corpus, cell.layer_group].tokens == cell.tokens
        credentials = session.exec(select(tables.CredentialRow)).all()
        assert {c.corpus: c.supplier for c in credentials} == {
            "acme": "acme-legal",
            "alpha": "archive",
            "beta": "archive",
            "gamma": "archive",
        }
        for credential in credentials:
            sealed = shelf.world.credentials[credential.corpus]
            assert credential.envelope == sealed
        assert session.exec(select(tables.TrustRootRow)).one().envelope == shelf.root
        ledger = session.exec(select(tables.LedgerRow)).one()
        assert ledger.checkpoint == (model.path / model_folder.CHECKPOINT).read_bytes()
        assert ledger.size == model.ledger.size


@on_both
def test_records_stand_where_trace_finds_them(store: Engine, shelf: Shelf) -> None:
    model = shelf.verified("second")
    with Session(store) as session:
        shelf.index(session, "second")
        session.commit()
        found = 0
        for prepared in model.manifest.document.corpora:
            for number in range(model.records.count(prepared.corpus)):
                record = model.records.record(prepared.corpus, number)
                sha256 = shelf.sha256(prepared.corpus, number)
                [seen] = trace(model, sha256, shelf.world.secrets)
                place = (record.entry, model.digest, prepared.corpus, number)
                row = session.get_one(tables.Record, place)
                assert (row.split, row.tokens) == (seen.split, seen.tokens)
                assert (row.steps, row.step_count) == (list(seen.steps), len(seen.steps))
                found += 1
        assert len(session.exec(select(tables.Record)).all()) == found


def test_indexing_again_and_in_any_order_gives_the_same_rows(store: Engine, shelf: Shelf) -> None:
    """``guarded`` makes beta confidential: before, between and after the others."""
    with Session(store) as session:
        shelf.index(session)
        session.commit()
        shelf.index(session)
        session.commit()
    expected = rows_of(store)
    assert [row["sensitivity"] for row in expected["Corpus"]].count("confidential") == 2
    for order in itertools.islice(itertools.permutations(shelf.models), 5, None, 6):
        with store.begin() as connection:
            for table in reversed(tables.TABLES.sorted_tables):
                connection.execute(table.delete())
        for name in order:
            with Session(store) as session:
                shelf.index(session, name)
                session.commit()
        assert rows_of(store) == expected


def test_the_tables_confirm_no_guess_at_a_record(store: Engine, shelf: Shelf) -> None:
    """Whatever is in any of them. The control: with the corpus's secret they do."""
    with Session(store) as session:
        shelf.index(session)
        session.commit()
        held = session.exec(select(tables.CredentialRow.secret)).all()
    said = repr(rows_of(store))
    assert len(held) >= 3
    for corpus in ("acme", "beta", "alpha"):
        for part in shelf.world.records[corpus]:
            for sha256, _ in part:
                assert sha256 not in said
                guess = bytes.fromhex(sha256)
                opened = {record_commitment.entry(guess, each).hex() for each in held if each}
                assert not any(each in said for each in opened)
                assert shelf.world.entry(corpus, sha256).hex() in said


@pytest.mark.parametrize(
    "name",
    [
        model_folder.ATTESTATION,
        model_folder.POLICY,
        model_folder.CREDENTIALS,
        model_folder.CHECKPOINT,
    ],
)
def test_a_file_that_changed_since_it_was_verified_is_refused(
    store: Engine, tmp_path: Path, name: str
) -> None:
    world = World()
    model = world.verify(world.deploy(tmp_path / "m"))
    other = World().deploy(tmp_path / "other")
    (model.path / name).write_bytes((other / name).read_bytes())
    with Session(store) as session, pytest.raises(Damaged, match="no longer"):
        model_index.index_model(session, model, trust_root=world.root, key=KEY)
    world.deploy(model.path)
    model = world.verify(model.path)
    with Session(store) as session, pytest.raises(Damaged, match="trust root"):
        model_index.index_model(session, model, trust_root=World().root, key=KEY)
