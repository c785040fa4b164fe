"""The script of docs/acting.md, as it stands there, against a live service."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlmodel import Session, select

from govray.platform.store import queue_entries as queue
from govray.platform.store.experiment_tags import tags_of
from govray.platform.store.states import ExperimentState, RunState
from govray.platform.store.tables import ModelVersion, QueueEntry, RunRow
from tests.support.gates import gated
from tests.support.happened import experiment
from tests.support.listening import listening
from tests.support.place import Place, place
from tests.support.runs import metric, run_row
from tests.support.tree import ROOT

__all__ = ["place"]

RUN = "run-narrow"


def script() -> str:
    (found,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/acting.md").read_text(), re.M | re.S
    )
    return str(found)


@pytest.fixture
def reconciled(place: Place) -> Iterator[None]:
    """A reconciler's place is taken: what waits becomes a run that the store has."""
    with Session(place.service.engine) as session:
        run_row(session, RUN, RunState.COMPLETED, "2026-11-24T09:00:00Z")
        session.add_all(metric(RUN, step, 3.0 - step / 10) for step in range(3))
        session.commit()
    done = Event()

    def reconcile() -> None:
        while not done.wait(0.1):
            with Session(place.service.engine) as session:
                for row in session.exec(select(QueueEntry).where(QueueEntry.user == "engineer")):
                    if tags_of(session, [row.id]) and row.state == ExperimentState.QUEUED:
                        queue.move(session, row, ExperimentState.RUNNING)
                        experiment(session, row.id)
                        session.get_one(RunRow, RUN).experiment = row.id
                        session.commit()
                    elif row.state == ExperimentState.RUNNING:
                        queue.move(session, row, ExperimentState.COMPLETED)
                        session.commit()

    thread = Thread(target=reconcile)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.slow
def test_the_script_of_the_page_does_what_the_page_says(
    place: Place, reconciled: None, tmp_path: Path
) -> None:
    text = script()
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    state = place.service.app.state
    state.settings = replace(state.settings, **gated(place.library.shelf.world, tmp_path))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.yaml").write_bytes((ROOT / "jobs" / "train.yaml").read_bytes())
    with listening(place.service.app) as address:
        done = subprocess.run(
            [sys.executable, "-c", text, "done"],
            cwd=tmp_path,
            env={
                "PYTHONPATH": str(ROOT),
                "GOVRAY_SERVER": address,
                "GOVRAY_TOKEN": place.service.tokens["engineer"],
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "COMPLETED" in done.stdout
    assert "step 2" in done.stdout
    assert (tmp_path / "attestation.dsse.json").read_bytes() == place.library.envelope("narrow")
    with Session(place.service.engine) as session:
        version = session.exec(select(ModelVersion).where(ModelVersion.version == "1.1.0")).one()
        assert (version.stage, version.user) == ("staging", "engineer")
