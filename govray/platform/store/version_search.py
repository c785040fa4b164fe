"""Versions by what their attestations state: the number they were judged by, and what reached which
layer groups.

A question is conditions on `AttestationRow`, whose derived columns and rows are all that is read.
So it costs a few look-ups by index for each version, however many corpora trained it.

What an attestation leaves open never counts as absent

* A corpus of unknown licence category may be of any. So may what a start brought, unless the run
  admitted it too.
* A start that no attestation speaks for may have read any corpus.
* A model that has no layer group of a name says nothing of one.

Ways to a group: ``direct`` is a corpus's own gradient, with any weight and in any phase, and the
weights that the run started from. ``any`` is also what came through other groups, which is usually
alike over the whole trunk (`govray.platform.store.lineage`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, func, literal, or_, select, true
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.platform.store.lineage import UNKNOWN
from govray.platform.store.tables import AttestationRow, CoverageRow, Inherited

Path = Literal["direct", "any"]

EVERY_GROUP = "*"


@dataclass(frozen=True, kw_only=True)
class VersionSearch:
    """What is asked of an attestation. An empty part asks nothing.

    Attributes:
        metric, validated_on: What its validation measured, and on which corpora, with commas
            between. What the training loop measured by itself is no validation here.
        at_least, at_most: Bounds of that number.
        assurance, isolation: One of these.
        license: A corpus of one of these categories reached one of the groups.
        without_license: No corpus of these categories reached any of the groups.
        without_corpus: None of these corpora did.
        group: A layer group, or the beginning of some before ``*``.
        path: The ways that count as reaching.
    """

    metric: str | None = None
    validated_on: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    assurance: Collection[str] = ()
    isolation: Collection[str] = ()
    license: Collection[str] = ()
    without_license: Collection[str] = ()
    without_corpus: Collection[str] = ()
    group: str = EVERY_GROUP
    path: Path = "direct"


def matching(question: VersionSearch) -> ColumnElement[bool]:
    """Condition on `AttestationRow`: those of which all that is asked holds."""
    a, q = AttestationRow, question
    wanted: list[ColumnElement[bool]] = [true()]
    if q.metric is not None:
        wanted.append(col(a.metric) == q.metric)
    if q.validated_on is not None:
        wanted.append(col(a.validated_on) == q.validated_on)
    if q.at_least is not None:
        wanted.append(col(a.value) >= q.at_least)
    if q.at_most is not None:
        wanted.append(col(a.value) <= q.at_most)
    if judged(q):
        wanted.append(col(a.validated_on) != "")
    for column, values in ((a.assurance, q.assurance), (a.isolation, q.isolation)):
        if values:
            wanted.append(col(column).in_(sorted(values)))
    if q.license:
        wanted.append(_reached(q, "category", q.license))
    if q.without_license:
        wanted.append(~_reached(q, "category", {*q.without_license, UNKNOWN}))
    if q.without_corpus:
        wanted.append(~_reached(q, "corpus", {*q.without_corpus, UNKNOWN}))
    if q.without_license or q.without_corpus or q.group != EVERY_GROUP:
        # Each corpus has a row for every group, so those of one corpus tell which there are.
        other = aliased(CoverageRow)
        of_it = col(other.attestation) == col(a.digest)
        one = select(func.min(col(other.corpus))).where(of_it).correlate(a).scalar_subquery()
        wanted.append(_row(CoverageRow, q, col(CoverageRow.corpus) == one))
    return and_(*wanted)


def judged(question: VersionSearch) -> bool:
    """Whether only what validation data judged is asked for."""
    q = question
    return any(each is not None for each in (q.metric, q.validated_on, q.at_least, q.at_most))


def score(session: Session, found: Any) -> tuple[Any, ColumnElement[bool]]:
    """What orders versions by their validation, higher being better, and which have it.

    Args:
        found: A condition on `AttestationRow`.

    Raises:
        UsageError: They were judged by several numbers, which are not compared.
    """
    a = AttestationRow
    kinds = (col(a.metric), col(a.goal), col(a.validated_on))
    has = col(a.validated_on) != ""
    rows = session.execute(select(*kinds).where(found, has).distinct().order_by(*kinds).limit(4))
    by = rows.all()
    if len(by) > 1:
        told = "; ".join(f"{each.metric} ({each.goal}) on {each.validated_on}" for each in by[:3])
        raise UsageError(
            f"they were judged by several numbers, which do not compare: {told}"
            + ("; and others" if len(by) > 3 else ""),
            where="best",
            do="Name one by metric and validatedOn",
        )
    value = -col(a.value) if by and by[0].goal == "min" else col(a.value)
    return value.label("score"), has


def _reached(q: VersionSearch, kind: Literal["category", "corpus"], named: Collection[str]) -> Any:
    """That something of these categories or names reached one of the groups."""
    c, i = CoverageRow, Inherited
    anyhow = literal(q.path == "any")
    own = or_(col(c.direct).is_(True), and_(anyhow, col(c.transitive).is_(True)))
    start = or_(col(i.start).is_(True), anyhow)
    mine, brought = (c.category, i.category) if kind == "category" else (c.corpus, i.source)
    values = sorted(named)
    return or_(_row(c, q, col(mine).in_(values), own), _row(i, q, col(brought).in_(values), start))


def _row(table: Any, q: VersionSearch, *conditions: Any) -> ColumnElement[bool]:
    """That the attestation has a row of the groups that are asked for, as it is said."""
    group, of_groups = col(table.layer_group), []
    if q.group.endswith("*"):
        start = q.group[:-1]
        # Not LIKE, which ignores case on one database and not on the other.
        of_groups = [func.substr(group, 1, len(start)) == start] if start else []
    else:
        of_groups = [group == q.group]
    here = col(table.attestation) == col(AttestationRow.digest)
    return select(group).where(here, *of_groups, *conditions).correlate(AttestationRow).exists()
