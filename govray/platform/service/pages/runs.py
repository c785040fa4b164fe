"""The page of all runs: filtered, searched, sorted, all of it in the address. For staff.

A page of it is one query for the rows, and one each for the tags and the choices of the filters. A
run without a number, or with one that is not finite, stands last in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import ColumnElement, Row, String, case, cast, or_, select
from sqlmodel import col

from govray.platform.service.identity.pagination import Page, PageDep, foreign
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.comparison import MOST_SIDES
from govray.platform.service.pages.rendering import render
from govray.platform.service.visible import visible_models, visible_runs
from govray.platform.service.visible.readers import RUN_READERS
from govray.platform.store.experiment_tags import tags_of
from govray.platform.store.states import TrialState
from govray.platform.store.tables import Experiment, ExperimentTag, Policy, Trial

MOST_CHOICES = 200
"""Of the names that a filter suggests."""
_LARGEST = 1e308
_MOST_STEPS = 2**31

router = APIRouter(dependencies=[RUN_READERS])


@dataclass(frozen=True)
class RunOrder:
    """One way to sort runs. ``kind`` is what the key is in Python; ``down``: largest first."""

    key: Any
    kind: type
    down: bool = False


_LOSS = case((col(Trial.loss).between(-_LARGEST, _LARGEST), col(Trial.loss)))

ORDERS = {
    "started": RunOrder(col(Trial.started), str, down=True),
    "name": RunOrder(col(Trial.id), str),
    "loss": RunOrder(_LOSS, float),
    "step": RunOrder(col(Trial.step), int, down=True),
    "state": RunOrder(cast(col(Trial.state), String), str),
}
"""Column of the page → how it sorts, and which way at the first click."""

_ANY = "|".join(("", *TrialState.__members__))
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
        """The statement over trials and their experiments, with these conditions."""
        if self.named:
            statement = statement.where(
                or_(
                    col(Trial.id).icontains(self.named, autoescape=True),
                    col(Experiment.name).icontains(self.named, autoescape=True),
                )
            )
        if self.state:
            statement = statement.where(col(Trial.state) == TrialState(self.state))
        for column, value in ((Experiment.project, self.project), (Experiment.user, self.user)):
            if value:
                statement = statement.where(col(column) == value)
        if self.policy:
            called = select(col(Policy.digest)).where(col(Policy.name) == self.policy)
            statement = statement.where(
                or_(col(Trial.policy) == self.policy, col(Trial.policy).in_(called))
            )
        if self.tag:
            tagged = select(col(ExperimentTag.experiment)).where(col(ExperimentTag.tag) == self.tag)
            statement = statement.where(col(Trial.experiment).in_(tagged))
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
    down = order == "down" if order else ORDERS[sort].down
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
        downward={name: each.down for name, each in ORDERS.items()},
        states=[each.value for each in TrialState],
        choices=_choices(visit),
        most=MOST_SIDES,
    )


def run_rows(
    visit: Visit, page: Page, wanted: RunFilter, sort: str, *, down: bool
) -> tuple[Sequence[Row[Any]], str | None]:
    """The runs of this page, and the cursor of what follows."""
    order = ORDERS[sort]
    statement = wanted.of(
        select(
            col(Trial.id),
            col(Trial.state),
            col(Trial.step),
            col(Trial.max_steps),
            col(Trial.loss),
            col(Trial.started),
            col(Trial.experiment),
            col(Experiment.name),
            col(Experiment.project),
            col(Experiment.user),
            order.key.label("sorted_by"),
        )
        .join(Experiment, col(Experiment.id) == col(Trial.experiment))
        .where(visible_runs.trials(visit.caller))
    )
    key, name = order.key, col(Trial.id)
    # Two texts: canonical JSON does not tell 2.0 from 2.
    position = page.after((str, str))
    if position is not None:
        statement = statement.where(_beyond(order, down, *position))
    rows = visit.session.execute(
        statement.order_by(
            *((key.is_(None),) if order.kind is float else ()),
            key.desc() if down else key.asc(),
            name.desc() if down else name.asc(),
        ).limit(page.limit + 1)
    ).all()
    if len(rows) <= page.limit:
        return rows, None
    last = rows[page.limit - 1]
    reached = "" if last.sorted_by is None else repr(last.sorted_by)
    if order.kind is str:
        reached = last.sorted_by
    return rows[: page.limit], page.cursor([reached, last.id])


def _beyond(order: RunOrder, down: bool, reached: str, name: str) -> ColumnElement[bool]:
    """That a run comes after the one called ``name``, which was sorted by ``reached``."""
    key, id_ = order.key, col(Trial.id)
    later = id_ < name if down else id_ > name
    none: ColumnElement[bool] = key.is_(None)
    if order.kind is float and not reached:
        return none & later
    try:
        value = order.kind(reached)
    except ValueError:
        raise foreign() from None
    if order.kind is int and abs(value) > _MOST_STEPS:
        raise foreign()
    beyond: ColumnElement[bool] = or_(key < value if down else key > value, (key == value) & later)
    return beyond if order.kind is not float else or_(beyond, none)


def _choices(visit: Visit) -> dict[str, list[str]]:
    """What the filters suggest, of what the caller may read: the first names of each."""
    readable = visible_runs.experiments(visit.caller)
    tagged = select(col(Experiment.id)).where(readable)
    columns: dict[str, tuple[Any, ColumnElement[bool]]] = {
        "project": (Experiment.project, readable),
        "user": (Experiment.user, readable),
        "policy": (Policy.name, visible_models.policies(visit.caller)),
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
