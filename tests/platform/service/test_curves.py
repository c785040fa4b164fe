"""Curves of a trial: with more numbers than a page draws they are thinned, over the whole run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, insert
from sqlmodel import Session

from govray.platform.indexing.trial_rows import put_numbers
from govray.platform.service.pages.charts import curves
from govray.platform.service.pages.charts.curves import downsample
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, TrialState
from govray.train.run_folder.event_rows import MetricValue
from tests.support.shown import ZERO, add_experiment, add_trial

DONE = TrialState.COMPLETED
SPIKE, DIP = (501, 7.5), (500, -3.0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("curves")
    made = open_store(f"sqlite:///{folder / 'store.db'}", create=True)
    with Session(made) as session:
        add_experiment(session, "e", "gpt", "run", ExperimentState.COMPLETED)
        more: dict[str, object] = {}
        state = TrialState.COMPLETED
        add_trial(session, "t", "e", ZERO, steps=2, floor=2.0, hyperparameters=more, state=state)
        session.flush()
        rows = [("training", step, 1) for step in range(2, 1000)]
        rows += [("validation", step, 1) for step in range(3, 900, 7)]
        session.connection().execute(
            insert(tables.Metric),
            [
                {"trial": "t", "group": g, "name": "loss", "step": s, "attempt": a, "value": 1.0}
                for g, s, a in rows
            ],
        )
        for group, (step, value) in (("training", SPIKE), ("validation", DIP)):
            number = session.get(tables.Metric, ("t", group, "loss", step, 1))
            assert number is not None
            number.value = value
        session.commit()
    yield made
    made.dispose()


@pytest.mark.parametrize("most", [10, 100, 1000, 100_000])
def test_every_curve_has_its_ends_and_extremes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(curves, "MOST_POINTS", most)
    with Session(engine) as session:
        lines = curves.lines_of(session, "t")
    training, validation = lines["loss", "training"], lines["loss", "validation"]
    assert (training.steps, validation.steps) == (1000, 129)
    assert training.points[-1] == (999, 1.0)
    assert validation.points[-1] == (899, 1.0)
    assert SPIKE in training.points
    assert DIP in validation.points
    assert all(len(line.points) <= most for line in lines.values())
    if most == 100:  # evenly, from the beginning to the end
        assert max(b - a for (a, _), (b, _) in pairwise(training.points)) < 64
    if most >= 1000:
        assert len(training.points) == 1000
    [told, _] = curves.summaries(lines)
    assert told.steps == 1000
    [chart] = [each for each in curves.curves(lines) if each.name == "loss"]
    assert [SPIKE in each["points"] for each in chart.series] == [True, False]


@given(
    values=st.lists(st.floats(-1e6, 1e6), max_size=400),
    gaps=st.integers(1, 1000),
    most=st.integers(4, 60),
)
def test_what_is_left_out_lies_between_what_stays(
    values: list[float], gaps: int, most: int
) -> None:
    points = [(step * gaps, value) for step, value in enumerate(values)]
    kept = downsample(iter(points), most)
    assert len(kept) <= most
    if len(points) <= most:
        assert kept == points
        return
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    for end in (min, max):
        assert end(value for _, value in kept) == end(values)
    # The room is used: buckets become wider only when there are too many.
    assert len(kept) >= min(len(set(points)), most // 4)
    assert downsample(kept, most) == kept


# Seeded once: a thousand draws of hypothesis itself would take longer than what is tested.
@given(st.integers(4, 40), st.integers(1, 40), st.randoms(use_true_random=True))
def test_a_spike_stays_where_it_is(most: int, at: int, random: Random) -> None:
    points = [(step, random.random()) for step in range(1000)]
    points[at * 23] = (at * 23, 2.0)
    assert (at * 23, 2.0) in downsample(points, most)


def test_a_long_curve_is_thinned_in_little_memory() -> None:
    tracemalloc.start()
    kept = downsample(((step, float(step % 977)) for step in range(200_000)), 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) <= 100
    assert peak < 200_000


def test_a_page_reads_as_many_numbers_as_it_draws(tmp_path: Path) -> None:
    """Of a million it read each one, which took longer than a request may."""
    made = open_store(f"sqlite:///{tmp_path / 'store.db'}", create=True)

    def measured(step: int, attempt: int = 1, *, archived: bool = False) -> MetricValue:
        value = 99.0 if step == 4001 else float(step % 97)
        return MetricValue(
            group="training", name="loss", step=step, attempt=attempt, value=value,
            archived=archived,
        )  # fmt: skip

    with Session(made) as session:
        add_experiment(session, "e", "gpt", "run", ExperimentState.COMPLETED)
        add_trial(session, "t", "e", ZERO, steps=1, floor=1.0, hyperparameters={}, state=DONE)
        session.get_one(tables.Trial, "t").step = 8000
        lines: dict[str, int] = {}
        put_numbers(session, "t", [measured(step) for step in range(6000)], lines)
        again = [measured(step, archived=step >= 5000) for step in range(6000)]
        again += [measured(step, 2) for step in range(5000, 8000)]
        put_numbers(session, "t", again, lines)
        whole = curves.lines_of(session, "t")["loss", "training"]
        part = curves.line_of_each(session, ["t"], "training", "loss", first=4000, last=4100)["t"]
        names = curves.names_of(session, ["t"])
    made.dispose()
    assert 500 < whole.steps <= 1000
    assert whole.thinned
    assert whole.finer
    assert [whole.points[0], whole.points[-1]] == [(0, 0.0), (7999, float(7999 % 97))]
    assert (4001, 99.0) in whole.points
    assert part.points == [(step, measured(step).value) for step in range(4000, 4101)]
    assert not part.thinned
    assert names == [("training", "loss")]
