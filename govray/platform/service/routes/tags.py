"""``/v1/experiments/{experiment}/tags``: words that people put on experiments, to find them by.

A tag says nothing about what a run did: no signed record has it. Staff reads them, engineers and
admins write them, with an entry in the audit log.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field
from sqlmodel import Session

from govray.governance.formats.document import format_time
from govray.platform.service.http.answer import Answer
from govray.platform.service.http.problems import Problem
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import AuditDep, CallerDep, require
from govray.platform.service.identity.audit_log import Audit
from govray.platform.service.identity.caller import Caller, Role
from govray.platform.service.identity.roles import may
from govray.platform.service.routes.experiments import KnownExperiment
from govray.platform.service.visible.visibility import RUN_READERS, reads_runs
from govray.platform.store import tables
from govray.platform.store.database import begin_writing
from govray.platform.store.experiment_tags import MOST_TAGS, TAG, replace_tags, tags_of

router = APIRouter(tags=["experiments"], dependencies=[RUN_READERS])

TAGGING: tuple[Role, ...] = ("admin", "engineer")
"""The roles that put tags on experiments, with a token of the scope ``write``."""

TAGGERS = Depends(require(*TAGGING, scope="write", bound=reads_runs))
"""What a route demands beside `check_tagging`."""


def may_tag(session: Session, caller: Caller, experiment: tables.Experiment) -> bool:
    """Whether the caller may put tags on the experiment: who may submit in its project."""
    project = session.get(tables.Project, experiment.project)
    return may(caller, "submit", project, at=format_time(datetime.now(UTC)))


def check_tagging(session: Session, caller: Caller, experiment: tables.Experiment) -> None:
    """Return if the caller may put tags on the experiment."""
    if not may_tag(session, caller, experiment):
        raise Problem(
            403,
            "Not allowed",
            f"Your role in the project {experiment.project} puts no tags on its experiments",
            "Ask for the role engineer there, or use a token with the scope write",
        )


Tag = Annotated[str, Field(pattern=TAG)]


class ExperimentTags(Answer):
    """The tags of one experiment."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] = Field(
        description=f"All of them, at most {MOST_TAGS}. A tag is up to 64 letters, digits, . _ -."
    )


@router.get("/experiments/{experiment}/tags")
def tags(known: KnownExperiment, session: SessionDep) -> ExperimentTags:
    """The tags of an experiment, sorted."""
    return ExperimentTags(tags=tags_of(session, [known.id]).get(known.id, []))


@router.put("/experiments/{experiment}/tags", dependencies=[TAGGERS])
def put_tags(
    given: ExperimentTags,
    known: KnownExperiment,
    session: SessionDep,
    caller: CallerDep,
    audit: AuditDep,
) -> ExperimentTags:
    """Replace the tags of an experiment. An empty list removes them."""
    check_tagging(session, caller, known)
    return ExperimentTags(tags=tag(session, audit, known.id, given.tags))


def tag(session: Session, audit: Audit, experiment: str, tags: list[str]) -> list[str]:
    """Replace an experiment's tags, with an entry in the audit log, and commit."""
    begin_writing(session)
    kept = replace_tags(session, experiment, tags)
    audit.write(session, "experiment.tag", experiment, {"tags": " ".join(kept)})
    session.commit()
    return kept
