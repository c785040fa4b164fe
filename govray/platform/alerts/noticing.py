"""Events, found in the index: each once, whoever looks, and however often.

The index has no order of arrival: a run may be indexed late, and a rebuild writes all rows anew. So
no position in it says what was seen. What was seen is kept, one `Alert` for each event, and a
query asks for rows that have none. Its id follows from kind, subject and mark. So none is missed,
and a restart or a rebuild notices nothing twice.

A webhook is told of what happened after it was made. Both, the alert and what is to be sent of it,
are one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, String, and_, cast, func, literal
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from govray.governance.formats.document import format_time, parse_time
from govray.platform.store.run_owners import RUN_KINDS
from govray.platform.store.states import DeliveryState, ExperimentState, RunState
from govray.platform.store.tables import (
    Alert,
    Corpus,
    CredentialRow,
    DecisionRow,
    Delivery,
    ExperimentRow,
    ProjectRow,
    QueueEntry,
    Reverification,
    RunRow,
    WebhookRow,
)
from govray.platform.store.usage import month_of, usage
from govray.platform.store.webhooks import event_id

BATCH = 500
"""Events of one transaction; the rest come with the next."""
LONGEST_REASON = 1000
_BUDGET = "monthly_accelerator_hours"
_DECIDED = ("flag", "gate", "rollback", "log")


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An event that nobody has noticed yet. ``at`` none: when it happened is not known."""

    kind: str
    subject: str
    mark: str = ""
    at: str | None = None
    project: str | None = None
    data: dict[str, Any]


def notice(session: Session, *, at: str, ahead: timedelta) -> int:
    """Write down what has not been noticed, at most `BATCH` of each kind but budgets, and commit.

    Args:
        ahead: How long before its end a credential is an event.

    Returns:
        How many there were. Until none is left, there may be more.
    """
    webhooks = session.exec(select(WebhookRow)).all()
    number = 0
    soon = format_time(parse_time(at) + ahead)
    for found in (
        *_ended_runs(session),
        *_ended_searches(session),
        *_decided(session),
        *_entries(session),
        *_budgets(session, at),
        *_credentials(session, soon),
        *_reverified(session),
    ):
        number += 1
        alert = _alert(found, at)
        session.add(alert)
        session.flush()
        session.add_all(
            Delivery(webhook=each.id, alert=alert.id, state=DeliveryState.PENDING, due=at)
            for each in webhooks
            if wanted(each, alert)
        )
    session.commit()
    return number


def wanted(webhook: WebhookRow, alert: Alert) -> bool:
    return (
        alert.kind in webhook.kinds
        and webhook.project in (None, alert.project)
        and alert.at >= webhook.created
    )


def _alert(found: _Found, at: str) -> Alert:
    return Alert(
        id=event_id(found.kind, found.subject, found.mark),
        kind=found.kind,
        subject=found.subject,
        mark=found.mark,
        at=found.at or at,
        noticed=at,
        project=found.project,
        data=found.data,
    )


def _unnoticed(kind: Any, subject: Any, mark: Any) -> ColumnElement[bool]:
    seen = aliased(Alert)
    of_it = and_(col(seen.kind) == kind, col(seen.subject) == subject, col(seen.mark) == mark)
    return ~select(seen.id).where(of_it).exists()


def _new(session: Session, rows: Any, kind: Any, subject: Any, mark: Any, *order: Any) -> Any:
    """Rows of which nobody has noticed this, at most `BATCH`."""
    unnoticed = rows.where(_unnoticed(kind, col(subject), mark))
    order = tuple(map(col, order))
    return session.execute(unnoticed.order_by(*order, col(subject)).limit(BATCH)).all()


def _ended_runs(session: Session) -> Iterator[_Found]:
    t, d = RunRow, DecisionRow
    # What ended with an error has no signed end; its last decision says when.
    last = select(func.max(d.at)).where(d.run == t.id).correlate(t).scalar_subquery()
    ended = select(t, ExperimentRow, last).join(
        ExperimentRow, col(ExperimentRow.id) == col(t.experiment)
    )
    for state, kind in ((RunState.COMPLETED, "run.completed"), (RunState.ERROR, "run.error")):
        mark: Any = cast(col(t.attempts), String) if kind == "run.error" else literal("")
        rows = ended.where(col(t.state) == state)
        for run, experiment, decided in _new(session, rows, kind, t.id, mark, t.started):
            data = {
                "run": run.id,
                "experiment": experiment.id,
                "step": run.step,
                "maxSteps": run.max_steps,
                "loss": run.loss,
                "attempts": run.attempts,
                "replayOf": run.replay_of,
                "why": _short(run.why),
            }
            yield _Found(
                kind=kind,
                subject=run.id,
                mark=str(run.attempts) if kind == "run.error" else "",
                at=run.finished or decided,
                project=experiment.project,
                data=data,
            )


def _ended_searches(session: Session) -> Iterator[_Found]:
    e, kind = ExperimentRow, "search.completed"
    ended = select(e).where(e.kind == "tune", col(e.state) == ExperimentState.COMPLETED)
    for (row,) in _new(session, ended, kind, e.id, "", e.started):
        data = {"experiment": row.id, "name": row.name}
        yield _Found(kind=kind, subject=row.id, at=row.finished, project=row.project, data=data)


