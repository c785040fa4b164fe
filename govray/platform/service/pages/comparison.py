"""The page that compares runs, and versions of models by the runs that they come of. For staff.

Curves over each other; settings, policies, lineages and environments as far as they differ. What
only an attestation states, its lineage and its environment, a run without one does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlmodel import Session, col

from govray.governance.attestation.environment import flat
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.policy.depth_policy import Policy
from govray.platform.service.http.problems import Problem, not_found, unprocessable
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.charts.curves import (
    MOST_POINTS,
    ChartView,
    Curve,
    ViewDep,
    line_of_each,
    names_of,
)
from govray.platform.service.pages.rendering import digest, render
from govray.platform.service.pages.shared_queries import version_href
from govray.platform.service.routes.policies import ChangeAnswer, difference, stack
from govray.platform.service.visible import visible_models, visible_runs
from govray.platform.service.visible.visible_models import (
    find_lineage,
    find_policy,
    find_version,
    find_whole_attestation,
    policy_document,
)
from govray.platform.store.lineage import Lineage
from govray.platform.store.tables import AttestationRow, ExperimentRow, RunRow

MOST_COMPARED = 3
"""Policies that are compared with the first; each comparison takes time."""
MOST_CHANGES = 60
BLOCKS = 4


@dataclass(frozen=True)
class PolicyDifference:
    """How one policy differs from the first, over ``groups``. ``why_not`` says why they could not
    be compared."""

    before_digest: str
    after_digest: str
    before: str
    after: str
    groups: tuple[str, ...] = ()
    changes: tuple[ChangeAnswer, ...] = ()
    more: bool = False
    why_not: str | None = None


def policy_differences(visit: Visit, sides: Sequence[tuple[str, Lineage | None]]) -> dict[str, Any]:
    """The policies of some runs, as far as the caller may read them. Their names, how they differ
    from the first, and how many were not compared. ``sides``: the digest of each run's policy,
    empty if unknown, and its lineage if it has one."""
    lineages = {digest: lineage for digest, lineage in reversed(sides) if digest}
    first, *others = list(dict.fromkeys(digest for digest, _ in sides if digest)) or [""]
    documents = {digest: readable_policy(visit, digest) for digest in lineages}
    compared = [
        _difference(first, documents.get(first), other, documents[other], lineages[other])
        for other in others[:MOST_COMPARED]
    ]
    names = [str(documents.get(digest) or digest or "not known") for digest, _ in sides]
    left_out = max(len(others) - MOST_COMPARED, 0)
    return {"names": names, "differences": compared, "left_out": left_out}


def readable_policy(visit: Visit, digest: str) -> Policy | None:
    """The signed policy, if the index has it and the caller may read it."""
    try:
        return policy_document(find_policy(visit.session, visit.caller, digest))
    except Problem:
        return None


def _difference(
    first: str, before: Policy | None, other: str, after: Policy | None, lineage: Lineage | None
) -> PolicyDifference:
    named = (first, other, str(before or first), str(after or other))
    if before is None or after is None:
        missing = first if before is None else other
        why = f"The index does not have the signed policy {missing}: no model under it is indexed."
        return PolicyDifference(*named, why_not=why)
    groups = (
        tuple(each.group for each in lineage.groups if each.kind == "base")
        if lineage is not None
        else stack(after, BLOCKS)
    )
    try:
        found = difference(before, after, groups)
    except Problem as problem:
        return PolicyDifference(*named, groups, why_not=f"{problem.detail}.")
    more = found.more or len(found.changes) > MOST_CHANGES
    return PolicyDifference(*named, groups, tuple(found.changes[:MOST_CHANGES]), more)


Reach = Literal["direct", "transitive", "none", "noCorpus", "noGroup"]

WORDS: dict[Reach, str] = {
    "direct": "trained it",
    "transitive": "reached it through other layers only",
    "none": "did not reach it",
    "noCorpus": "the run did not have the corpus",
    "noGroup": "the model does not have the group",
}


@dataclass(frozen=True)
class ComparedCell:
    """What one model has in one cell. ``tokens`` are those that trained the group."""

    reach: Reach
    tokens: int = 0

    @property
    def words(self) -> str:
        return WORDS[self.reach]


@dataclass(frozen=True)
class DifferentCell:
    """A cell in which the models differ, with what each has there."""

    corpus: str
    group: str
    cells: tuple[ComparedCell, ...]


def lineage_difference(documents: Sequence[Lineage]) -> tuple[list[DifferentCell], int]:
    """The cells in which the lineages differ, and how many cells are alike in all."""
    corpora = sorted({row.corpus for each in documents for row in each.corpora})
    groups = list(dict.fromkeys(group.group for each in documents for group in each.groups))
    tables = [_cells(each) for each in documents]
    different, alike = [], 0
    for corpus in corpora:
        for group in groups:
            cells = tuple(_cell(table, corpus, group) for table in tables)
            if len({cell.reach for cell in cells}) > 1:
                different.append(DifferentCell(corpus, group, cells))
            else:
                alike += 1
    return different, alike


_Table = tuple[frozenset[str], dict[tuple[str, str], ComparedCell]]


def _cells(document: Lineage) -> _Table:
    found = {
        (row.corpus, cell.group): ComparedCell(
            "direct" if cell.direct else "transitive" if cell.transitive else "none", cell.tokens
        )
        for row in document.corpora
        for cell in row.cells
    }
    return frozenset(row.corpus for row in document.corpora), found


def _cell(table: _Table, corpus: str, group: str) -> ComparedCell:
    corpora, cells = table
    if corpus not in corpora:
        return ComparedCell("noCorpus")
    return cells.get((corpus, group), ComparedCell("noGroup"))


ABSENT = "–"
MOST_ROWS = 200
"""Of one table."""
_LONGEST = 300


@dataclass(frozen=True)
class ComparedRow:
    """One setting: its value in each run as text, `ABSENT` where a run has none."""

    name: str
    values: tuple[str, ...]
    differs: bool


def compared_rows(settings: Sequence[Mapping[str, Any]]) -> list[ComparedRow]:
    """A row for each name that any of ``settings`` has; nested ones by dotted names."""
    columns = [flat(each) for each in settings]
    names = sorted({name for column in columns for name in column})
    rows = [
        ComparedRow(
            name,
            tuple(shortened(column[name]) if name in column else ABSENT for column in columns),
            # By the whole text: what is cut for the eye may still differ.
            len({column.get(name) for column in columns}) > 1,
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: not row.differs)


def shortened(text: str) -> str:
    if text.startswith("sha256:"):
        return digest(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


MOST_SIDES = 8
FEWEST_SIDES = 2
LONGEST_NAME = 400

router = APIRouter(dependencies=[needs("view")])

_Named = Annotated[list[str], Query(max_length=200)]


@dataclass(frozen=True)
class ComparedRun:
    """One of what is compared: a run, or a version by its attestation's run.

    ``run`` and ``experiment`` are there if the run is indexed, ``attestation`` and ``lineage`` if
    it is attested. ``field`` is the address's parameter that names it.
    """

    field: str
    name: str
    label: str
    href: str
    run: RunRow | None
    experiment: ExperimentRow | None
    attestation: AttestationRow | None
    lineage: Lineage | None

    @property
    def policy(self) -> str:
        if self.attestation is not None:
            return self.attestation.policy
        return self.run.policy if self.run is not None else ""


@router.get("/compare")
def compare(
    visit: VisitDep,
    view: ViewDep,
    run: _Named = [],  # noqa: B006 - FastAPI copies it
    version: _Named = [],  # noqa: B006
    metric: Annotated[str, Query(max_length=200)] = "",
    group: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    named = [
        (field, name)
        for field, names in (("run", run), ("version", version))
        for name in dict.fromkeys(names)
        if name
    ]
    if len(named) > MOST_SIDES:
        raise Problem(
            422,
            "Too many to compare",
            f"{len(named)} were named, and a page compares at most {MOST_SIDES}",
            "Go back and tick fewer",
        )
    if any(len(name) > LONGEST_NAME for _, name in named):
        raise unprocessable(
            f"query: a name has at most {LONGEST_NAME} characters",
            "Choose runs in the list of runs",
        )
    sides = _sides(visit, named)
    if len(sides) < FEWEST_SIDES:
        return render(visit, "compare_choose.html", sides=sides, most=MOST_SIDES)
    lineages = [each for each in sides if each.lineage is not None]
    found, alike = lineage_difference([s.lineage for s in lineages if s.lineage is not None])
    attested = [each for each in sides if each.attestation is not None]
    indexed = [each for each in sides if each.run is not None]
    return render(
        visit,
        "compare.html",
        sides=sides,
        left_out=[
            f"/compare?{urlencode([side for side in named if side != (each.field, each.name)])}"
            for each in sides
        ],
        most=MOST_SIDES,
        view=view,
        **_curves(visit.session, sides, view, metric, group),
        whole=f"/compare?{urlencode([*named, ('metric', metric), ('group', group)])}",
        indexed=indexed,
        settings=compared_rows([_settings(each.run) for each in indexed if each.run]),
        configured=_configured(indexed),
        most_rows=MOST_ROWS,
        policies=policy_differences(visit, [(s.policy, s.lineage) for s in sides]),
        lineages=lineages,
        different=found[:MOST_ROWS],
        further=max(len(found) - MOST_ROWS, 0),
        alike=alike,
        attested=attested,
        environment=compared_rows([_environment(each.attestation) for each in attested]),
    )


def _sides(visit: Visit, named: Sequence[tuple[str, str]]) -> list[ComparedRun]:
    visitor = visit.session, visit.caller
    by_version = {
        name: find_whole_attestation(*visitor, find_version(*visitor, *_split(name)).attestation)
        for field, name in named
        if field == "version"
    }
    which = {name for field, name in named if field == "run"}
    which |= {row.run for row in by_version.values()}
    runs = {
        row.RunRow.id: row
        for row in visit.session.execute(
            select(RunRow, ExperimentRow)
            .join(ExperimentRow, col(ExperimentRow.id) == col(RunRow.experiment))
            .where(col(RunRow.id).in_(which), visible_runs.runs(visit.caller))
        )
    }
    # Of several attestations of a run, the one that was finished last.
    attested = {
        row.run: row
        for row in visit.session.execute(
            select(AttestationRow)
            .where(
                col(AttestationRow.run).in_(which), visible_models.whole_attestations(visit.caller)
            )
            .order_by(col(AttestationRow.finished), col(AttestationRow.digest))
        ).scalars()
    }
    found = []
    for field, name in named:
        row = by_version[name] if field == "version" else attested.get(name)
        of_run = runs.get(row.run if field == "version" and row else name)
        if field == "run" and of_run is None:
            raise not_found("run", name, "See the list of runs")
        found.append(
            ComparedRun(
                field=field,
                name=name,
                label=" ".join(_split(name)) if field == "version" else name,
                href=_href(field, name),
                run=of_run.RunRow if of_run else None,
                experiment=of_run.ExperimentRow if of_run else None,
                attestation=row,
                lineage=find_lineage(visit.session, visit.caller, row, ("attestation", row.digest))
                if row
                else None,
            )
        )
    return found


def _split(version: str) -> tuple[str, str]:
    """``NAME/1.2.0`` in its parts; a name may have a slash too."""
    model, _, number = version.rpartition("/")
    return model, number


def _href(field: str, name: str) -> str:
    if field == "version":
        return version_href(*_split(name))
    return f"/runs/{quote(name, safe='')}"


def _curves(
    session: Session, sides: Sequence[ComparedRun], view: ChartView, metric: str, group: str
) -> dict[str, Any]:
    runs = {each.run.id for each in sides if each.run is not None}
    names = names_of(session, runs)
    if not metric and not group:
        group, metric = ("training", "loss") if ("training", "loss") in names else ("", "")
        if not metric and names:
            group, metric = names[0]
    elif not (metric and group):  # one was chosen: the first that goes with it
        of = [each for each in names if metric in ("", each[1]) and group in ("", each[0])]
        group, metric = of[0] if of else (group, metric)
    lines = line_of_each(session, runs, group, metric, first=view.first, last=view.last)
    drawn = [(each, lines[each.run.id]) for each in sides if each.run and each.run.id in lines]
    series = [{"name": each.label, "points": line.points} for each, line in drawn]
    return {
        "metric": metric,
        "group": group,
        "metrics": sorted({name for _, name in names} | ({metric} if metric else set())),
        "groups": sorted({each for each, _ in names} | ({group} if group else set())),
        "chart": Curve(metric, f"{metric}, {group}", series) if series else None,
        "numbers": drawn,
        "undrawn": [each for each in sides if each.run is None or each.run.id not in lines],
        "thinned": any(line.thinned for _, line in drawn),
        "most_points": MOST_POINTS,
    }


def _settings(run: RunRow) -> dict[str, Any]:
    return dict(run.hyperparameters) | {
        "steps planned": run.max_steps,
        "workers": run.world_size,
        "code": run.code,
    }


def _configured(sides: Sequence[ComparedRun]) -> list[ComparedRow]:
    """The rest of what was asked for, where it differs."""
    rows = compared_rows([each.experiment.config if each.experiment else {} for each in sides])
    return [row for row in rows if row.differs]


def _environment(row: AttestationRow | None) -> dict[str, Any]:
    """The environment that a stored attestation states; the rest of it is not read again."""
    if row is None:
        return {}
    payload = Envelope.parse(row.envelope, where="attestation").payload
    statement: Any = canonical_json.parse(payload)
    return dict(statement["predicate"]["environment"])
