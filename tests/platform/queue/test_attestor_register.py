"""What the queue tells the register: repeated safely, and never past an attempt that has posted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from govray.governance.submission.register_client import RegisterClient
from govray.governance.submission.register_forms import SECRET, AcceptanceForm
from govray.platform.attestor.register import Register
from govray.platform.attestor.register_tables import RunOutcome
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import AttemptGone, JobRefused, Unreachable
from govray.platform.store.run_owners import submission_facts
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from tests.support.registered import RUN, TOKEN, TRUST_ROOT, digest, door, started


def row(**more: Any) -> QueueEntry:
    given: dict[str, Any] = {
        **{"id": "s-1", "kind": "train", "name": "tiny", "project": "research", "user": "ada"},
        **{"state": ExperimentState.RUNNING, "pool": "default", "priority": 0, "slots": 1},
        **{"config": "a: 1", "submitted": "2026-11-24T09:00:00Z", "attempt": 1, "job": "s-1-1"},
    }
    return QueueEntry(**given | more)


def queue_of(address: str, token: str = TOKEN) -> AttestorRegister:
    return AttestorRegister(RegisterClient(address, token))


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    made = Register(f"sqlite:///{tmp_path}/register.db")
    form = AcceptanceForm(**dict(submission_facts(row(), "sharedCluster")))
    made.accept(form, root=TRUST_ROOT, at="2026-11-24T09:00:00Z")
    yield made
    made.close()


@pytest.fixture
def address(register: Register) -> Iterator[str]:
    with door(register) as found:
        yield found


def test_a_start_that_is_repeated_replaces_the_secret(register: Register, address: str) -> None:
    """The queue died between the register and the cluster: no job has the first secret."""
    queue = queue_of(address)
    first = queue.variables(row(), {}, "sharedCluster")[SECRET]
    again = queue.variables(row(), {}, "sharedCluster")[SECRET]
    [opened] = register.attempts("s-1")
    assert first != again
    assert (opened.number, opened.secret) == (1, digest(again))


def test_an_attempt_that_has_posted_is_gone_and_the_next_is_opened(
    register: Register, address: str
) -> None:
    queue = queue_of(address)
    secret = queue.variables(row(), {}, "sharedCluster")[SECRET]
    register.post("s-1", secret, started(), at="2026-11-24T09:00:00Z")
    with pytest.raises(AttemptGone, match="has posted with another secret"):
        queue.variables(row(), {}, "sharedCluster")
    assert queue.variables(row(attempt=2), {}, "sharedCluster")[SECRET] != secret
    with pytest.raises(AttemptGone, match="attempt 2 was opened since"):
        queue.variables(row(), {}, "sharedCluster")


def test_a_row_that_is_not_what_was_accepted_starts_nothing(
    register: Register, address: str
) -> None:
    queue = queue_of(address)
    for changed in ({"user": "eve"}, {"config": "a: 2"}, {"archive": digest("a")}, {"id": "s-2"}):
        with pytest.raises(JobRefused, match="the attestor's register refuses it"):
            queue.variables(row(**changed), {}, "sharedCluster")
    assert register.attempts("s-1") == ()


def test_without_an_answer_nothing_starts(address: str) -> None:
    with pytest.raises(Unreachable, match="answers 401"):
        queue_of(address, "another token").variables(row(), {}, "sharedCluster")
    with pytest.raises(Unreachable, match="does not answer"):
        queue_of("http://127.0.0.1:9").variables(row(), {}, "sharedCluster")
    with pytest.raises(Unreachable, match="answers 404"):
        queue_of(f"{address}/elsewhere").variables(row(), {}, "sharedCluster")


def test_what_was_decided_is_asked_for_by_submission(register: Register, address: str) -> None:
    queue = queue_of(address)
    secret = queue.variables(row(), {}, "sharedCluster")[SECRET]
    register.post("s-1", secret, started(), at="2026-11-24T09:00:00Z")
    assert queue.decided(row()) is None
    refused = RunOutcome(
        submission="s-1",
        run=RUN,
        state="NOT_ATTESTED",
        why="step 3: a link",
        at="2026-11-24T09:00:00Z",
    )
    assert register.settle(refused, before=None)
    assert queue.decided(row()) == ("NOT_ATTESTED", "step 3: a link")
    signed = RunOutcome(
        submission="s-1", run=RUN, state="ATTESTED", digest=digest("m"), at="2026-11-24T09:00:00Z"
    )
    assert register.settle(signed, before=refused)
    assert queue.decided(row()) == ("ATTESTED", None)
    with pytest.raises(Unreachable):
        queue.decided(row(id="s-2"))
