"""The registry on SQLite and PostgreSQL: versions, stages, gates before them, who did what."""

from __future__ import annotations

import threading

import pytest
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.errors import Refused, UsageError
from govray.governance.trust.trust_state import TrustState, Verified
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store import promotion_gates, registry, tables
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.model_index import index_model
from govray.platform.store.promotion_gates import SCHEMA, PromotionPolicy, verify_promotion_policy
from govray.platform.store.semantic_version import MOST, parse_version
from govray.platform.store.tables import AuditEntry
from tests.support.databases import on_both
from tests.support.gates import signed
from tests.support.world import AT, World

EVE = ChangedBy(user="eve", at="2026-11-20T10:00:00Z")
BOB = ChangedBy(user="bob", at="2026-11-20T11:00:00Z", token="t1")


def policy(*gates: str) -> Verified[PromotionPolicy]:
    lines = "".join(f"    - {gate}\n" for gate in gates) or "    []\n"
    text = f"schema: {SCHEMA}\nname: test\nversion: 1\nstages:\n  staging: []\n  production:\n"
    data, trust = signed(WORLD, f"{text}{lines}"), TrustState.load(WORLD.root, at=AT)
    return verify_promotion_policy(trust, data, at=AT, where="gates")


WORLD = World()


OPEN = policy()
CLOSED = policy("monitored", "{gate: replayed, corpora: [acme]}")


@pytest.fixture(scope="session")
def world() -> World:
    return WORLD


@pytest.fixture(scope="session")
def verified(world: World, tmp_path_factory: pytest.TempPathFactory) -> VerifiedModel:
    folder = world.deploy(tmp_path_factory.mktemp("world") / "model")
    return world.verify(folder)


@pytest.fixture
def attestation(store: Engine, world: World, verified: VerifiedModel) -> str:
    with Session(store) as session:
        row = index_model(session, verified, trust_root=world.root, key=bytes(32))
        session.commit()
        return row.digest


def make(session: Session, attestation: str, *versions: str, model: str = "gpt") -> None:
    for version in versions:
        registry.register(session, model=model, version=version, attestation=attestation, by=EVE)
    session.commit()


def stages(store: Engine, model: str = "gpt") -> dict[str, str]:
    with Session(store) as session:
        return {each.version: each.stage for each in registry.versions(session, model)}


def test_a_version_holds_what_it_was_made_of(store: Engine, attestation: str) -> None:
    with Session(store) as session:
        registry.register(
            session,
            model="gpt",
            version="1.2.3",
            attestation=attestation,
            by=EVE,
            labels={"team": "code"},
            notes="the first",
        )
        session.commit()
    with Session(store) as session:
        row = registry.get(session, "gpt", "1.2.3")
        assert (row.attestation, row.stage, row.user) == (attestation, "none", "eve")
        assert (row.labels, row.notes) == ({"team": "code"}, "the first")
        assert registry.model(session, "gpt").created == EVE.at


def move(
    store: Engine, version: str, stage: str, policy: Verified[PromotionPolicy] = OPEN
) -> object:
    with Session(store) as session:
        done = registry.promote(
            session, name="gpt", version=version, stage=stage, policy=policy, by=BOB
        )
        session.commit()
        return done.replaced


def test_stages_follow_one_another(store: Engine, attestation: str) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0")
    with pytest.raises(Refused, match="in stage none, which production does not follow"):
        move(store, "1.0.0", "production")
    move(store, "1.0.0", "staging")
    move(store, "1.0.0", "production")
    for stage in ("staging", "production"):
        with pytest.raises(Refused, match="in stage production"):
            move(store, "1.0.0", stage)
    with Session(store) as session:
        registry.archive(session, name="gpt", version="1.0.0", by=EVE)
        session.commit()
    with Session(store) as session, pytest.raises(Refused, match="in stage archived"):
        registry.archive(session, name="gpt", version="1.0.0", by=EVE)
    move(store, "1.0.0", "staging")
    assert stages(store) == {"1.0.0": "staging"}
    for stage in ("none", "archived", "nowhere"):
        with pytest.raises(UsageError, match="no stage to promote to"):
            move(store, "1.0.0", stage)


def test_one_version_is_in_production(store: Engine, attestation: str) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0", "1.1.0")
        make(session, attestation, "1.0.0", model="other")
    for version in ("1.0.0", "1.1.0"):
        move(store, version, "staging")
    assert move(store, "1.0.0", "production") is None
    assert move(store, "1.1.0", "production") == "1.0.0"
    assert stages(store) == {"1.1.0": "production", "1.0.0": "archived"}
    assert stages(store, "other") == {"1.0.0": "none"}


def race(store: Engine, attestation: str) -> dict[str, str]:
    """Two promotions to production at the same time; the stages that they leave."""
    with Session(store) as session:
        make(session, attestation, "1.0.0", "1.1.0")
    for version in ("1.0.0", "1.1.0"):
        move(store, version, "staging")
    both = threading.Barrier(2)
    errors: list[Exception] = []

    def one(version: str) -> None:
        both.wait()
        try:
            move(store, version, "production", RACING)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=[version]) for version in ("1.0.0", "1.1.0")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return stages(store)


