"""The register: what was accepted, and what each attempt committed, by the attestor's clock.

Rules decide (`register_rules.py`), and this reads and writes around them, each call in one
transaction. Calls about one submission wait for each other: on PostgreSQL by a lock on its row, on
SQLite all calls do. Times are arguments.

Nothing here looks into a run's folder. What is registered is what its job said.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from govray.errors import GovrayError, Refused
from govray.governance.formats import canonical_json
from govray.governance.submission.register_forms import (
    AcceptanceForm,
    AttemptForm,
    CommitPosition,
    Flagged,
    OtherThanAccepted,
    PostForm,
    RunStanding,
)
from govray.platform.attestor import register_tables as tables
from govray.platform.attestor.register_rules import MOST_RUNS, belongs, opens, otherwise, takes
from govray.platform.attestor.register_tables import (
    Accepted,
    Attempt,
    Posted,
    RunOutcome,
    open_tables,
)


class Unregistered(GovrayError):
    """Nobody registered a submission of this id."""


class UnknownSecret(Refused):
    """The secret is that of no attempt of the submission, or the token is not the service's."""


class Register:
    """The register in the database at ``url`` (`register_tables.open_tables`)."""

    def __init__(self, url: str) -> None:
        self._engine = open_tables(url)

    def close(self) -> None:
        self._engine.dispose()

    # What the service and the queue say

    def accept(self, form: AcceptanceForm, *, root: str, at: str) -> Accepted:
        """Register a submission, once. Again with the same form, it is what was registered then.
        Raises `Refused`: it was registered with another.

        Args:
            root: Digest of the attestor's trust root.
        """
        new = Accepted(**dict(form), registered=at, trust_root=root)
        with self._engine.begin() as connection:
            if (found := _accepted(connection, form.submission)) is None:
                document = canonical_json.encode(new.to_json()).decode()
                try:
                    with connection.begin_nested():
                        row = {"submission": form.submission, "document": document}
                        connection.execute(insert(tables.accepted), row)
                    return new
                except IntegrityError:  # another process was faster
                    found = _accepted(connection, form.submission)
        own = {"registered": at, "trust_root": root}
        if found is None or found.model_copy(update=own) != new:
            raise Refused(
                "it is registered otherwise than this says",
                where=f"submission {form.submission}",
                do="What was accepted never changes: submit again",
            )
        return found

    def open(self, submission: str, form: AttemptForm, *, at: str) -> Attempt:
        """Open an attempt. Again, it is the one that is open. Raises `Refused` as the rules do, and
        `OtherThanAccepted`: not this was accepted."""
        new = Attempt(**dict(form), submission=submission, opened=at)
        with self._of(submission, OtherThanAccepted) as connection:
            attempts = _attempts(connection, submission)
            found = _accepted(connection, submission)
            if (why := otherwise(found, attempts, form)) is not None:
                raise OtherThanAccepted(
                    why,
                    where=f"submission {submission}",
                    do="What was accepted never changes: submit again",
                )
            newest = attempts[-1] if attempts else None
            there = newest is not None and newest.number == new.number
            why = opens(attempts, form, posted=there and _has_posted(connection, new))
            if why is not None:
                raise Refused(why, where=f"attempt {new.number} of submission {submission}")
            if newest is None or not there:
                connection.execute(insert(tables.attempts), dict(new))
                return new
            if newest.secret != new.secret:
                changed = update(tables.attempts).where(*_key(new)).values(secret=new.secret)
                connection.execute(changed)
            return newest.model_copy(update={"secret": new.secret})

    # What a job says

    def post(self, submission: str, secret: str, form: PostForm, *, at: str) -> RunStanding:
        """Take a post, and answer where its run stands then.

        Args:
            secret: The attempt's own, as it was sent.

        Raises:
            UnknownSecret: It is that of no attempt.
            Flagged: Somebody else posts as this attempt.
            Refused: It does not extend what was posted.
        """
        with self._of(submission) as connection:
            attempts = _attempts(connection, submission)
            own = _of_secret(attempts, secret, submission)
            found = _accepted(connection, submission)
            if found is None or not belongs(found, form.run):
                raise Refused("it is no run of this submission", where=f"submission {submission}")
            new = Posted(**dict(form), submission=submission, attempt=own.number, at=at)
            last = _last(connection, submission, form.run)
            if last is None and _runs(connection, submission) >= MOST_RUNS:
                raise Refused(
                    f"it has {MOST_RUNS} runs already",
                    where=f"submission {submission}",
                    do="Make it several searches",
                )
            same = _same(connection, new)
            refusal = takes(attempts, own, last, same, new)
            if refusal is None:
                if same is None:
                    connection.execute(insert(tables.posted), dict(new))
                return _standing(connection, own, form.run)
            if refusal.branches and own.flagged is None:
                flagged = update(tables.attempts).where(*_key(own)).values(flagged=refusal.why)
                connection.execute(flagged)
        where = f"attempt {own.number} of submission {submission}"
        if refusal.branches:
            raise Flagged(
                f"another process posts as this attempt: {refusal.why}",
                where=where,
                do="The next attempt goes on from the last commit that is registered",
            )
        raise Refused(f"it does not extend what is registered: {refusal.why}", where=where)

    def standing(
        self, submission: str, secret: str, run: str, *, at_most: int | None = None
    ) -> RunStanding:
        """Where a run stands, as an attempt is told. ``at_most``: by the last commit whose step is
        that or before. Raises `UnknownSecret` and `Flagged`."""
        with self._of(submission) as connection:
            attempts = _attempts(connection, submission)
            own = _of_secret(attempts, secret, submission)
            if own.flagged is not None:
                raise Flagged(
                    f"another process posts as this attempt: {own.flagged}",
                    where=f"attempt {own.number} of submission {submission}",
                )
            return _standing(connection, own, run, at_most)

    # What the attestor reads and writes

    def submissions(self) -> tuple[str, ...]:
        """The ids of all submissions."""
        with self._engine.begin() as connection:
            ids = select(tables.accepted.c.submission).order_by(tables.accepted.c.submission)
            return tuple(connection.scalars(ids))

    def accepted(self, submission: str) -> Accepted:
        """What was accepted. Raises `Unregistered`."""
        with self._of(submission) as connection:
            found = _accepted(connection, submission)
        assert found is not None  # `_of` has seen it
        return found

    def attempts(self, submission: str) -> tuple[Attempt, ...]:
        """The attempts of a submission, by number."""
        with self._of(submission) as connection:
            return _attempts(connection, submission)

    def runs(self, submission: str) -> tuple[str, ...]:
        """The runs that the attempts of a submission have posted of, by name."""
        column = tables.posted.c.run
        with self._of(submission) as connection:
            of = select(column).where(tables.posted.c.submission == submission)
            return tuple(connection.scalars(of.distinct().order_by(column)))

    def posts(self, submission: str, run: str) -> tuple[Posted, ...]:
        """What was posted of a run, oldest first."""
        with self._of(submission) as connection:
            rows = connection.execute(_chain(submission, run)).mappings()
            return tuple(Posted(**row) for row in rows)

    def last_commit(self, submission: str, run: str | None = None) -> Posted | None:
        """The last post of a run, which says by which commit it stands; None if there is no commit.
        ``run``: that of the submission itself, or else a search's trial."""
        with self._of(submission) as connection:
            found = _accepted(connection, submission)
            last = _last(connection, submission, run or (found.run if found else ""))
        return last if last is not None and last.commit is not None else None

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Submission and run of which nothing is decided, and whose newest attempt has finished and
        ended."""
        posted, settled = tables.posted, tables.attested
        same = (settled.c.submission == posted.c.submission, settled.c.run == posted.c.run)
        finished = (
            select(posted.c.submission, posted.c.run)
            .where(tables.FINISHED, ~select(settled).where(*same).exists())
            .distinct()
            .order_by(posted.c.submission, posted.c.run)
        )
        with self._engine.begin() as connection:
            found = [(each.submission, each.run) for each in connection.execute(finished)]
        # Each by itself: jobs post meanwhile, however many there are.
        return tuple(each for each in found if self.ended(*each))

    def ended(self, submission: str, run: str) -> Posted | None:
        """The last post of a run, if the newest attempt has finished and ended it, and nobody else
        posted as that attempt."""
        with self._of(submission) as connection:
            return (
                _last(connection, submission, run) if _ended(connection, submission, run) else None
            )

    def finished(self, submission: str, run: str) -> str:
        """When the register was told that the newest attempt had finished a run that `ended`."""
        with self._of(submission) as connection:
            last = _last(connection, submission, run)
            assert last is not None
            found = connection.execute(_finish(last)).mappings().one()
        return Posted(**found).at

    def attested(self, submission: str, run: str) -> RunOutcome | None:
        """What became of a run, if that is decided."""
        with self._of(submission) as connection:
            return _attested(connection, submission, run)

    def settle(self, new: RunOutcome, *, before: RunOutcome | None) -> bool:
        """Write what became of a run, if ``before`` is what the register has of it. False if it has
        something else by now."""
        table = tables.attested
        with self._of(new.submission) as connection:
            if _attested(connection, new.submission, new.run) != before:
                return False
            if before is None:
                connection.execute(insert(table), dict(new))
            else:
                key = (table.c.submission == new.submission, table.c.run == new.run)
                connection.execute(update(table).where(*key).values(dict(new)))
            return True

    @contextmanager
    def _of(
        self, submission: str, absent: type[GovrayError] = Unregistered
    ) -> Iterator[Connection]:
        """A transaction about one submission, which nobody else changes meanwhile."""
        key = tables.accepted.c.submission
        with self._engine.begin() as connection:
            held = select(key).where(key == submission).with_for_update()
            if connection.scalar(held) is None:
                raise absent(
                    "nobody registered it",
                    where=f"submission {submission}",
                    do="Tell the service where the attestor is, and submit again",
                )
            yield connection


def _accepted(connection: Connection, submission: str) -> Accepted | None:
    table = tables.accepted
    text = connection.scalar(select(table.c.document).where(table.c.submission == submission))
    if text is None:
        return None
    return Accepted.from_json(canonical_json.parse_canonical(text.encode()))


def _attempts(connection: Connection, submission: str) -> tuple[Attempt, ...]:
    table = tables.attempts
    rows = select(table).where(table.c.submission == submission).order_by(table.c.number)
    return tuple(Attempt(**row) for row in connection.execute(rows).mappings())


def _key(attempt: Attempt) -> tuple[Any, ...]:
    table = tables.attempts
    return table.c.submission == attempt.submission, table.c.number == attempt.number


def _of_secret(attempts: tuple[Attempt, ...], secret: str, submission: str) -> Attempt:
    """The attempt whose secret this is; every one is compared."""
    digest = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
    found = [each for each in attempts if hmac.compare_digest(each.secret, digest)]
    if not found:
        raise UnknownSecret(
            "the secret is that of no attempt",
            where=f"submission {submission}",
            do="The queue gives each attempt its own; an attempt that was replaced has none",
        )
    return found[0]


def _chain(submission: str, run: str, *, newest_first: bool = False) -> Any:
    table = tables.posted
    order = [table.c.attempt, table.c.sequence]
    return (
        select(table)
        .where(table.c.submission == submission, table.c.run == run)
        .order_by(*(each.desc() if newest_first else each for each in order))
    )


def _last(connection: Connection, submission: str, run: str) -> Posted | None:
    statement = _chain(submission, run, newest_first=True).limit(1)
    row = connection.execute(statement).mappings().one_or_none()
    return Posted(**row) if row is not None else None


def _ended(connection: Connection, submission: str, run: str) -> bool:
    """Whether the newest attempt of a submission has finished and ended this run."""
    last = _last(connection, submission, run)
    newest = _attempts(connection, submission)[-1]
    if last is None or last.kind != "ended" or last.attempt != newest.number or newest.flagged:
        return False
    return connection.execute(_finish(last)).first() is not None


def _finish(last: Posted) -> Any:
    """The post that a run has finished, of the attempt that posted last."""
    table = tables.posted
    mine = (table.c.attempt == last.attempt, table.c.kind == "finished")
    return _chain(last.submission, last.run).where(*mine)


def _same(connection: Connection, new: Posted) -> Posted | None:
    table = tables.posted
    statement = _chain(new.submission, new.run).where(
        table.c.attempt == new.attempt, table.c.sequence == new.sequence
    )
    row = connection.execute(statement).mappings().one_or_none()
    return Posted(**row) if row is not None else None


def _has_posted(connection: Connection, attempt: Attempt) -> bool:
    table = tables.posted
    of = (table.c.submission == attempt.submission, table.c.attempt == attempt.number)
    return _count(connection, table, *of) > 0


def _count(connection: Connection, table: Table, *where: Any) -> int:
    return connection.scalar(select(func.count()).select_from(table).where(*where)) or 0


def _runs(connection: Connection, submission: str) -> int:
    """How many runs the attempts of a submission have posted of."""
    table = tables.posted
    runs = select(func.count(table.c.run.distinct())).where(table.c.submission == submission)
    return connection.scalar(runs) or 0


def _standing(
    connection: Connection, own: Attempt, run: str, at_most: int | None = None
) -> RunStanding:
    table = tables.posted
    last = stood = _last(connection, own.submission, run)
    if at_most is not None:
        below = _chain(own.submission, run, newest_first=True).where(
            table.c.kind == "committed", table.c.step <= at_most
        )
        row = connection.execute(below.limit(1)).mappings().one_or_none()
        stood = Posted(**row) if row is not None else None
    mine = last if last is not None and last.attempt == own.number else None
    return RunStanding(
        **dict((stood or CommitPosition()).position),
        attempt=own.number,
        posts=_count(connection, table, table.c.submission == own.submission, table.c.run == run),
        sequence=mine.sequence + 1 if mine else 0,
        last=mine.kind if mine else None,
    )


def _attested(connection: Connection, submission: str, run: str) -> RunOutcome | None:
    table = tables.attested
    statement = select(table).where(table.c.submission == submission, table.c.run == run)
    row = connection.execute(statement).mappings().one_or_none()
    return RunOutcome(**row) if row is not None else None
