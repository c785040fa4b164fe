"""The register in both databases, and what they refuse by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from govray.errors import InfrastructureFailed, Refused, UsageError
from govray.governance.submission.register_forms import Flagged, OtherThanAccepted
from govray.platform.attestor import register as register_module
from govray.platform.attestor import register_rules
from govray.platform.attestor.register import Register, UnknownSecret, Unregistered
from govray.platform.attestor.register_tables import RunOutcome
from tests.support.registered import (
    RUN,
    SUBMISSION,
    TRUST_ROOT,
    acceptance,
    attempt,
    committed,
    digest,
    started,
)

AT, LATER = "2026-11-24T09:00:00Z", "2026-11-24T10:00:00Z"


@pytest.fixture
def register(empty_url: str) -> Iterator[Register]:
    made = Register(empty_url)
    made.accept(acceptance(), root=TRUST_ROOT, at=AT)
    made.open(SUBMISSION, attempt(1, "one"), at=AT)
    yield made
    made.close()


def test_a_submission_is_accepted_once(register: Register) -> None:
    again = register.accept(acceptance(), root=digest("newer root"), at=LATER)
    assert again == register.accepted(SUBMISSION)
    assert (again.registered, again.trust_root) == (AT, TRUST_ROOT)
    with pytest.raises(Refused, match="registered otherwise"):
        register.accept(acceptance(user="eve"), root=TRUST_ROOT, at=LATER)
    assert register.accepted(SUBMISSION).user == "ada"
    with pytest.raises(Unregistered):
        register.accepted("s-2")
    assert register.submissions() == (SUBMISSION,)


def test_a_run_is_followed_from_attempt_to_attempt(register: Register) -> None:
    register.post(SUBMISSION, "one", started(), at=AT)
    assert register.last_commit(SUBMISSION) is None
    first = committed(1, 5)
    stands = register.post(SUBMISSION, "one", first, at=AT)
    assert (stands.commit, stands.sequence, stands.posts) == (first.commit, 2, 2)
    assert register.post(SUBMISSION, "one", first, at=LATER) == stands
    register.open(SUBMISSION, attempt(2, "two"), at=LATER)
    stands = register.standing(SUBMISSION, "two", RUN)
    assert (stands.attempt, stands.step, stands.sequence, stands.posts) == (2, 5, 0, 2)
    register.post(
        SUBMISSION, "two", started(**dict(stands.position), previous=stands.commit), at=LATER
    )
    second = committed(1, 9, first.commit)
    register.post(SUBMISSION, "two", second, at=LATER)
    last = register.last_commit(SUBMISSION)
    assert last is not None
    assert (last.step, last.commit, last.attempt, last.at) == (9, second.commit, 2, LATER)
    assert [each.sequence for each in register.posts(SUBMISSION, RUN)] == [0, 1, 0, 1]
    assert register.standing(SUBMISSION, "two", RUN, at_most=8).step == 5
    assert register.standing(SUBMISSION, "two", RUN, at_most=4).commit is None
    assert register.runs(SUBMISSION) == (RUN,)


def test_the_same_commit_twice_is_one_and_another_flags(register: Register) -> None:
    register.post(SUBMISSION, "one", started(), at=AT)
    register.post(SUBMISSION, "one", committed(1, 5), at=AT)
    register.post(SUBMISSION, "one", committed(1, 5), at=AT)
    assert register.attempts(SUBMISSION)[0].flagged is None
    with pytest.raises(Flagged, match="two different posts"):
        register.post(SUBMISSION, "one", committed(1, 6), at=AT)
    assert register.attempts(SUBMISSION)[0].flagged == "two different posts are number 1"
    for _ in range(2):  # the first poster is stopped too: nobody knows which is the job
        with pytest.raises(Flagged):
            register.post(SUBMISSION, "one", committed(2, 9, digest("commit 5")), at=AT)
        with pytest.raises(Flagged):
            register.standing(SUBMISSION, "one", RUN)
    register.open(SUBMISSION, attempt(2, "two"), at=LATER)
    assert register.standing(SUBMISSION, "two", RUN).step == 5
    with pytest.raises(UnknownSecret):
        register.post(SUBMISSION, "three", started(), at=AT)


def test_an_attempt_starts_from_what_was_accepted(register: Register) -> None:
    """Store rows that change later do not count."""
    changed = attempt(2, "two", facts=acceptance(user="eve").facts_digest)
    with pytest.raises(OtherThanAccepted, match="other facts than were accepted"):
        register.open(SUBMISSION, changed, at=LATER)
    with pytest.raises(OtherThanAccepted, match="other packages than the attempts before"):
        register.open(SUBMISSION, attempt(2, "two", pip=digest("pip")), at=LATER)
    with pytest.raises(OtherThanAccepted, match="nobody registered it"):
        register.open("s-2", attempt(1, "two"), at=LATER)
    assert len(register.attempts(SUBMISSION)) == 1
    assert register.open(SUBMISSION, attempt(2, "two"), at=LATER).number == 2  # negative control


def test_runs_and_posts_are_bounded(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_module, "MOST_RUNS", 0)
    with pytest.raises(Refused, match="it has 0 runs already"):
        register.post(SUBMISSION, "one", started(), at=AT)
    monkeypatch.setattr(register_module, "MOST_RUNS", 1)
    register.post(SUBMISSION, "one", started(), at=AT)
    register.post(SUBMISSION, "one", committed(1, 1), at=AT)
    monkeypatch.setattr(register_rules, "MOST_POSTS", 2)
    with pytest.raises(Refused, match="posted 2 times"):
        register.post(SUBMISSION, "one", committed(2, 2, digest("commit 1")), at=AT)


def test_an_attempt_has_another_secret_until_it_posts(register: Register) -> None:
    register.open(SUBMISSION, attempt(1, "other"), at=LATER)
    with pytest.raises(UnknownSecret):
        register.post(SUBMISSION, "one", started(), at=LATER)
    register.post(SUBMISSION, "other", started(), at=LATER)
    with pytest.raises(Refused, match="has posted with another secret"):
        register.open(SUBMISSION, attempt(1, "one"), at=LATER)
    assert register.open(SUBMISSION, attempt(1, "other"), at=LATER).opened == AT


def test_what_became_of_a_run_is_compared_and_set(register: Register) -> None:
    refused = RunOutcome(submission=SUBMISSION, run=RUN, state="NOT_ATTESTED", why="links", at=AT)
    done = RunOutcome(submission=SUBMISSION, run=RUN, state="ATTESTED", digest=digest("m"), at=AT)
    assert register.settle(refused, before=None)
    assert not register.settle(done, before=None)
    assert register.attested(SUBMISSION, RUN) == refused
    assert register.settle(done, before=refused)
    assert not register.settle(refused, before=refused)
    assert register.attested(SUBMISSION, RUN) == done


def test_of_two_that_post_at_once_one_is_flagged(register: Register) -> None:
    register.post(SUBMISSION, "one", started(), at=AT)

    def post(step: int) -> bool:
        try:
            register.post(SUBMISSION, "one", committed(1, step), at=AT)
        except Flagged:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(post, range(1, 5))) == 1
    assert len(register.posts(SUBMISSION, RUN)) == 2
    with ThreadPoolExecutor(4) as threads:
        forms = [acceptance(submission="s-2", user=name) for name in ("a", "b", "c", "d")]
        taken = list(threads.map(lambda form: _accepts(register, form), forms))
    assert sum(taken) == 1


def _accepts(register: Register, form: object) -> bool:
    try:
        register.accept(form, root=TRUST_ROOT, at=AT)  # type: ignore[arg-type]
    except Refused:
        return False
    return True


@pytest.mark.parametrize("table", ["register_accepted", "register_posted"])
def test_the_database_itself_changes_nothing(
    register: Register, empty_url: str, table: str
) -> None:
    register.post(SUBMISSION, "one", started(), at=AT)
    other = create_engine(empty_url)
    column = "document" if table == "register_accepted" else "at"
    for statement in (f"UPDATE {table} SET {column} = 'x'", f"DELETE FROM {table}"):
        with pytest.raises(DBAPIError, match="never changed"), other.begin() as connection:
            connection.execute(text(statement))
    # The control: a table without the triggers is changed.
    with other.begin() as connection:
        connection.execute(text("UPDATE register_attempts SET flagged = 'by a test'"))
    assert register.attempts(SUBMISSION)[0].flagged == "by a test"
    other.dispose()


def test_a_register_is_in_a_database_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "register.db"
    Register(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Register(f"sqlite:///{path}")
    assert again.submissions() == ()
    again.close()
    for url in ("sqlite://", "mysql://x/y", "no url"):
        with pytest.raises(UsageError):
            Register(url)
    with pytest.raises(InfrastructureFailed, match="cannot be used"):
        Register(f"sqlite:///{tmp_path}/none/register.db")


def test_what_waits_is_found_without_a_look_at_every_post(tmp_path: Path) -> None:
    """With ten thousand runs of fifty commits each, that look took a tenth of each pass."""
    url = f"sqlite:///{tmp_path / 'register.db'}"
    asked = []
    register = Register(url)
    event.listen(register._engine, "before_cursor_execute", lambda *given: asked.append(given[2:4]))
    register.waiting()
    register.close()
    [(statement, given)] = [each for each in asked if "finished" in each[0]]
    plain = statement.replace("= 'finished'", "= 'finished' || ''")  # the control: as a parameter

    with create_engine(url).connect() as connection:
        plans = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each}", given).all()
            for each in (statement, plain)
        ]
    assert [any("register_finished" in row[-1] for row in plan) for plan in plans] == [True, False]