RACING = policy("{gate: quarantined, at_most: 1}")


@pytest.fixture
def meeting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> threading.Barrier:
    """The gates wait for each other, for a while: both promotions then stand between reading and
    writing, if nothing keeps them apart.
    """
    patience = getattr(request, "param", 0.7)
    barrier = threading.Barrier(2)
    asked = promotion_gates.failures

    def waiting(gates: object, evidence: object) -> object:
        try:
            if gates:
                barrier.wait(timeout=patience)
        except threading.BrokenBarrierError:
            pass
        return asked(gates, evidence)

    monkeypatch.setattr(promotion_gates, "failures", waiting)
    return barrier


@on_both
def test_two_promotions_at_once_leave_one_in_production(
    store: Engine, attestation: str, meeting: threading.Barrier
) -> None:
    assert sorted(race(store, attestation).values()) == ["archived", "production"]
    assert meeting.broken, "neither came to the gates while the other stood there"


@on_both
@pytest.mark.parametrize("meeting", [60.0], indirect=True)
def test_without_the_hold_two_promotions_meet(
    store: Engine,
    attestation: str,
    meeting: threading.Barrier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_hold", lambda session, name: None)
    race(store, attestation)
    assert not meeting.broken, "both stood before the gates at once"


def test_a_refused_promotion_names_every_gate_and_changes_nothing(
    store: Engine, attestation: str
) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0", "1.1.0")
    for version in ("1.0.0", "1.1.0"):
        move(store, version, "staging")
    move(store, "1.0.0", "production")
    with Session(store) as session:
        before = len(session.exec(select(AuditEntry)).all())
        with pytest.raises(Refused, match="2 findings of gates") as caught:
            registry.promote(
                session, name="gpt", version="1.1.0", stage="production", policy=CLOSED, by=BOB
            )
        assert "not monitored" in str(caught.value)
        assert "no replay without it" in str(caught.value)
        session.commit()  # even by a caller that goes on
        assert len(session.exec(select(AuditEntry)).all()) == before
    assert stages(store) == {"1.1.0": "staging", "1.0.0": "production"}
    move(store, "1.1.0", "production"), "without those gates it goes"
    assert stages(store) == {"1.1.0": "production", "1.0.0": "archived"}


def test_gates_look_at_signed_bytes_and_not_at_columns(store: Engine, attestation: str) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0")
        found = registry.evidence(session, attestation)
        assert found.records == {"acme": 9, "alpha": 18, "beta": 12, "gamma": 11}
        row = session.get_one(tables.AttestationRow, attestation)
        row.run, row.name = "another", "another"
        credential = session.exec(select(tables.CredentialRow)).first()
        assert credential is not None
        credential.records = 10**9
        session.flush()
        assert registry.evidence(session, attestation) == found


def test_bytes_that_are_not_of_their_digest_open_no_gate(store: Engine, attestation: str) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0")
        credentials = session.exec(
            select(tables.CredentialRow).order_by(col(tables.CredentialRow.corpus))
        ).all()
        credentials[0].envelope = credentials[1].envelope
        session.flush()
        with pytest.raises(Refused, match="not those of their digest"):
            registry.promote(
                session, name="gpt", version="1.0.0", stage="staging", policy=OPEN, by=BOB
            )


def test_every_change_is_in_the_audit_log_with_its_transaction(
    store: Engine, attestation: str
) -> None:
    with Session(store) as session:
        make(session, attestation, "1.0.0", "1.1.0")
    for version in ("1.0.0", "1.1.0"):
        move(store, version, "staging")
        move(store, version, "production", RACING)
    with Session(store) as session:
        told = registry.history(session, "gpt", "1.0.0")
        assert [(each.action, each.user, each.at, each.token) for each in told] == [
            ("model.register", "eve", EVE.at, None),
            ("model.promote", "bob", BOB.at, "t1"),
            ("model.promote", "bob", BOB.at, "t1"),
            ("model.archive", "bob", BOB.at, "t1"),
        ]
        assert told[2].detail == {
            "from": "staging",
            "to": "production",
            "gates": RACING.digest,
            "policy": "test v1",
        }
        assert told[3].detail["replacedBy"] == "1.1.0"
        registry.annotate(session, name="gpt", version="1.0.0", by=EVE, notes="x")
        session.rollback()
        assert len(registry.history(session, "gpt", "1.0.0")) == 4


numbers = st.integers(0, MOST)


def test_the_order_is_of_numbers_and_not_of_text() -> None:
    written = ["1.10.0", "0.9.9", "1.9.0", "1.9.10", "1.9.9"]
    ordered = [str(v) for v in sorted(map(parse_version, written))]
    assert ordered == ["0.9.9", "1.9.0", "1.9.9", "1.9.10", "1.10.0"]
    assert sorted(written) != ordered, "text would be in another order"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.2.3-rc.1", "1.2.3+7", "1.2.-3", "1. 2.3",
     "1.2.3\n", "１.2.3", "1.2.2147483648", "1" * 10_000],
)  # fmt: skip
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no version") as caught:
        parse_version(text)
    assert len(str(caught.value)) < 300
