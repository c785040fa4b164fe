"""The figures of a run on its page: tables, inline drawings and pictures, and no script."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlmodel import Session

from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import ExperimentRow, RunRow
from govray.train.run_folder.figures import (
    ConfusionMatrix,
    Histogram,
    PngImage,
    ReportedFigure,
    ResultTable,
)
from govray.train.run_folder.figures import keep as keep_figure
from tests.support.people import PAGE, Service
from tests.support.png_file import png
from tests.support.shown import ZERO, add_experiment, add_run


@pytest.fixture(scope="module")
def drawn(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Service:
    storage = tmp_path_factory.mktemp("storage")
    with Session(service.engine) as session:
        add_experiment(session, "e", "gpt", "train", ExperimentState.COMPLETED)
        state = RunState.COMPLETED
        add_run(session, "t", "e", ZERO, steps=2, floor=2.0, hyperparameters={}, state=state)
        session.flush()
        experiment = session.get_one(ExperimentRow, "e")
        experiment.storage = str(storage)
        session.add(experiment)
        session.commit()
    evil = "<script>alert(1)</script>"
    for name, figure in {
        "confusion": ConfusionMatrix(labels=["cat", evil], counts=[[5, 1], [0, 4]]),
        "lengths": Histogram(edges=[0.0, 1.0, 4.0], counts=[3, 7]),
        "worst": ResultTable(columns=["row", evil], rows=[["a", 1.5]]),
        f"sample {evil}": PngImage.of(png()),
    }.items():
        value = {"name": name, "step": 7, "figure": figure}
        keep_figure(folder_of(service, storage), ReportedFigure.model_validate(value))
    return service


def folder_of(service: Service, storage: Path) -> Path:
    with Session(service.engine) as session:
        return storage / session.get_one(RunRow, "t").folder


def test_each_kind_is_drawn_and_escaped(drawn: Service) -> None:
    answer = drawn.client("admin", **PAGE).get("/runs/t")
    assert answer.status_code == 200, answer.text[:300]
    text = answer.text
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 4
    figures = text.partition('id="figures"')[2].partition('id="decisions"')[0]
    assert "<script" not in figures
    assert figures.count("<rect") == 2
    assert '<td class="heat-5">5</td>' in figures
    assert "after step 7" in figures
    [source] = [each.partition('"')[0] for each in figures.split('<img src="')[1:]]
    picture = drawn.client("admin", **PAGE).get(source)
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")
    assert picture.content == png()
