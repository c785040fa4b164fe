"""Curves of a run: with more numbers than a page draws they are thinned, over the whole run."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session

from govray.platform.indexing.run_rows import put_numbers
from govray.platform.service.pages.charts import curves
from govray.platform.service.pages.charts.curves import downsample
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState, RunState
from govray.train.run_folder.event_rows import MetricValue
from tests.support.shown import ZERO, add_experiment, add_run

DONE = RunState.COMPLETED


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
        add_experiment(session, "e", "gpt", "train", ExperimentState.COMPLETED)
        add_run(session, "t", "e", ZERO, steps=1, floor=1.0, hyperparameters={}, state=DONE)
        session.get_one(tables.RunRow, "t").step = 8000
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
