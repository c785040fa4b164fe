"""The page of all runs: filtered, searched, sorted, all of it in the address. For staff.

A page of it is one query for the rows, and one each for the tags and the choices of the filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import ColumnElement, or_, select
from sqlmodel import col

from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Page, PageDep
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.comparison import MOST_SIDES
from govray.platform.service.pages.rendering import render
from govray.platform.service.routes.runs import RUN_ORDERS, run_order
from govray.platform.service.visible import visible_models, visible_runs
from govray.platform.store.experiment_tags import tags_of
from govray.platform.store.states import RunState
from govray.platform.store.tables import ExperimentRow, ExperimentTag, PolicyRow, RunRow

MOST_CHOICES = 200
"""Of the names that a filter suggests."""
router = APIRouter(dependencies=[needs("view")])


ORDERS = {name: name in ("started", "step") for name in RUN_ORDERS}
"""Column of the page → whether the largest comes first at the first click."""

_ANY = "|".join(("", *RunState.__members__))
_Word = Annotated[str, Query(max_length=256)]


@dataclass(frozen=True)
class RunFilter:
    """What the runs of the page have in common; an empty text is no condition."""

    named: str = ""
    state: str = ""
    project: str = ""
    user: str = ""
    policy: str = ""
    tag: str = ""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def of(self, statement: Any) -> Any:
        """The statement over runs and their experiments, with these conditions."""
        if self.named:
            statement = statement.where(
                or_(
                    col(RunRow.id).icontains(self.named, autoescape=True),
                    col(ExperimentRow.name).icontains(self.named, autoescape=True),
                    col(ExperimentRow.description).icontains(self.named, autoescape=True),
                )
            )
        if self.state:
            statement = statement.where(col(RunRow.state) == RunState(self.state))
        for column, value in (
            (ExperimentRow.project, self.project),
            (ExperimentRow.user, self.user),
        ):
            if value:
                statement = statement.where(col(column) == value)
        if self.policy:
            called = select(col(PolicyRow.digest)).where(col(PolicyRow.name) == self.policy)
            statement = statement.where(
                or_(col(RunRow.policy) == self.policy, col(RunRow.policy).in_(called))
            )
        if self.tag:
            tagged = select(col(ExperimentTag.experiment)).where(col(ExperimentTag.tag) == self.tag)
            statement = statement.where(col(RunRow.experiment).in_(tagged))
        return statement


@router.get("/runs")
def listing(
    visit: VisitDep,
    page: PageDep,
    named: Annotated[str, Query(max_length=128)] = "",
    state: Annotated[str, Query(pattern=f"^({_ANY})$")] = "",
    project: _Word = "",
    user: _Word = "",
    policy: _Word = "",
    tag: Annotated[str, Query(max_length=64)] = "",
    sort: Annotated[str, Query(pattern=f"^({'|'.join(ORDERS)})$")] = "started",
    order: Annotated[str, Query(pattern="^(up|down)?$")] = "",
) -> HTMLResponse:
    wanted = RunFilter(named, state, project, user, policy, tag)
    down = order == "down" if order else ORDERS[sort]
    rows, after = run_rows(visit, page, wanted, sort, down=down)
    return render(
        visit,
        "runs.html",
        runs=rows,
        tags=tags_of(visit.session, {row.experiment for row in rows}),
        after=after,
        wanted=wanted,
        sort=sort,
        down=down,
        downward=ORDERS,
        states=[each.value for each in RunState],
        choices=_choices(visit),
        most=MOST_SIDES,
    )


def run_rows(
    visit: Visit, page: Page, wanted: RunFilter, sort: str, *, down: bool
) -> tuple[Sequence[Any], str | None]:
    """The runs of this page, and the cursor of what follows."""
    key = run_order(sort, down=down)
    statement = wanted.of(
        select(
            col(RunRow.id),
            col(RunRow.state),
            col(RunRow.step),
            col(RunRow.max_steps),
            col(RunRow.loss),
            col(RunRow.started),
            col(RunRow.experiment),
            col(ExperimentRow.name),
            col(ExperimentRow.project),
            col(ExperimentRow.user),
            key,
        )
        .join(ExperimentRow, col(ExperimentRow.id) == col(RunRow.experiment))
        .where(visible_runs.runs(visit.caller), visible_runs.in_a_project(ExperimentRow.project))
    )
    return page.rows(visit.session, statement, [key, col(RunRow.id)], descending=down)


def _choices(visit: Visit) -> dict[str, list[str]]:
    """What the filters suggest, of what the caller may read: the first names of each."""
    readable = visible_runs.experiments(visit.caller)
    tagged = select(col(ExperimentRow.id)).where(readable)
    columns: dict[str, tuple[Any, ColumnElement[bool]]] = {
        "project": (ExperimentRow.project, readable),
        "user": (ExperimentRow.user, readable),
        "policy": (PolicyRow.name, visible_models.policies(visit.caller)),
        "tag": (ExperimentTag.tag, col(ExperimentTag.experiment).in_(tagged)),
    }
    return {
        name: list(
            visit.session.execute(
                select(col(column))
                .where(condition)
                .distinct()
                .order_by(col(column))
                .limit(MOST_CHOICES)
            ).scalars()
        )
        for name, (column, condition) in columns.items()
    }
