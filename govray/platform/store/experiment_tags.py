"""Tags of experiments, given with the file or later: read of many, and replaced as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from sqlalchemy import delete, select
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.governance.submission.submission import MOST_TAGS, WORD
from govray.platform.store.tables import ExperimentTag


def is_tag(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(WORD, value) is not None


def check_tags(tags: Collection[str]) -> list[str]:
    """The tags, sorted, each once."""
    found = sorted(set(tags))
    if len(found) > MOST_TAGS:
        raise UsageError(f"{len(found)} tags are more than {MOST_TAGS}", where="tags")
    for each in found:
        if not is_tag(each):
            raise UsageError(
                f"{each[:80]!r} is no tag: at most 64 letters, digits and . _ -", where="tags"
            )
    return found


def tags_of(session: Session, experiments: Collection[str]) -> dict[str, list[str]]:
    """Experiment → its tags, sorted; without those that have none. One query."""
    found: dict[str, list[str]] = {}
    rows = session.execute(
        select(col(ExperimentTag.experiment), col(ExperimentTag.tag))
        .where(col(ExperimentTag.experiment).in_(experiments))
        .order_by(col(ExperimentTag.experiment), col(ExperimentTag.tag))
    )
    for experiment, tag in rows:
        found.setdefault(experiment, []).append(tag)
    return found


def replace_tags(session: Session, experiment: str, tags: Iterable[str]) -> list[str]:
    """Give an experiment these tags and no other; not committed. Returns the tags, sorted, each
    once."""
    kept = sorted(set(tags))
    session.execute(
        delete(ExperimentTag).where(
            col(ExperimentTag.experiment) == experiment, col(ExperimentTag.tag).not_in(kept)
        )
    )
    for tag in kept:
        session.merge(ExperimentTag(experiment=experiment, tag=tag))
    session.flush()
    return kept
