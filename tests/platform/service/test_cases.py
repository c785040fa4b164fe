"""Rights holders' cases over HTTP: asked, searched, answered, decided, shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlmodel import Session, col, select

from govray.governance.attestation.case_answer import LIMITS, CaseAnswer, verify_case_answer
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.text_form import TEXT_FORM
from govray.platform.service.acting import case_answers, case_desk
from govray.platform.service.identity import rights
from govray.platform.service.routes import cases as routes
from govray.platform.store import cases as store
from govray.platform.store import role_bindings
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import AttestationRow, AuditEntry
from tests.support.case_world import MODEL, CaseWorld, case_world, reworded
from tests.support.people import NOW

NOBODY = "c-000000000000"
WRONG = {"Govray-Case-Key": "govc_" + "A" * 43}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseWorld]:
    folder = tmp_path_factory.mktemp("cases")
    with case_world(folder, revocations=(folder / "lists",)) as made:
        (made.lists / "archive.dsse.json").write_bytes(made.deployed.revoke("alpha"))
        yield made


def answered(world: CaseWorld, case: str, key: dict[str, str]) -> CaseAnswer:
    data = world.get("public", f"/{case}/answer", **key).content
    return verify_case_answer(world.deployed.world.trust, data, at=NOW).document


def found(world: CaseWorld, corpus: str, **asked: Any) -> tuple[str, dict[str, str]]:
    """A case about a text of ``corpus`` with changed words, with its answer."""
    text = reworded(world.trained(corpus))
    case, key = world.opened(text=text, **asked)
    world.done(case, ("search", None), ("answer", {}))
    return case, key


def test_changed_words_are_traced_to_layers_and_a_name_is_withheld(world: CaseWorld) -> None:
    case, key = found(world, "acme")
    answer = answered(world, case, key)
    assert answer.found
    assert answer.limits == LIMITS
    (finding,) = answer.result.findings
    assert finding.match == "near"
    assert [each.text_form for each in answer.result.searches] == [None, TEXT_FORM]
    assert 0.5 < (finding.overlap or 0) < 1
    assert (finding.corpus, finding.groups) == (None, ("adapter:*",))
    assert (finding.corpus_class.license_category, finding.split) == ("commercial", "train")
    assert finding.steps
    assert finding.levels == dict.fromkeys(
        ("embedding", "block.0", "block.1", "final_norm", "head"), 1
    )
    assert (
        b"acme" not in Envelope.parse(world.get("public", f"/{case}/answer", **key).content).payload
    )
    assert world.get("auditor", f"/{case}").json()["found"]["findings"][0]["corpus"] == "acme"


def test_what_cannot_be_looked_at_is_said_without_places(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = world.opened(text=reworded(world.trained("beta")))
    desk = world.service.app.state.cases
    monkeypatch.setitem(
        world.service.app.state._state,
        "cases",
        replace(desk, sources=replace(desk.sources, corpora=world.deployed.folder / "nowhere")),
    )
    told = world.done(case, ("search", None))["found"]
    assert told["findings"] == []
    assert told["unchecked"]
    assert str(world.deployed.folder) not in json.dumps(told)
    near = replace(desk, sources=replace(desk.sources, near=None))
    monkeypatch.setitem(world.service.app.state._state, "cases", near)
    told = world.done(case, ("search", None))["found"]
    assert ["No corpora lie at hand" in each["why"] for each in told["unchecked"]] == [True]


def test_a_case_about_no_model_gets_no_signed_not_found(world: CaseWorld) -> None:
    case, _ = world.opened(text=reworded(world.trained("acme")))
    with Session(world.service.engine) as session:
        shown = session.exec(select(AttestationRow).where(col(AttestationRow.public))).all()
        for public in (False, True):  # the control: about a public one it is searched
            for each in shown:
                each.public = public
                session.add(each)
            session.commit()
            answer = world.post("admin", f"/{case}:search", None)
            assert answer.status_code == (200 if public else 409), answer.text
            assert ("nothing to search" in answer.text) is not public
            assert world.row(case).state == ("SEARCHED" if public else "RECEIVED")


def test_only_the_key_shows_a_case_to_who_is_nobody(world: CaseWorld) -> None:
    case, key = found(world, "beta")
    _, others = world.opened(text="something else")
    for path in ("standing", "answer"):
        assert world.get("public", f"/{case}/{path}", **key).status_code == 200
        wrong = [
            world.get("public", f"/{number}/{path}", **given)
            for number, given in ((case, WRONG), (case, others), (case, {}), (NOBODY, key))
        ]
        assert {each.status_code for each in wrong} == {404}
        assert len({each.text.replace(NOBODY, case) for each in wrong}) == 1
        for kind in ("member", "supplier", "engineer"):
            assert world.get(kind, f"/{case}/{path}").status_code == 404
            assert world.get(kind, f"/{case}/{path}", **key).status_code == 200
    told = world.get("public", f"/{case}/standing", **key).json()
    assert (told["case"], told["state"], told["links"]) == (case, "ANSWERED", [])
    assert "contact" not in told
    assert "beta" not in json.dumps(told)


def test_without_the_comparison_any_key_would_do(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = world.opened(text="something")
    monkeypatch.setattr(store.hmac, "compare_digest", lambda *_: True)
    assert world.get("public", f"/{case}/standing", **WRONG).status_code == 200


def test_the_store_has_neither_the_key_nor_a_closed_text(world: CaseWorld) -> None:
    secret = "a very private chapter " * 10
    case, key = world.opened(text=secret)
    done = (("search", None), ("answer", {}))
    assert world.post("admin", f"/{case}:answer", {}).status_code == 409  # nothing was searched for
    world.done(case, *done)
    assert "very private" in world.get("admin", f"/{case}").json()["excerpt"]
    assert world.row(case).content == secret.encode()
    told = world.done(case, ("decide", {"decision": "nothing_found", "reason": "Nothing there."}))
    assert (told["state"], told["excerpt"]) == ("CLOSED", None)
    assert told["sha256"] == world.row(case).sha256
    with Session(world.service.engine) as session:
        connection = session.connection()
        whole = " ".join(
            str(row)
            for table in inspect(connection).get_table_names()
            for row in connection.execute(text(f'SELECT * FROM "{table}"'))
        )
    assert case in whole, "the control: the case is there"
    assert "very private" not in whole
    assert key["Govray-Case-Key"] not in whole
    again = world.post("admin", f"/{case}:search")
    assert (again.status_code, "it is closed" in again.json()["detail"]) == (409, True)


def bind(world: CaseWorld, user: str, role: str, scope: str, place: str) -> None:
    by = ChangedBy(user="admin", at="2026-11-21T09:00:00Z")
    grant = Grant(subject_kind="user", subject=user, role=role, scope=scope, place=place)
    with Session(world.service.engine) as session:
        role_bindings.bind(session, grant, by=by)
        session.commit()


def test_a_role_in_a_project_opens_no_case(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = world.opened(text="one")
    bind(world, "member", "auditor", "project", "default")
    world.service.clock[0] = NOW.replace(minute=10)
    asked = ("", f"/{case}", f"/{case}/standing")
    assert [world.get("member", each).status_code for each in asked] == [403, 403, 404]
    monkeypatch.setitem(rights.RIGHTS, "case", rights.RIGHTS["audit"])  # negative control
    monkeypatch.setattr(rights, "everywhere", lambda *_: True)
    monkeypatch.setattr(routes, "everywhere", lambda *_: True)
    assert [world.get("member", each).status_code for each in asked] == [200, 200, 200]
    world.service.clock[0] = NOW


def test_a_data_steward_decides_and_an_engineer_sees_nothing(world: CaseWorld) -> None:
    case, _ = world.opened(text="few words")
    bind(world, "other-supplier", "steward", "organisation", "")
    world.service.clock[0] = NOW.replace(minute=20)  # what was remembered of the token ends
    told = world.done(
        case,
        ("search", None),
        ("answer", {}),
        ("decide", {"decision": "refused", "reason": "It is two words."}),
        kind="other supplier",
    )
    world.service.clock[0] = NOW
    assert (told["state"], told["decidedBy"]) == ("CLOSED", "other-supplier")
    assert world.get("engineer", f"/{case}").status_code == 403
    assert world.post("auditor", f"/{case}:search").status_code == 403


def test_everything_is_in_the_audit_log_and_nothing_secret(world: CaseWorld) -> None:
    secret = reworded(world.trained("acme"))
    case, key = world.opened(text=secret, contact="somebody@example.org")
    world.get("public", f"/{case}/standing", **WRONG)
    steps = (("search", None), ("answer", {}), ("decide", {"decision": "refused", "reason": "No."}))
    world.done(case, *steps)
    world.get("public", f"/{case}/answer", **key)
    with Session(world.service.engine) as session:
        entries = session.exec(
            select(AuditEntry)
            .where(col(AuditEntry.subject).contains(case))
            .order_by(col(AuditEntry.number))
        ).all()
    assert [(each.user, each.action, each.outcome) for each in entries] == [
        ("public", "case.receive", "done"),
        ("public", "GET /v1/cases/{case}/standing", "refused"),
        ("admin", "case.search", "done"),
        ("admin", "case.answer", "done"),
        ("admin", "case.decide", "done"),
        ("admin", "case.close", "done"),
        ("public", "case.read", "done"),
    ]
    told = " ".join(str(each) for each in entries)
    assert not [word for word in ("somebody", "govc_", secret[:20]) if word in told]


def test_off_there_are_no_cases_and_without_leave_none_without_a_token(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = world.service.app.state.cases
    body = {"contact": "me@example.org", "text": "a"}
    closed = replace(desk, settings=replace(desk.settings, without_token=False))
    monkeypatch.setitem(world.service.app.state._state, "cases", closed)
    assert world.post("public", "", body).status_code == 401
    assert world.post("member", "", body).status_code == 201
    monkeypatch.setitem(world.service.app.state._state, "cases", None)
    for kind in ("admin", "public"):
        assert world.post(kind, "", body).status_code == 404
    assert world.get("admin", "").status_code == 404
    for path in ("/ask", "/cases"):
        assert world.service.client("admin", accept="text/html").get(path).status_code == 404


def test_one_requester_sends_so_many_a_day(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"contact": "me@example.org", "text": "a"}
    desk = world.service.app.state.cases
    few = replace(desk.settings, per_day=2)
    buckets = case_desk.Buckets(2 / 86_400, 2, lambda: 0.0)
    monkeypatch.setitem(
        world.service.app.state._state, "cases", replace(desk, settings=few, requests=buckets)
    )
    for kind in ("public", "member"):
        answers = [world.post(kind, "", body) for _ in range(3)]
        assert [each.status_code for each in answers] == [201, 201, 429]
        assert "2 cases a day" in answers[2].json()["detail"]
        assert int(answers[2].headers["retry-after"]) > 3600


def test_what_strangers_make_the_store_hold_is_bounded(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_OPEN", 0)
    body = {"contact": "me@example.org", "text": "a"}
    assert world.post("public", "", body).status_code == 409
    assert world.post("member", "", body).status_code == 201


def link(world: CaseWorld, case: str, version: str) -> Any:
    return world.post("admin", f"/{case}:link", {"model": MODEL, "version": version})


def none_is_linked(world: CaseWorld, case: str, refusals: dict[str, str]) -> None:
    for version, why in refusals.items():
        answer = link(world, case, version)
        assert (answer.status_code, why in answer.text) == (409, True), answer.text


def test_a_removal_is_linked_and_the_answer_says_so(world: CaseWorld) -> None:
    case, key = found(world, "acme")
    reason = {"decision": "removed", "reason": "The adapter is deleted."}
    assert world.done(case, ("decide", reason))["missing"] == [MODEL]
    refusals = {
        "1.0.0": "this is a version that it was found in",
        "2.0.0": "of another run",
        "2.1.0": "of another run",
    }
    none_is_linked(world, case, refusals)
    told = link(world, case, "1.1.0").json()
    assert (told["state"], told["missing"]) == ("CLOSED", [])
    outcome = answered(world, case, key).outcome
    assert outcome is not None
    assert (outcome.decision, outcome.versions[0].version) == ("removed", "1.1.0")
    standing = world.get("public", f"/{case}/standing", **key).json()
    assert standing["links"][0]["attestation"] == world.deployed.verified("1.1.0").digest


def test_without_the_check_any_version_could_be_linked(
    world: CaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = found(world, "alpha")
    world.done(case, ("decide", {"decision": "revoked", "reason": "It is revoked."}))
    assert link(world, case, "2.0.0").status_code == 409
    monkeypatch.setattr(case_answers, "check_left_out", lambda *_: None)
    assert link(world, case, "2.0.0").status_code == 200
