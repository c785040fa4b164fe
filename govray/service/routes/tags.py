"""``/v1/experiments/{experiment}/tags``: words that people put on experiments, to find them by.

A tag says nothing about what a run did: no signed record has it. Staff reads them, engineers and
admins write them, with an entry in the audit log.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field
from sqlmodel import Session

from govray.service.access import AuditDep, require
from govray.service.answer import Answer
from govray.service.audit_log import Audit
from govray.service.caller import Role
from govray.service.routes.experiments import KnownExperiment
from govray.service.session import SessionDep
from govray.service.visibility import RUN_READERS
from govray.store.database import begin_writing
from govray.store.experiment_tags import MOST_TAGS, TAG, replace_tags, tags_of

router = APIRouter(tags=["experiments"], dependencies=[RUN_READERS])

TAGGING: tuple[Role, ...] = ("admin", "engineer")
"""The roles that put tags on experiments, with a token of the scope ``write``."""

TAGGERS = Depends(require(*TAGGING, scope="write"))

Tag = Annotated[str, Field(pattern=TAG)]


class Tags(Answer):
    """The tags of one experiment."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tags": ["baseline", "paper"]}]}
    )

    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] = Field(
        description=f"All of them, at most {MOST_TAGS}. A tag is up to 64 letters, digits, . _ -."
    )


@router.get("/experiments/{experiment}/tags")
def tags(known: KnownExperiment, session: SessionDep) -> Tags:
    """The tags of an experiment, sorted."""
    return Tags(tags=tags_of(session, [known.id]).get(known.id, []))


@router.put("/experiments/{experiment}/tags", dependencies=[TAGGERS])
def put_tags(given: Tags, known: KnownExperiment, session: SessionDep, audit: AuditDep) -> Tags:
    """Replace the tags of an experiment. An empty list removes them."""
    return Tags(tags=tag(session, audit, known.id, given.tags))


def tag(session: Session, audit: Audit, experiment: str, tags: list[str]) -> list[str]:
    """Replace an experiment's tags, with an entry in the audit log, and commit."""
    begin_writing(session)
    kept = replace_tags(session, experiment, tags)
    audit.write(session, "experiment.tag", experiment, {"tags": " ".join(kept)})
    session.commit()
    return kept
