"""Rights holders' cases in the store: on both databases, in order, and kept by a rebuild."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.governance.attestation.case_answer import (
    AskedModel,
    CaseFinding,
    CaseSearch,
    CorpusClass,
    CorpusSearch,
    ShownVersion,
)
from govray.platform.store import cases, rebuild
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.cases import NewCase
from govray.platform.store.states import CaseState
from govray.platform.store.tables import AuditEntry, RightsCase
from tests.support.databases import on_both

DIGEST = "sha256:" + "7c" * 32
BY = ChangedBy(user="ada", at="2026-11-25T09:00:00Z")
FINDING = CaseFinding(
    attestation=DIGEST,
    corpus="acme",
    corpus_class=CorpusClass(license_category="commercial", jurisdiction="DE"),
    match="exact",
    split="train",
    steps=(1, 2),
    step_count=2,
)
FOUND = CaseSearch(
    models=(AskedModel(attestation=DIGEST, name="gpt"),),
    searches=(CorpusSearch(match="exact", corpora=1, of=1),),
    findings=(FINDING,),
)


def new(session: Session, content: bytes = b"a work\0\xff") -> tuple[RightsCase, str]:
    return cases.receive(session, NewCase(contact="me@example.org", content=content), by=BY)


@on_both
def test_a_case_goes_its_way(store: Engine) -> None:
    with Session(store) as session:
        row, key = new(session)
        session.commit()
        number = row.id
    with Session(store) as session:
        row = session.get_one(RightsCase, number)
        assert (row.content, row.size, row.state) == (b"a work\0\xff", 8, CaseState.RECEIVED)
        assert cases.of_key(session, number, key) is row
        assert cases.of_key(session, number, key + "x") is None
        assert cases.of_key(session, number, "\ud800") is None
        assert cases.of_key(session, "c-000000000000", key) is None
        cases.searched(session, row, FOUND, by=BY)
        cases.answered(session, row, b"envelope", ["acme"], by=BY)
        cases.decided(session, row, "removed", "It is deleted.", by=BY)
        version = ShownVersion(model="gpt", version="1.1.0", attestation=DIGEST)
        for _ in range(2):  # the same model again takes the place of what was linked
            cases.linked(session, row, version, by=BY)
        cases.closed(session, row, b"envelope 2", by=BY)
        session.commit()
    with Session(store) as session:
        row = session.get_one(RightsCase, number)
        assert (row.state, row.content, row.answer) == (CaseState.CLOSED, None, b"envelope 2")
        assert cases.search_of(row) == FOUND
        outcome = cases.outcome_of(row)
        assert outcome is not None
        assert outcome.versions == (version,)
        told = [each.action for each in session.exec(select(AuditEntry))]
    assert told == [
        f"case.{each}"
        for each in ("receive", "search", "answer", "decide", "link", "link", "close")
    ]


@pytest.mark.parametrize("kept", [True, False])
def test_a_rebuild_keeps_them(store: Engine, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """And without the rule they are lost: no storage knows them."""
    with Session(store) as session:
        new(session)
        session.commit()
    if not kept:
        monkeypatch.setattr(rebuild, "KEPT", rebuild.KEPT - {"rightscase"})
    rebuild.rebuild(store, lambda _: None)
    with Session(store) as session:
        assert len(session.exec(select(RightsCase)).all()) == kept
