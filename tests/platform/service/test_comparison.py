"""The comparison of runs: what differs is found, comes first and is said; what is unknown too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from sqlalchemy import false
from sqlmodel import Session, col

from govray.platform.service.pages.comparison import ABSENT, compared_rows, lineage_difference
from govray.platform.service.visible import visible_models, visible_runs
from govray.platform.store.lineage import lineage
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import RunRow
from tests.support.library import Library, library
from tests.support.people import PAGE
from tests.support.shown import HOSTILE, ZERO, add_experiment, add_number, add_run


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """The library, with the runs of ``first`` and ``narrow`` in the index and two without."""
    with library(tmp_path_factory.mktemp("comparison")) as made:
        policy = made.model("first").policy.digest
        with Session(made.service.engine) as session:
            for name, under, width in (
                ("run-first", policy, 64),
                ("run-narrow", policy, 128),
                ("other", ZERO, 64),
                (HOSTILE, policy, 64),
            ):
                add_experiment(session, f"e-{name}", name, "train", ExperimentState.COMPLETED)
                add_run(
                    session,
                    name,
                    f"e-{name}",
                    under,
                    steps=40,
                    floor=2.0,
                    hyperparameters={"width": width, "norm": HOSTILE},
                    state=RunState.COMPLETED,
                )
                add_number(session, name, "monitor", 3, 0.5)
            session.commit()
        yield made


def page(shelf: Library, query: Any, status: int = 200, kind: str = "auditor") -> str:
    answer = shelf.service.client(kind, **PAGE).get("/compare", params=query)
    assert answer.status_code == status, answer.text[-600:]
    return answer.text


def part(text: str, name: str) -> str:
    """A section of the page as words."""
    section = text.partition(f'<h2 id="{name}"')[2].partition("</section>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", section)).split())


BOTH = {"run": ["run-first", "run-narrow"]}


def test_rows_that_differ_come_first_and_are_marked() -> None:
    rows = compared_rows([{"a": 1, "b": {"c": 2}, "same": True}, {"a": 1, "b": {"c": 3}, "x": 0}])
    assert [(row.name, row.values, row.differs) for row in rows] == [
        ("b.c", ("2", "3"), True),
        ("same", ("True", ABSENT), True),
        ("x", (ABSENT, "0"), True),
        ("a", ("1", "1"), False),
    ]
    long = "x" * 5000
    [row] = compared_rows([{"a": long}, {"a": long + "y"}])
    assert row.differs, "what is cut for the eye differs still"
    assert max(map(len, row.values)) < 400


def test_lineages_differ_where_a_corpus_reaches_a_group_in_one(shelf: Library) -> None:
    documents = [
        lineage(each.attestation, each.digest, each.replayed_by)
        for each in (shelf.model("first"), shelf.model("second"), shelf.model("narrow"))
    ]
    first, second, narrow = documents
    different, alike = lineage_difference([first, second])
    assert different == [], "more steps are no difference"
    assert alike == len(first.corpora) * len(first.groups)
    different, alike = lineage_difference([first, narrow])
    missing = {row.corpus for row in different if row.cells[1].reach == "noCorpus"}
    assert missing == {"acme", "gamma"}
    # The control: every cell is either alike, or has two ways of being reached.
    corpora = {row.corpus for each in (first, narrow) for row in each.corpora}
    groups = {group.group for each in (first, narrow) for group in each.groups}
    assert len(different) + alike == len(corpora) * len(groups)
    assert all(len({cell.reach for cell in row.cells}) > 1 for row in different)


def test_the_page_says_what_differs_in_each_part(shelf: Library) -> None:
    text = page(shelf, BOTH)
    settings = part(text, "settings")
    assert settings.index("width") < settings.index("norm")
    assert "≠ differs 64 128" in settings
    assert "acme" in part(text, "lineage")
    assert "the run did not have the corpus" in part(text, "lineage")
    assert "No difference in versions" in part(text, "environment")
    assert "All ran under" in part(text, "policies")
    [series] = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert [each["name"] for each in json.loads(series)] == BOTH["run"]


def test_what_may_not_be_read_is_not_compared_or_listed(
    shelf: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conditions of `visible` decide, of queries here too."""
    client = shelf.service.client("auditor", **PAGE)
    assert "run-first" in client.get("/runs").text  # the control
    for module in (visible_runs, visible_models):
        monkeypatch.setattr(module, "runs", lambda _: col(RunRow.id) == "run-narrow")
    monkeypatch.setattr(visible_runs, "experiments", lambda _: false())
    listed = client.get("/runs").text
    assert "run-first" not in listed
    assert "run-narrow" in listed
    assert "research" not in listed.partition("<tbody")[0], "no filter suggests what is hidden"
    page(shelf, BOTH, 404)
