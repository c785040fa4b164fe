"""A store that every page has something to show of, and the names of what stands in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine
from sqlmodel import Session

from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store import tables
from govray.platform.store.model_index import index_model
from govray.platform.store.states import CheckpointState, ExperimentState, RunState
from govray.platform.store.store_secret import load_key
from govray.platform.store.tile_storage import tile_folder
from govray.platform.store.tiles import write_tiles
from tests.support.happened import ZERO, decision, experiment, run_row
from tests.support.monitored_world import Monitored, from_step
from tests.support.queue_shown import add_hostile_entries, add_queue
from tests.support.shelf_of_models import made_once
from tests.support.world import FINISHED, STARTED, World

HOSTILE = "<script>window.hacked = 1</script>\"'><img src=x onerror=hacked=1> " + "long" * 40
SEARCH, LIVE = "search-1", "run-live"
RECORD = "alpha/0/0"
"""The text of a record of the corpus alpha, which is public."""


@dataclass(frozen=True)
class Shown:
    """Digests of attestations, the trust root of the first, and where its folder lies.

    ``entry`` is the hostile submission, if there is one.
    """

    root: bytes
    first: str
    monitored: str
    hostile: str
    folder: Path
    entry: str = ""


def fill(engine: Engine, url: str, folder: Path, *, hostile_too: bool = True) -> Shown:
    """Write everything, and commit; for pictures, without what has hostile names."""
    key = load_key(url)
    shelf = made_once()
    world = Monitored(deviations=from_step("alpha", 6))
    monitored = world.verify(world.run(folder / "monitored", run="run-monitored"), at=None)
    other = World(name="another-org")
    path = other.deploy(folder / "hostile", run="run-hostile", attestation=_hostile)
    hostile = other.verify(path, at=None)
    first = shelf.verified("first")
    with Session(engine) as session:
        secrets = shelf.world.secrets
        index(session, first, shelf.root, key, folder, public=True, secrets=secrets)
        index(session, monitored, world.root, key, folder, secrets=world.secrets)
        add_version(session, "python-source-gpt", first.digest)
        add_experiments(session, first.policy.digest)
        add_queue(session)
        add_attested_runs(session, first, monitored)
        entry = add_hostile_entries(session, HOSTILE) if hostile_too else ""
        if hostile_too:
            index(session, hostile, other.root, key, folder, secrets=other.secrets)
            add_version(session, HOSTILE, hostile.digest)
            add_hostile_run(session, hostile.policy.digest)
        session.commit()
    return Shown(shelf.root, first.digest, monitored.digest, hostile.digest, first.path, entry)


def _hostile(made: Attestation) -> Attestation:
    return made.model_copy(update={"run": made.run.model_copy(update={"name": HOSTILE})})


def index(
    session: Session,
    model: VerifiedModel,
    root: bytes,
    key: bytes,
    folder: Path,
    *,
    public: bool = False,
    secrets: Mapping[str, bytes] | None = None,
) -> None:
    """A model and the tiles of its ledger, which are written below ``folder``."""
    tiles = folder / f"tiles-{model.digest[7:19]}"
    lines = model.ledger.data.split(b"\n")[:-1]
    note = (model.path / model_folder.CHECKPOINT).read_bytes()
    write_tiles(tile_folder(str(tiles)), lines, note)
    index_model(
        session,
        model,
        trust_root=root,
        key=key,
        public=public,
        folder=str(model.path),
        tiles=str(tiles),
        secrets=secrets,
    )


def add_version(session: Session, name: str, attestation: str) -> None:
    session.add(
        tables.ModelRow(name=name, description=name, labels={}, created=STARTED, user="somebody")
    )
    session.flush()
    session.add(
        tables.ModelVersion(
            model=name,
            version="1.2.0",
            major=1,
            minor=2,
            patch=0,
            attestation=attestation,
            stage="staging",
            labels={},
            notes=f"Trained for {name}",
            created=FINISHED,
            user="somebody",
        )
    )


def add_experiments(session: Session, policy: str) -> None:
    """A search that ended, and a run that goes on."""
    add_experiment(session, SEARCH, "learning-rate-search", "tune", ExperimentState.COMPLETED)
    add_experiment(session, LIVE, "python-source-gpt", "train", ExperimentState.RUNNING)
    for number in range(9):
        rate = 10 ** (-4 + number / 3)
        steps = 400 if number % 3 == 0 else 100
        add_run(
            session,
            f"{SEARCH}-{number:02}",
            SEARCH,
            policy,
            steps=steps,
            floor=2.2 + 0.2 * abs(number - 4),
            hyperparameters={"lr": rate, "width": 64 * 2 ** (number % 3), "norm": "rms"},
            state=RunState.COMPLETED if steps == 400 else RunState.STOPPED,
        )
        session.add(
            tables.MetricRow(
                run=f"{SEARCH}-{number:02}",
                group="search",
                name="memorization",
                step=steps - 1,
                attempt=0,
                value=0.4 * number,
            )
        )
    add_run(
        session,
        LIVE,
        LIVE,
        policy,
        steps=120,
        floor=2.3,
        hyperparameters={},
        state=RunState.RUNNING,
    )
    session.get_one(tables.ExperimentRow, SEARCH).config = {
        "name": "learning-rate-search",
        "search": {"metric": "validation/loss", "memorization": {"tau": 2.5}},
    }
    for tag in ("baseline", "paper"):
        session.add(tables.ExperimentTag(experiment=SEARCH, tag=tag))
    stop = "asha: loss 3.12 at step 100 is not among the best third"
    add_decision(session, f"{SEARCH}-01", 1, "stop", stop)
    add_decision(session, LIVE, 1, "restart", "worker 1 ended; 2 workers again after 6.0 s")
    flag = "composite outside its band at head in 2 probes in a row"
    add_decision(session, LIVE, 2, "flag", flag, corpus="alpha")
    back = "back to step 80, and alpha left out from there on"
    add_decision(session, LIVE, 3, "rollback", back, corpus="alpha")
    for step, state in ((40, CheckpointState.DELETED), (80, CheckpointState.COMPLETED)):
        session.add(
            tables.CheckpointRow(
                run=LIVE,
                step=step,
                state=state,
                digest=ZERO,
                bytes=4_100_000,
                at="2026-11-20T08:15:00Z",
            )
        )


def add_attested_runs(session: Session, *models: VerifiedModel) -> None:
    """A run for each model, whose settings differ in two places."""
    for number, model in enumerate(models):
        run = model.attestation.run.id
        add_experiment(session, run, run, "train", ExperimentState.COMPLETED)
        add_run(
            session,
            run,
            run,
            model.policy.digest,
            steps=300 - 100 * number,
            floor=2.1 + 0.4 * number,
            hyperparameters={
                "hyperparameters.blocks": 4,
                "hyperparameters.width": 128 * (1 + number),
                "optimizer.lr": 3e-4 / (1 + number),
                "optimizer.name": "adamw",
            },
            state=RunState.COMPLETED,
        )


def add_hostile_run(session: Session, policy: str) -> None:
    """An experiment whose every text is hostile."""
    add_experiment(session, "hostile", HOSTILE, "train", ExperimentState.ERROR, why=HOSTILE)
    add_run(
        session,
        "run-bad",
        "hostile",
        policy,
        steps=3,
        floor=3.0,
        hyperparameters={HOSTILE: HOSTILE},
        state=RunState.ERROR,
        why=HOSTILE,
    )
    add_decision(session, "run-bad", 1, "refused", HOSTILE)


def add_experiment(
    session: Session,
    id_: str,
    name: str,
    kind: str,
    state: ExperimentState,
    *,
    why: str | None = None,
) -> None:
    experiment(
        session,
        id_,
        name=name,
        kind=kind,
        state=state,
        project="research",
        storage="runs",
        config={"name": name, "max_steps": 400},
        started="2026-11-20T08:00:00Z",
        why=why,
    )


def add_decision(
    session: Session, run: str, number: int, kind: str, reason: str, corpus: str | None = None
) -> None:
    decision(
        session,
        run,
        number,
        kind,
        at="2026-11-20T08:20:00Z",
        step=100,
        corpus=corpus,
        reason=reason,
        evidence={"probe": 4, "text": reason},
    )


def add_run(
    session: Session,
    name: str,
    experiment: str,
    policy: str,
    *,
    steps: int,
    floor: float,
    hyperparameters: dict[str, object],
    state: RunState,
    why: str | None = None,
) -> None:
    """A run whose loss falls to ``floor``, and is measured on held-back rows every 20 steps."""
    losses = [floor + 3.3 * math.exp(-step / 45) + 0.05 * math.sin(step) for step in range(steps)]
    run_row(
        session,
        name,
        state,
        experiment=experiment,
        hyperparameters=hyperparameters,
        step=steps,
        max_steps=400,
        loss=losses[-1],
        objective=losses[-1] + 0.1,
        world_size=2,
        started="2026-11-20T08:00:00Z",
        why=why,
        policy=policy,
    )
    for step, loss in enumerate(losses):
        add_number(session, name, "training", step, loss)
        if step % 20 == 19:
            add_number(session, name, "validation", step, loss + 0.12)


def add_number(session: Session, run: str, group: str, step: int, value: float) -> None:
    session.add(
        tables.MetricRow(run=run, group=group, name="loss", step=step, attempt=1, value=value)
    )
