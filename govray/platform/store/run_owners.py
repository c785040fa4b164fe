"""Whose a run or search is, where the queue knows: its folder's name has its experiment's id.

A job writes its run's folder itself, with code of whoever submitted it. What the folder says of its
submission is a claim. The folder's name is not one: an experiment has one folder and no other, and
its id is the service's. So project and user come from the queue's own row, and from nowhere else.
"""

from __future__ import annotations

import re

from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from govray.governance.formats import canonical_json
from govray.governance.submission.register_forms import Isolation, SubmissionFacts
from govray.governance.submission.submission import MOST_TAGS
from govray.platform.store.experiment_tags import is_tag, replace_tags
from govray.platform.store.tables import ExperimentRow, QueueEntry

_LONGEST_ID = 64  # characters
RUN_KINDS = ("train", "tune")
"""The kinds of an entry that become a run or a search. All others are tasks."""


def run_name(row: QueueEntry) -> str:
    """The folder of the one run or search that an entry becomes."""
    return f"{row.name}-search-{row.id}" if row.kind == "tune" else f"{row.name}-{row.id}"


def submission_facts(row: QueueEntry, isolation: Isolation) -> SubmissionFacts:
    """What the attestor's register is told of an entry, and asked about before it starts."""
    return SubmissionFacts(
        submission=row.id,
        run=run_name(row),
        kind=row.kind,
        user=row.user,
        project=row.project,
        submitted=row.submitted,
        config=canonical_json.sha256(row.config.encode()),
        archive=row.archive,
        policy=row.policy,
        isolation=isolation,
    )


def submission_of(session: Session, name: str) -> QueueEntry | None:
    """The entry whose run or search is called ``name``; None if the queue has none."""
    dashes = [match.end() for match in re.finditer("-", name)]
    ends = [name[at:] for at in dashes if len(name) - at <= _LONGEST_ID]
    rows = session.exec(
        select(QueueEntry)
        .where(col(QueueEntry.id).in_(ends), col(QueueEntry.kind).in_(RUN_KINDS))
        .options(defer(QueueEntry.config))  # type: ignore[arg-type]
    )
    return next((row for row in rows if run_name(row) == name), None)


def settle(experiment: ExperimentRow, row: QueueEntry) -> None:
    """Make an experiment the project's and the user's that its entry in the queue says."""
    experiment.project, experiment.user = row.project, row.user


def first_tags(session: Session, experiment: ExperimentRow) -> None:
    """Give a new experiment that nobody submitted the labels of its file as tags. Once: they are
    changed there alone from then on. Not committed."""
    labels = experiment.config.get("labels")
    said = [each for each in labels if is_tag(each)] if isinstance(labels, list) else []
    replace_tags(session, experiment.id, said[:MOST_TAGS])
