"""The figures of a run on its page: tables, inline drawings and pictures, and no script."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlmodel import Session

from govray.platform.service.pages.experiments import HEIGHT, WIDTH, bars, shades
from govray.platform.store.states import ExperimentState, TrialState
from govray.platform.store.tables import Experiment, Trial
from govray.train.run_folder.figures import (
    ConfusionMatrix,
    Histogram,
    PngImage,
    ReportedFigure,
    ResultTable,
)
from govray.train.run_folder.figures import keep as keep_figure
from tests.support.people import Service
from tests.support.png_file import png
from tests.support.shown import ZERO, add_experiment, add_trial

PAGE = {"accept": "text/html"}


@pytest.fixture(scope="module")
def drawn(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Service:
    storage = tmp_path_factory.mktemp("storage")
    with Session(service.engine) as session:
        add_experiment(session, "e", "gpt", "run", ExperimentState.COMPLETED)
        state = TrialState.COMPLETED
        add_trial(session, "t", "e", ZERO, steps=2, floor=2.0, hyperparameters={}, state=state)
        session.flush()
        experiment = session.get_one(Experiment, "e")
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
        return storage / session.get_one(Trial, "t").folder


def test_each_kind_is_drawn_and_escaped(drawn: Service) -> None:
    answer = drawn.client("admin", **PAGE).get("/trials/t")
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


@pytest.mark.parametrize("file", ["0" * 16 + "-000000007.json", "..%2f..%2fstate.json", "x.json"])
def test_no_other_file_is_handed_out(drawn: Service, file: str) -> None:
    answer = drawn.client("admin", **PAGE).get(f"/trials/t/figures/{file}")
    assert answer.status_code in (404, 422)


def test_bars_fill_the_drawing_and_shades_follow_the_row() -> None:
    found = bars(Histogram(edges=[0.0, 1.0, 4.0], counts=[3, 6]))
    assert [(each.x, each.width) for each in found] == [
        (0.0, WIDTH / 4),
        (WIDTH / 4, WIDTH * 3 / 4),
    ]
    assert [each.height for each in found] == [HEIGHT / 2, HEIGHT]
    assert bars(Histogram(edges=[0, 1], counts=[0]))[0].height == 0
    assert shades(ConfusionMatrix(labels=["a", "b"], counts=[[0, 6], [0, 0]])) == [[0, 6], [0, 0]]
