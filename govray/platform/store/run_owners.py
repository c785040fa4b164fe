"""Whose a run or search is, where the queue knows: its folder's name is that of one submission.

A job writes its run's folder itself, with code of whoever submitted it. What the folder says of its
submission is a claim. Its name is none: a submission becomes one run and no other, and its id is
the service's. So project and user come from the queue's own row, and from nowhere else.
"""

from __future__ import annotations

import re

from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from govray.governance.formats import canonical_json
from govray.governance.submission.register_forms import Isolation, SubmissionFacts
from govray.platform.store.experiment_tags import MOST_TAGS, is_tag, replace_tags
from govray.platform.store.tables import Experiment, Submission

_LONGEST_ID = 64  # characters
RUN_KINDS = ("train", "tune")
"""The kinds of submission that become a run or a search. All others are tasks."""


def run_name(row: Submission) -> str:
    """The folder of the one run or search that a submission becomes."""
    return f"{row.name}-search-{row.id}" if row.kind == "tune" else f"{row.name}-{row.id}"


def submission_facts(row: Submission, isolation: Isolation) -> SubmissionFacts:
    """What the attestor's register is told of a submission, and asked about before it starts."""
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


def submission_of(session: Session, name: str) -> Submission | None:
    """The submission whose run or search is called ``name``; None if the queue has none."""
    dashes = [match.end() for match in re.finditer("-", name)]
    ends = [name[at:] for at in dashes if len(name) - at <= _LONGEST_ID]
    rows = session.exec(
        select(Submission)
        .where(col(Submission.id).in_(ends), col(Submission.kind).in_(RUN_KINDS))
        .options(defer(Submission.config))  # type: ignore[arg-type]
    )
    return next((row for row in rows if run_name(row) == name), None)


def submitted_runs(session: Session) -> dict[str, Submission]:
    """The name of each run or search that was submitted → its submission. One query."""
    rows = session.exec(
        select(Submission)
        .where(col(Submission.kind).in_(RUN_KINDS))
        .options(defer(Submission.config))  # type: ignore[arg-type]
    )
    return {run_name(row): row for row in rows}


def settle(experiment: Experiment, row: Submission) -> None:
    """Make an experiment the project's and the user's that its submission says, and name it there.
    A row that is read from another store is left as it is."""
    experiment.project, experiment.user = row.project, row.user
    if row.run is None:
        row.run = experiment.id


def first_tags(session: Session, experiment: Experiment, row: Submission | None) -> None:
    """Give a new experiment the tags of its submission; of one that nobody submitted, the labels of
    its file. Once: they are changed there alone from then on. Not committed."""
    labels = experiment.config.get("labels")
    said = [each for each in labels if is_tag(each)] if isinstance(labels, list) else []
    replace_tags(session, experiment.id, said[:MOST_TAGS] if row is None else row.tags)
