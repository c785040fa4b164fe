"""What a loop reports besides numbers has bounds, and is read as it was written."""

from __future__ import annotations

from pathlib import Path

from govray.train.run_folder import figures
from govray.train.run_folder.figures import (
    ConfusionMatrix,
    Figure,
    Histogram,
    PngImage,
    ReportedFigure,
    ResultTable,
    keep,
    newest,
)
from tests.support.png_file import png

EACH: dict[str, Figure] = {
    "confusion": ConfusionMatrix(labels=["cat", "dog"], counts=[[5, 1], [0, 4]]),
    "lengths": Histogram(edges=[0.0, 1.0, 4.0], counts=[3, 7]),
    "worst": ResultTable(columns=["row", "loss"], rows=[["a", 1.5], ["b", 2]]),
    "sample": PngImage.of(png()),
}


def reported(name: str, step: int, figure: Figure) -> ReportedFigure:
    return ReportedFigure.model_validate({"name": name, "step": step, "figure": figure})


def test_the_newest_of_each_name_is_read_and_old_ones_go(tmp_path: Path) -> None:
    for step in range(figures.KEPT + 4):
        for name, figure in EACH.items():
            keep(tmp_path, reported(name, step, figure))
    found = newest(str(tmp_path))
    assert [each.name for each in found] == sorted(EACH)
    assert {each.name: each.figure for each in found} == EACH
    assert {each.step for each in found} == {figures.KEPT + 3}
    assert len(list((tmp_path / figures.FOLDER).iterdir())) == figures.KEPT * len(EACH)
    assert newest(str(tmp_path / "elsewhere")) == []
