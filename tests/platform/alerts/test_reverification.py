"""Models verified again: outcomes that change are events, and the registry stays as it is."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.errors import CouldNotCheck, InfrastructureFailed, Untrusted, VerificationFailed
from govray.governance.formats.document import format_time
from govray.platform.alerts.delivery import Deliverer
from govray.platform.alerts.rounds import Rounds, Verify, reverify
from govray.platform.store import tables, webhooks
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.reverifications import changes
from govray.platform.store.states import DeliveryState, RunState
from tests.support.happened import BEFORE, run_row
from tests.support.receiver import Receiver

KEY = bytes(32)
STAGES = {"a": "production", "b": "staging", "c": "archived", "d": "none"}


def registered(engine: Engine) -> None:
    """Four models, one version each, of which two are used."""
    with Session(engine) as session:
        session.add(tables.TrustRootRow(digest="r", name="root", version=1, envelope=b"{}"))
        session.add(tables.PolicyRow(digest="p", name="p", version=1, signer="s", envelope=b"{}"))
        session.add(tables.ModelRow(name="gpt", labels={}, created=BEFORE, user="ada"))
        session.flush()
        for number, (name, stage) in enumerate(STAGES.items()):
            session.add(
                tables.AttestationRow(
                    digest=name,
                    run=name,
                    name=name,
                    signer="s",
                    trust_root="r",
                    policy="p",
                    assurance="selfAttested",
                    isolation="machine",
                    started=BEFORE,
                    finished=BEFORE,
                    folder=f"/models/{name}",
                    envelope_digest=name,
                    envelope=b"{}",
                    lineage=b"{}",
                )
            )
            session.flush()
            session.add(
                tables.ModelVersion(
                    model="gpt",
                    version=f"{number}.0.0",
                    major=number,
                    minor=0,
                    patch=0,
                    attestation=name,
                    stage=stage,
                    labels={},
                    created=BEFORE,
                    user="ada",
                )
            )
        session.commit()


def registry(engine: Engine) -> Any:
    with Session(engine) as session:
        return sorted((r.version, r.stage) for r in session.exec(select(tables.ModelVersion)))


def holds(folder: str) -> str:
    return folder.removeprefix("/models/")


def raising(error: Exception) -> Verify:
    def verify(_folder: str) -> str:
        raise error

    return verify


@pytest.mark.parametrize(
    ("verify", "outcome"),
    [
        (raising(VerificationFailed("step 3 (files)")), "failed"),
        (raising(Untrusted("the key is revoked")), "failed"),
        (lambda _: "another", "failed"),
        (raising(CouldNotCheck("no list")), "could not check"),
        (raising(InfrastructureFailed("the store is away")), "could not check"),
        (raising(FileNotFoundError(2, "No such file")), "could not check"),
    ],
)
def test_outcomes_and_their_changes_are_kept(store: Engine, verify: Verify, outcome: str) -> None:
    registered(store)
    before = registry(store)
    times = iter(f"2026-11-24T1{n // 10}:{n % 10}0:00Z" for n in range(60))
    for each in (holds, holds, verify, verify, holds):
        found = reverify(store, each, lambda: next(times))
        assert set(found) == {"a", "b"}  # what is in use, and nothing else
    with Session(store) as session:
        rows = changes(session, "a")
    assert [row.outcome for row in rows] == ["verified", outcome, "verified"]
    assert all(row.since <= row.checked for row in rows)
    assert rows[2].since < rows[2].checked  # it was verified twice
    assert (rows[0].why, bool(rows[1].why)) == (None, True)
    assert registry(store) == before


def test_rounds_tell_a_webhook_what_changed(store: Engine, receiver: Receiver) -> None:
    """The whole way, by two processes: index, event, delivery, and once each."""
    registered(store)
    now = [datetime(2026, 11, 24, 9, tzinfo=UTC)]
    verify: list[Verify] = [holds]
    with Session(store) as session:
        webhooks.add(
            session,
            url=receiver.url,
            key=KEY,
            by=ChangedBy(user="ada", at=format_time(now[0])),
        )
        session.commit()

    def rounds(name: str) -> Rounds:
        deliverer = Deliverer(
            store,
            KEY,
            holder=name,
            source="urn:govray",
            clock=lambda: now[0],
            allowed=["localhost"],
        )
        return Rounds(
            engine=store,
            deliverer=deliverer,
            holder=name,
            clock=lambda: now[0],
            verify=lambda folder: verify[0](folder),
            every=timedelta(hours=1),
        )

    first, second = rounds("first"), rounds("second")
    assert (first.once(), second.once()) == (0, 0)
    verify[0] = raising(VerificationFailed("step 3 (files): weights.safetensors"))
    assert (first.once(), second.once()) == (0, 0)  # not yet its time
    now[0] += timedelta(hours=1)
    assert (second.once(), first.once()) == (2, 0)
    assert len(receiver.got) == 2
    assert all(b"dev.govray.model.unverified" in body for _, body in receiver.got)
    # A process that goes round, until it is told to stop.
    now[0] += timedelta(minutes=1)
    with Session(store) as session:
        run_row(session, "done", RunState.COMPLETED, finished=format_time(now[0]))
        session.commit()
    stop = threading.Event()
    going = threading.Thread(target=first.run, args=(stop,))
    going.start()
    for _ in range(200):
        if len(receiver.got) == 3:
            break
        stop.wait(0.05)
    stop.set()
    going.join(20)
    second.deliverer.close()
    assert b"dev.govray.run.completed" in receiver.got[2][1]
    with Session(store) as session:
        states = [row.state for row in session.exec(select(tables.Delivery))]
    assert states == [DeliveryState.DELIVERED] * 3
