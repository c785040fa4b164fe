"""Curves of a trial: with more numbers than a page draws they are thinned, and never cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert
from sqlmodel import Session

from govray.service.pages import experiments
from govray.store import tables
from govray.store.database import open_store
from govray.store.states import ExperimentState, TrialState
from tests.support.shown import ZERO, add_experiment, add_trial


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
        session.commit()
    yield made
    made.dispose()


@pytest.mark.parametrize("most", [10, 100, 1000, 100_000])
def test_every_curve_ends_where_its_numbers_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(experiments, "MOST_POINTS", most)
    with Session(engine) as session:
        lines = experiments._lines(session, "t")
    assert lines["loss", "training"][-1][0] == 999
    assert lines["loss", "validation"][-1][0] == 899
    steps = [step for step, _ in lines["loss", "training"]]
    assert steps == sorted(steps)
    assert sum(len(points) for points in lines.values()) <= 2 * most
    if most == 100:  # evenly, from the beginning to the end
        assert steps[0] < 30
        assert max(b - a for a, b in pairwise(steps)) < 30
    if most == 100_000:
        assert len(steps) == 1000
