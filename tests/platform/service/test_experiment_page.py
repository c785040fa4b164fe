"""What people look for on the page of an experiment, and the verdict beside a model's name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import true
from sqlmodel import Session

from govray.governance.verify.verifier import VerifiedModel
from govray.platform.service.routes import runs as routes
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import Reverification
from tests.support.happened import AT, decision, experiment, run_row
from tests.support.people import PAGE, Service, serve_models
from tests.support.shown import add_number
from tests.support.world import World

RUN = "run-plain"


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def model(world: World, tmp_path_factory: pytest.TempPathFactory) -> VerifiedModel:
    return world.verify(world.deploy(tmp_path_factory.mktemp("model") / "model", run=RUN))


@pytest.fixture(scope="module")
def service(
    world: World, model: VerifiedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("store")
    with serve_models(folder, world.root, [model]) as served:
        fill(served, folder)
        yield served


def fill(service: Service, folder: Path) -> None:
    """An experiment of one run and its replay, and a search of nine runs."""
    with Session(service.engine) as session:
        done = RunState.COMPLETED
        experiment(session, RUN, storage=str(folder), state=ExperimentState.COMPLETED)
        run_row(session, RUN, done, experiment=RUN, loss=2.0)
        run_row(session, "replayed", done, experiment=RUN, loss=1.0, replay_of=RUN)
        for step, loss in enumerate((3.5, 2.0)):
            add_number(session, RUN, "training", step, loss)
            add_number(session, "replayed", "training", step, loss)
        add_number(session, RUN, "validation", 1, 2.25)
        for source in ("events", "ledger"):
            decision(session, RUN, 0, "gate", source=source, reason=f"by the {source}")
        decision(session, RUN, 1, "restart", corpus=None, reason="a worker ended")
        experiment(session, "search", kind="tune", state=ExperimentState.COMPLETED)
        for number in range(9):
            name = f"t{number}"
            loss = float("nan") if number == 3 else 9.0 - number
            run_row(session, name, done, experiment="search", loss=loss)
            add_number(session, name, "training", 0, 9.0 - number)
        session.commit()
    (folder / RUN / "logs").mkdir(parents=True)
    text = "".join(f"step {n}\n" for n in range(30)) + "RuntimeError: no memory\n"
    (folder / RUN / "logs" / "rank-0-1.log").write_text(text)


def shown(service: Service, path: str, kind: str = "engineer") -> str:
    answer = service.client(kind, **PAGE).get(path)
    assert answer.status_code == 200, answer.text[:300]
    return answer.text.partition("<main")[2]


def test_it_has_its_model_its_loss_and_the_end_of_its_log(
    service: Service, model: VerifiedModel
) -> None:
    page = shown(service, f"/experiments/{RUN}")
    assert f'href="/attestations/{model.digest.removeprefix("sha256:")}"' in page
    assert "</span>VERIFIED</span>" in page
    [series] = re.findall(r'<script type="application/json">(.*?)</script>', page)
    drawn = [(each["name"], each["points"]) for each in json.loads(series)]
    assert drawn == [("training", [[0, 3.5], [1, 2.0]]), ("validation", [[1, 2.25]])]
    assert "step 29<" in page
    assert "step 9<" not in page  # the last twenty lines
    assert '<div class="log-line bad">RuntimeError' in page
    assert f'href="/runs/{RUN}/logs"' in page


def test_of_a_search_the_runs_of_least_loss_are_drawn(service: Service) -> None:
    page = shown(service, "/experiments/search")
    [series] = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert [each["name"] for each in json.loads(series)] == [
        f"t{n}" for n in (8, 7, 6, 5, 4, 2, 1, 0)
    ]
    assert "Of the 8 runs of 9" in page
    assert "None that verified is in this service" in page


def test_what_deletes_is_no_button_and_comes_last(service: Service) -> None:
    for path in (f"/experiments/{RUN}", f"/runs/{RUN}"):
        page = shown(service, path, "admin")
        before, link, behind = page.partition('<a href="?ask=delete">')
        assert link
        assert "<h2" in before
        assert "<section" not in behind
        asked = shown(service, f"{path}?ask=delete", "admin")
        assert 'class="danger">Delete it' in asked.partition("</section>")[0]
        assert "?ask=delete" not in asked


def test_a_gate_is_told_once_by_the_signed_ledger(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reasons() -> list[str]:
        told = service.client("engineer").get(f"/v1/runs/{RUN}/decisions").json()["items"]
        return [each["reason"] for each in told]

    assert reasons() == ["a worker ended", "by the ledger"]
    with monkeypatch.context() as patch:
        patch.setattr(routes, "told_once", true)
        assert len(reasons()) == 3  # the control
    for path in (f"/experiments/{RUN}", f"/runs/{RUN}"):
        page = shown(service, path)
        assert page.count("<strong>gate</strong>") == 1
        assert "by the ledger" in page
        assert "a worker ended" in page


def test_a_model_that_failed_since_is_refused_beside_its_name(
    service: Service, model: VerifiedModel
) -> None:
    path = f"/attestations/{model.digest.removeprefix('sha256:')}"

    for outcome, word in (
        ("verified", "VERIFIED"),
        ("failed", "REFUSED"),
        ("could not check", "NOT CHECKED"),
    ):
        with Session(service.engine) as session:
            row = Reverification(
                attestation=model.digest, number=0, outcome=outcome, why="W", since=AT, checked=AT
            )
            session.merge(row)
            session.commit()
        page = shown(service, path)
        head = page.partition("<h1>")[2].partition("</header>")[0]
        assert f"</span>{word}</span>" in head
        assert f"</span>{word}</span>" in shown(service, "/models")
        assert (">W<" in head) == (word != "VERIFIED")
        assert ("It verified against the trust root" in page) == (word == "VERIFIED")
