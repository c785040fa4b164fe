"""What the page of a search draws and measures: scatter plots, and M with its limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session

from govray.platform.service.pages.charts.search_plots import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    RunPoint,
    scatter,
)
from govray.platform.store import tables
from govray.platform.store.states import ExperimentState, RunState
from tests.support.people import PAGE, Service
from tests.support.shown import HOSTILE, ZERO, add_experiment, add_run


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(-1e3, 1e3)), min_size=2, max_size=30))
def test_points_and_the_limit_lie_within_the_drawing(pairs: list[tuple[float, float]]) -> None:
    runs = [RunPoint(f"t{n}", x, y) for n, (x, y) in enumerate(pairs)]
    plot = scatter("x", "y", [*runs, RunPoint("without", 1.0, None)], best="t0", limit=2000.0)
    assert plot is not None
    assert plot.left_out == 1
    assert len(plot.points) == len(pairs)
    for point in plot.points:
        assert LEFT <= point.x <= RIGHT
        assert TOP <= point.y <= BOTTOM
    assert plot.limit is not None
    assert plot.limit.at == pytest.approx(TOP)
    assert {point.kind for point in plot.points[1:]} <= {"plain"}
    assert plot.points[0].kind == "best"
    low = scatter("x", "y", runs, limit=-2000.0)
    assert low is not None
    assert {point.kind for point in low.points} == {"over"}


@pytest.fixture(scope="module")
def searched(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Service:
    with Session(service.engine) as session:
        for name, tau in (("limited", 1.0), ("free", ".inf")):
            add_experiment(session, name, name, "tune", ExperimentState.COMPLETED)
            session.get_one(tables.ExperimentRow, name).config = {
                "search": {"metric": "loss", "memorization": {"tau": tau}}
            }
            for number in range(8):
                run = f"{name}-{number}"
                add_run(
                    session,
                    run,
                    name,
                    ZERO,
                    steps=2,
                    floor=float(number),
                    hyperparameters={"lr": 10.0**-number, HOSTILE: "ab"[number % 2]},
                    state=RunState.COMPLETED,
                )
                for step, value in ((0, 9.0), (1, number / 4)):
                    session.add(
                        tables.MetricRow(
                            run=run,
                            group="search",
                            name="memorization",
                            step=step,
                            attempt=0,
                            value=value,
                        )
                    )
        session.commit()
    return service


def test_the_page_of_a_search_has_all_of_it(searched: Service) -> None:
    client = searched.client("engineer", **PAGE)
    text = client.get("/experiments/limited").text
    assert "limit 1" in text
    # The last M of each counts: three of eight lie above the limit, none by the first.
    assert text.count('class="point over"') == 3
    assert "<script>window" not in text
    chosen = client.get("/experiments/limited", params={"x": HOSTILE}).text
    assert "<script>window" not in chosen
    assert "selected" in chosen.partition('id="x"')[2].partition("</select>")[0]
    free = client.get("/experiments/free").text
    assert "The search has no limit of M" in free
    assert 'class="point over"' not in free
