"""A run in a notebook: two lines, no script, and no table for a model that does not verify."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path

import nbclient
import nbformat
import pytest

from govray.errors import GovrayError, UsageError
from govray.train import run_view
from govray.train.run_folder import events
from tests.platform.inference.conftest import Trained

ALLOWED = {"h3", "p", "figure", "figcaption", "svg", "polyline"} | {
    *("table", "caption", "thead", "tbody", "tr", "th", "td")
}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def check_quiet(html: str) -> None:
    found = Tags()
    found.feed(html)
    assert found.tags <= ALLOWED
    assert not {each for each in found.attributes if each.startswith("on")}
    assert not found.attributes & {"style", "src", "href"}


@pytest.mark.slow
def test_a_notebook_shows_a_run_in_two_lines(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.folder.parent, run)
    for step in range(3):
        losses = events.Reported(
            at="2026-11-24T09:00:00Z", attempt=0, group="training", step=step, values={"loss": 2.0}
        )
        events.append(run, losses)
    source = (
        "from govray.train import run_view\n"
        f"run_view({str(run)!r}, trust_root={str(trained.root)!r})"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    (output,) = book.cells[0].outputs
    html = output.data["text/html"]
    check_quiet(html)
    assert "training/loss" in html
    assert "<polyline" in html
    for corpus in ("acme", "embedding", "head"):
        assert corpus in html
    assert "training/loss" in output.data["text/plain"]


def test_its_table_is_the_attestations_and_stands_there_only_if_it_verifies(
    trained: Trained, tmp_path: Path
) -> None:
    view = run_view(trained.folder, trust_root=trained.root)
    assert view.model is not None
    table = view.model.coverage
    html = view._repr_html_()
    for corpus in table.corpora:
        for group in table.groups:
            if tokens := table[corpus, group].tokens:
                assert f"<td>{tokens:,}</td>" in html
    other = trained.copy(tmp_path / "model")
    next(other.glob("*.safetensors")).write_bytes(b"x")
    with pytest.raises(GovrayError):
        run_view(other, trust_root=trained.root)


def test_a_run_without_a_model_shows_its_curves_alone(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)</script>"
    shutil.copytree(trained.folder.parent, run, ignore=shutil.ignore_patterns("model"))
    name = "<img src=x onerror=alert(1)>"
    events.append(
        run,
        events.Reported(
            at="2026-11-24T09:00:00Z", attempt=0, group=name, step=1, values={"a\u202eb": 1.0}
        ),
    )
    view = run_view(str(run))
    html = view._repr_html_()
    check_quiet(html)
    assert "no attested model" in html
    assert "&lt;img" in html
    assert "\u202e" not in html + repr(view)


def test_what_is_neither_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither"):
        run_view(tmp_path)
