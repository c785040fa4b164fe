"""What a loop reports besides numbers has bounds, and is read as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from govray.errors import UsageError
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
    one,
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


def test_names_and_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(figures.MOST_NAMES + 3):
        keep(tmp_path, reported(f"figure {number}", 1, EACH["lengths"]))
    assert len(newest(str(tmp_path))) == figures.MOST_NAMES
    first = newest(str(tmp_path))[0]
    (tmp_path / figures.FOLDER / first.file).write_text("{}")
    assert one(str(tmp_path), first.file) is None
    monkeypatch.setattr(figures, "MOST_BYTES", 10)
    assert newest(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ConfusionMatrix(labels=["a"], counts=[[1, 2]]), "a row for each label"),
        (lambda: ConfusionMatrix(labels=["a"], counts=[[-1]]), "greater than or equal to 0"),
        (lambda: ConfusionMatrix(labels=["a"] * 65, counts=[]), "at most 64 items"),
        (lambda: Histogram(edges=[0, 1], counts=[1, 2]), "one more than there are counts"),
        (lambda: Histogram(edges=[1, 1], counts=[1]), "they do not ascend"),
        (lambda: Histogram(edges=[0, float("nan")], counts=[1]), "finite number"),
        (lambda: ResultTable(columns=["a"], rows=[[1, 2]]), "a cell for each column"),
        (lambda: ResultTable(columns=["a"], rows=[], more=1), "Extra inputs"),
        (lambda: PngImage.of(b"GIF89a" + bytes(40)), "not a PNG file"),
        (lambda: PngImage.of(png(5000, 1)), "between 1 and 4096 pixels"),
        (lambda: PngImage.of(png() + bytes(figures.MOST_IMAGE_BYTES)), "larger than"),
        (lambda: PngImage(png="%%%"), "not in base64"),
    ],
)
def test_a_figure_out_of_bounds_is_named(make: Callable[[], Figure], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)
