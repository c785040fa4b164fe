"""What the queue tells the register: repeated safely, and never past an attempt that has posted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from govray.governance.submission.register_forms import SECRET
from govray.platform.attestor.register import Register
from govray.platform.attestor.register_tables import Attested
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import AttemptGone, JobRefused, Unreachable
from govray.platform.store.states import SubmissionState
from govray.platform.store.tables import Submission
from tests.support.registered import RUN, TOKEN, digest, door, started


def row(**more: Any) -> Submission:
    given: dict[str, Any] = {
        **{"id": "s-1", "kind": "train", "name": "tiny", "project": "research", "user": "ada"},
        **{"state": SubmissionState.RUNNING, "pool": "default", "priority": 0, "slots": 1},
        **{"config": "a: 1", "submitted": "2026-11-24T09:00:00Z", "attempt": 1, "job": "s-1-1"},
    }
    return Submission(**given | more)


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    made = Register(f"sqlite:///{tmp_path}/register.db")
    yield made
    made.close()


@pytest.fixture
def address(register: Register) -> Iterator[str]:
    with door(register) as found:
        yield found


def test_a_start_that_is_repeated_replaces_the_secret(register: Register, address: str) -> None:
    """The queue died between the register and the cluster: no job has the first secret."""
    queue = AttestorRegister(address, TOKEN)
    first = queue.variables(row(), {})[SECRET]
    again = queue.variables(row(), {})[SECRET]
    [opened] = register.attempts("s-1")
    assert first != again
    assert (opened.number, opened.secret) == (1, digest(again))


def test_an_attempt_that_has_posted_is_gone_and_the_next_is_opened(
    register: Register, address: str
) -> None:
    queue = AttestorRegister(address, TOKEN)
    secret = queue.variables(row(), {})[SECRET]
    register.post("s-1", secret, started(), at="2026-11-24T09:00:00Z")
    with pytest.raises(AttemptGone, match="has posted with another secret"):
        queue.variables(row(), {})
    assert queue.variables(row(attempt=2), {})[SECRET] != secret
    with pytest.raises(AttemptGone, match="attempt 2 was opened since"):
        queue.variables(row(), {})


def test_a_row_that_was_changed_since_is_refused(register: Register, address: str) -> None:
    """Store rows that change later do not count."""
    queue = AttestorRegister(address, TOKEN)
    queue.variables(row(), {})
    with pytest.raises(JobRefused, match="registered otherwise"):
        queue.variables(row(user="eve", attempt=2), {})
    assert register.accepted("s-1").user == "ada"
    assert len(register.attempts("s-1")) == 1


def test_without_an_answer_nothing_starts(address: str) -> None:
    with pytest.raises(Unreachable, match="answers 401"):
        AttestorRegister(address, "another token").variables(row(), {})
    with pytest.raises(Unreachable, match="does not answer"):
        AttestorRegister("http://127.0.0.1:9", TOKEN).variables(row(), {})
    with pytest.raises(Unreachable, match="answers 404"):
        AttestorRegister(f"{address}/elsewhere", TOKEN).variables(row(), {})


def test_what_was_decided_is_asked_for_by_submission(register: Register, address: str) -> None:
    queue = AttestorRegister(address, TOKEN)
    secret = queue.variables(row(), {})[SECRET]
    register.post("s-1", secret, started(), at="2026-11-24T09:00:00Z")
    assert queue.decided(row()) is None
    refused = Attested(
        submission="s-1", run=RUN, state="NOT_ATTESTED", why="a link", at="2026-11-24T09:00:00Z"
    )
    assert register.settle(refused, before=None)
    assert queue.decided(row()) == ("NOT_ATTESTED", "a link")
    signed = Attested(
        submission="s-1", run=RUN, state="ATTESTED", digest=digest("m"), at="2026-11-24T09:00:00Z"
    )
    assert register.settle(signed, before=refused)
    assert queue.decided(row()) == ("ATTESTED", None)
    with pytest.raises(Unreachable):
        queue.decided(row(id="s-2"))