def _decided(session: Session) -> Iterator[_Found]:
    d = DecisionRow
    # Of the event log, which grows at its end: a decision keeps its number.
    mark: Any = cast(col(d.number), String)
    kind: Any = literal("run.") + col(d.kind)
    decided = (
        select(d, ExperimentRow)
        .join(RunRow, col(RunRow.id) == col(d.run))
        .join(ExperimentRow, col(ExperimentRow.id) == col(RunRow.experiment))
        .where(col(d.kind).in_(_DECIDED), d.source == "events")
    )
    for row, experiment in _new(session, decided, kind, d.run, mark, d.run, d.number):
        data = {
            "run": row.run,
            "experiment": experiment.id,
            "step": row.step,
            "corpus": row.corpus,
            "reason": _short(row.reason),
        }
        yield _Found(
            kind=f"run.{row.kind}",
            subject=row.run,
            mark=str(row.number),
            at=row.at,
            project=experiment.project,
            data=data,
        )


def _entries(session: Session) -> Iterator[_Found]:
    """What was submitted and ended in an error, and experiments whose model was not signed."""
    s = QueueEntry
    mark: Any = cast(col(s.attempt), String)
    failed, trained = col(s.state) == ExperimentState.ERROR, col(s.kind).in_(RUN_KINDS)
    for kind, which, why in (
        ("experiment.error", failed & trained, col(s.why)),
        ("task.error", failed & ~trained, col(s.why)),
        ("experiment.not_attested", col(s.attested) == "NOT_ATTESTED", col(s.not_attested)),
    ):
        ended = select(s, why).where(which)
        for row, reason in _new(session, ended, kind, s.id, mark, s.submitted):
            data = {
                kind.partition(".")[0]: row.id,
                "name": row.name,
                "user": row.user,
                "attempt": row.attempt,
                "why": _short(reason),
            }
            yield _Found(
                kind=kind,
                subject=row.id,
                mark=str(row.attempt),
                at=None if kind == "experiment.not_attested" else row.finished,
                project=row.project,
                data=data,
            )


def _budgets(session: Session, at: str) -> Iterator[_Found]:
    """Projects that have used their accelerator-hours of this month. What started in a month counts
    for it, so ``govray usage --since`` its first day says the same."""
    p, began, kind = ProjectRow, month_of(at), "project.budget"
    month = began[: len("YYYY-MM")]
    rows = session.exec(
        select(p)
        .where(p.settings[_BUDGET].as_float() > 0, _unnoticed(kind, col(p.name), month))
        .order_by(col(p.name))
    ).all()  # not a batch: those that have hours left stay unnoticed, and would fill it
    budgets = {row.name: float(row.settings[_BUDGET]) for row in rows}
    if not budgets:
        return
    names = sorted(budgets)
    found = usage(
        session,
        at=at,
        since=began,
        experiments=col(ExperimentRow.project).in_(names),
        entries=col(QueueEntry.project).in_(names),
    )
    for each in found:
        if each.accelerator_hours >= budgets[each.name]:
            data = {
                "project": each.name,
                "month": month,
                "acceleratorHours": each.accelerator_hours,
                "budget": budgets[each.name],
            }
            yield _Found(kind=kind, subject=each.name, mark=month, project=each.name, data=data)


def _credentials(session: Session, soon: str) -> Iterator[_Found]:
    """Corpora whose last credential ends by then, or has ended."""
    c, newer, kind = CredentialRow, aliased(CredentialRow), "credential.expiring"
    followed = (
        select(newer.digest)
        .where(col(newer.corpus) == col(c.corpus), col(newer.valid_until) > col(c.valid_until))
        .exists()
    )
    ending = select(c).join(Corpus, col(Corpus.name) == col(c.corpus))
    ending = ending.where(c.valid_until <= soon, ~followed)
    rows = _new(session, ending, kind, c.corpus, col(c.valid_until), c.corpus, c.digest)
    for corpus, row in {row.corpus: row for (row,) in rows}.items():
        data = {
            "corpus": corpus,
            "supplier": row.supplier,
            "credential": row.digest,
            "validUntil": row.valid_until,
        }
        yield _Found(kind=kind, subject=corpus, mark=row.valid_until, data=data)


def _reverified(session: Session) -> Iterator[_Found]:
    """Outcomes that changed. A model was verified when it was indexed, before its first row."""
    r = Reverification
    mark: Any = cast(col(r.number), String)
    for kind, which in (
        ("model.unverified", col(r.outcome) != "verified"),
        ("model.verified", and_(col(r.outcome) == "verified", col(r.number) > 0)),
    ):
        changed, order = select(r).where(which), (r.attestation, r.number)
        for (row,) in _new(session, changed, kind, r.attestation, mark, *order):
            why = _short(row.why)
            yield _Found(
                kind=kind,
                subject=row.attestation,
                mark=str(row.number),
                at=row.since,
                data={"attestation": row.attestation, "outcome": row.outcome, "why": why},
            )


def _short(text: str | None) -> str | None:
    return text if text is None else text[:LONGEST_REASON]
