"""What runs leave on storage, as rows: whole, again, piece by piece, and after a kill."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import Engine, event
from sqlmodel import Session, select

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.memorization_manifest import (
    MemorizationManifest,
)
from govray.governance.formats import canonical_json
from govray.governance.verify.verifier import verify
from govray.platform.indexing.index_source import searches
from govray.platform.indexing.indexer import IndexReport, index_storage
from govray.platform.indexing.log_reading import IndexBudget
from govray.platform.indexing.model_rows import MEMORIZATION
from govray.platform.store import rebuild as rebuilding
from govray.platform.store import tables
from govray.platform.store.database import open_store, sqlite_file
from govray.platform.store.rebuild import derived, rebuild
from govray.platform.store.states import ExperimentState, RunState
from govray.train.attest.memorization_audit import DEFAULTS
from govray.train.checkpoint.storage import folder_name
from govray.train.run_folder import events, run_lock
from tests.support.databases import on_both
from tests.support.in_time import Late, in_time
from tests.support.monitored_world import Monitored, from_step
from tests.support.runs_on_storage import (
    at,
    begin_run,
    begin_search,
    commit,
    finished_run,
    happen,
    settings,
)
from tests.support.shown import add_version
from tests.support.world import World

Rows = dict[str, list[Any]]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def written(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with an attested run, a replay of it, one that failed and one that was cut off."""
    storage = tmp_path_factory.mktemp("written") / "runs"
    done = finished_run(storage, "tiny-1", world)
    begin_run(done / "replays", "replay-1", world, replay_of="tiny-1")
    commit(done / "replays" / "replay-1", 12)
    failed = begin_run(storage, "tiny-2", world)
    happen(failed, [events.AttemptStarted(at=at(0), attempt=1, world_size=4, step=0)])
    stop = {"failure": "user", "step": 3, "what": "a bug", "decision": "stop"}
    happen(failed, [events.Failed(at=at(36), attempt=1, **stop)])
    commit(failed, 2)
    (failed / f"{folder_name(4)}.1a2b3c4d.partial").mkdir()
    return storage


@pytest.fixture
def storage(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "runs"))


def rows_of(engine: Engine) -> Rows:
    with engine.connect() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(table.select())), key=repr)
            for table in derived()
        }


def clear(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in reversed(tables.TABLES.sorted_tables):
            connection.execute(table.delete())


def test_a_run_is_an_experiment_with_its_trial(store: Engine, written: Path, world: World) -> None:
    report = index_storage(store, written, settings(world))
    assert (report.runs, report.models, report.left_out) == (3, 1, {})
    with Session(store) as session:
        experiment = session.get_one(tables.ExperimentRow, "tiny-1")
        assert (experiment.state, experiment.kind) == (ExperimentState.COMPLETED, "train")
        assert (experiment.project, experiment.user) == ("alpha", "ada")
        assert "attestation_key" not in experiment.config
        run = session.get_one(tables.RunRow, "tiny-1")
        assert (run.state, run.step, run.max_steps) == (RunState.COMPLETED, 12, 12)
        assert (run.loss, run.attempts, run.world_size) == (2.0, 2, 1)
        assert run.hyperparameters["hyperparameters.width"] == 8
        assert (run.worker_seconds, run.accelerator_seconds) == (10 * 2 + 20, 20)
        numbers = {
            (row.step, row.attempt): (row.value, row.archived)
            for row in session.exec(select(tables.MetricRow))
        }
        # Step 7 of the first attempt was superseded when the second began at 6; step 3 was not.
        assert numbers == {
            (3, 1): (3.0, False),
            (7, 1): (2.5, True),
            (7, 2): (2.4, False),
            (11, 2): (2.0, False),
        }
        [decision] = session.exec(
            select(tables.DecisionRow).where(tables.DecisionRow.run == "tiny-1")
        ).all()
        assert (decision.source, decision.kind, decision.step) == ("events", "restart", 8)
        assert decision.evidence["what"] == "a worker is gone"
        replay = session.get_one(tables.RunRow, "replay-1")
        assert (replay.replay_of, replay.experiment) == ("tiny-1", "tiny-1")
        assert replay.state is RunState.COMPLETED
        failed = session.get_one(tables.RunRow, "tiny-2")
        assert (failed.state, failed.why) == (RunState.ERROR, "a bug")
        attestation = session.exec(select(tables.AttestationRow)).one()
        assert (attestation.run, attestation.public) == ("tiny-1", False)
        assert attestation.folder == str(written / "tiny-1" / "model")
        ledger = session.exec(select(tables.LedgerRow)).one()
        assert (Path(ledger.tiles) / "checkpoint").read_bytes() == ledger.checkpoint
        assert (Path(ledger.tiles) / "leaves.parquet").is_file()


def test_a_partial_checkpoint_is_never_completed(
    store: Engine, storage: Path, world: World
) -> None:
    def states() -> dict[int, str]:
        index_storage(store, storage, settings(world))
        with Session(store) as session:
            of_run = tables.CheckpointRow.run == "tiny-2"
            return {
                c.step: c.state.value
                for c in session.exec(select(tables.CheckpointRow).where(of_run))
            }

    folder = storage / "tiny-2"
    assert states() == {2: "COMPLETED", 4: "ERROR"}
    with run_lock.hold(folder):
        # Somebody writes now: what has no manifest, or another name, is not whole.
        (folder / folder_name(6)).mkdir()
        (folder / folder_name(6) / "model.safetensors").write_bytes(b"half")
        (folder / f"{folder_name(8)}.1a2b3c4d.partial").mkdir()
        assert states() == {2: "COMPLETED", 4: "ERROR", 6: "ACTIVE", 8: "ACTIVE"}
        shutil.rmtree(folder / folder_name(6))
        commit(folder, 6)
        commit(folder, 4)  # the same step, once more
        assert states() == {2: "COMPLETED", 4: "COMPLETED", 6: "COMPLETED", 8: "ACTIVE"}
    assert states()[8] == "ERROR"
    shutil.rmtree(folder / folder_name(2))
    (folder / folder_name(6) / "model.safetensors").write_bytes(b"cut")
    assert states() == {2: "DELETED", 4: "COMPLETED", 6: "DELETED", 8: "ERROR"}


@pytest.mark.parametrize(
    "name", [model_folder.WEIGHTS, model_folder.LEDGER, model_folder.ATTESTATION]
)
def test_a_model_that_was_changed_is_left_out_and_stops_nothing(
    store: Engine, storage: Path, world: World, name: str
) -> None:
    path = storage / "tiny-1" / "model" / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    report = index_storage(store, storage, settings(world))
    assert list(report.left_out) == [str(storage / "tiny-1" / "model")]
    with Session(store) as session:
        assert session.exec(select(tables.AttestationRow)).all() == []
        assert session.exec(select(tables.Record)).all() == []
        assert len(session.exec(select(tables.RunRow)).all()) == 3


def test_a_model_under_another_root_is_left_out(store: Engine, written: Path) -> None:
    report = index_storage(store, written, settings(World(name="somebody-else")))
    assert "step 1 (trust root)" in report.left_out[str(written / "tiny-1" / "model")]


@pytest.mark.parametrize("apart", [False, True])
def test_where_an_attestor_keeps_models_none_in_a_run_s_folder_counts(
    store: Engine, storage: Path, world: World, tmp_path: Path, apart: bool
) -> None:
    models = tmp_path / "models"
    if apart:
        models.mkdir()
        (storage / "tiny-1" / "model").rename(models / "tiny-1")
    told = replace(settings(world), models=models)
    assert index_storage(store, storage, told).models == apart
    assert apart or index_storage(store, storage, settings(world)).models == 1  # the control


@pytest.mark.parametrize("field", ["run", "replayOf", "archive", "ended", "config"])
def test_a_record_with_a_field_of_another_form_stops_no_other_run(
    store: Engine, storage: Path, world: World, field: str
) -> None:
    summary = storage / "tiny-2" / "record" / "run.json"
    value = json.loads(summary.read_bytes()) | {field: [{"a": 1}]}
    summary.write_bytes(canonical_json.encode(value))
    report = index_storage(store, storage, settings(world))
    assert field in report.left_out[str(storage / "tiny-2")]
    with Session(store) as session:
        assert session.get(tables.RunRow, "tiny-1") is not None


PIPES = (
    "tiny-2/driver.lock",
    "tiny-2/record/policy.dsse.json",
    "tiny-2/record/credentials.jsonl",
    "tiny-1/replays/replay-1/record/root.json",
    "tiny-2/storage.json",
    "prepared/any/manifest.dsse.json",
    "search/runs.jsonl",
    "search/TRIAL/reports.jsonl",
)


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_in_a_folder_of_somebody_keeps_nobody(
    store: Engine, storage: Path, world: World, name: str
) -> None:
    """Whoever trains may put one anywhere into the run's folder."""
    trial = begin_search(storage / "search").drawn({"optimizer.lr": 0.25}).name
    begin_run(storage / "search", trial, world)
    pipe = storage / name.replace("TRIAL", trial)
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    os.truncate(storage / "tiny-2" / events.FILE, 1 << 40)  # holes, which take no space
    with in_time(60):
        found, left_out = searches(storage)
        left_out |= index_storage(store, storage, settings(world), found).left_out
    assert left_out.keys() >= {str(storage / "tiny-2")}
    assert all(re.search("no regular file|the limit of 65536", why) for why in left_out.values())
    with Session(store) as session:
        assert session.get(tables.RunRow, "tiny-1") is not None
    if name == PIPES[0]:  # control: what opens it as any file waits
        with pytest.raises(Late), in_time(0.2):
            pipe.read_bytes()


def test_what_the_ledger_decided_and_measured_is_indexed(store: Engine, tmp_path: Path) -> None:
    world = Monitored(deviations=from_step("alpha", 6))
    folder = begin_run(tmp_path / "runs", "tiny-1", world, finished=at(50))
    model = world.run(folder / "model", run="tiny-1")
    shutil.copy(model / model_folder.LEDGER, folder / "ledger.ahead.jsonl")
    happen(folder, [events.Finished(at=at(50), step=20)])
    assert index_storage(store, tmp_path / "runs", settings(world)).left_out == {}
    with Session(store) as session:
        told = session.exec(select(tables.DecisionRow)).all()
        found = verify(model, trust_root=world.root).attestation.memorization
        assert found is not None
        assert {row.source for row in told} == {"ledger"}
        assert [row.evidence for row in told] == [made.to_json() for made in found.decisions]
        assert {row.corpus for row in told} == {"alpha"}
        of_monitor = tables.MetricRow.group == "monitor"
        measured = session.exec(select(tables.MetricRow).where(of_monitor)).all()
        assert min(row.step for row in measured if row.value > 1) == 7
        assert {row.name.partition("/")[0] for row in measured} == set(world.records)


@pytest.mark.parametrize("by", ["operator", "auditor"])
def test_a_memorization_manifest_is_indexed_if_an_operator_signed_it(
    store: Engine, storage: Path, world: World, by: str
) -> None:
    document = MemorizationManifest(
        run="tiny-1",
        step=12,
        made=at(60),
        manifest=canonical_json.sha256(b"prepared"),
        files={model_folder.WEIGHTS: canonical_json.sha256(b"weights")},
        settings=DEFAULTS,
        corpora=(),
    )
    # The run was indexed before it was audited.
    index_storage(store, storage, settings(world))
    sealed = document.seal([getattr(world.keys, by)])
    (storage / "tiny-1" / MEMORIZATION).write_bytes(sealed)
    report = index_storage(store, storage, settings(world))
    with Session(store) as session:
        found = session.exec(select(tables.MemorizationManifestRow)).all()
        if by == "operator":
            assert [(row.run, row.signer, row.envelope) for row in found] == [
                ("tiny-1", "operator", sealed)
            ]
        else:
            assert found == []
            assert list(report.left_out) == [str(storage / "tiny-1" / MEMORIZATION)]
        assert len(session.exec(select(tables.AttestationRow)).all()) == 1


@on_both
def test_two_rebuilds_at_once_are_refused_and_a_killed_one_is_cleared_away(
    store: Engine, written: Path, world: World
) -> None:
    def fill(new: Engine) -> None:
        with pytest.raises(Refused, match="another process"):
            rebuild(store, lambda _: None)
        index_storage(new, written, settings(world, queue=store))

    # What a rebuild leaves that is killed at its worst: an index beside.
    with ExitStack() as left, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuilding, "_unlink", lambda _: None)
        patch.setattr(rebuilding, "_drop_schema", lambda _: None)
        file = sqlite_file(store.url)
        left.enter_context(
            rebuilding._file_beside(store, file) if file else rebuilding._schema_beside(store)
        )
    rebuild(store, fill)
    with Session(store) as session:
        assert len(session.exec(select(tables.RunRow)).all()) == 3


def test_a_kill_at_any_statement_leaves_what_the_next_run_completes(
    store: Engine, written: Path, world: World
) -> None:
    said = 0
    dies_at: int | None = None

    def count(*_: object) -> None:
        nonlocal said
        said += 1
        if said == dies_at:
            raise KeyboardInterrupt

    event.listen(store, "before_cursor_execute", count)
    index_storage(store, written, settings(world))
    statements, expected = said, rows_of(store)
    assert statements > 40
    for dies_at in range(2, statements, statements // 7):
        clear(store)
        said = 0
        with pytest.raises(KeyboardInterrupt):
            index_storage(store, written, settings(world))
        dies_at = None
        index_storage(store, written, settings(world))
        assert rows_of(store) == expected


LOSS = st.floats(0, 9).map(lambda value: round(value, 3))


STEP = st.integers(0, 11)
TOLD = st.lists(
    st.one_of(
        st.builds(lambda step, loss: ("progress", step, loss), STEP, LOSS),
        st.builds(lambda step, loss: ("reported", step, loss), STEP, LOSS),
        st.builds(
            lambda step, size: ("attempt", step, size), st.integers(0, 11), st.integers(1, 4)
        ),
        st.sampled_from([("failed", 0, 0), ("stopped", 5, 0), ("killed", 0, 0), ("driver", 0, 0)]),
    ),
    min_size=1,
    max_size=14,
)


def log_of(told: list[tuple[str, int, float]]) -> list[events.AnyEvent]:
    attempt, log = 0, []
    for second, (kind, number, value) in enumerate(told):
        now = at(second * 10)
        if kind == "attempt":
            attempt += 1
            size = int(value)
            made: Any = events.AttemptStarted(at=now, attempt=attempt, world_size=size, step=number)
        elif kind == "progress":
            made = events.Progress(at=now, step=number, loss=value)
        elif kind == "reported":
            made = events.Reported(
                at=now, attempt=attempt, step=number, group="validation", values={"loss": value}
            )
        elif kind == "failed":
            made = events.Failed(
                at=now, attempt=attempt, failure="user", step=0, what="a bug", decision="stop"
            )
        elif kind == "stopped":
            made = events.Stopped(at=now, step=number)
        elif kind == "killed":
            made = events.Killed(at=now, by="a test")
        else:
            made = events.DriverStarted(at=now, driver=1, host="here", pid=1)
        log.append(made)
    return log


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('one')}/x.db", create=True)


numbers = itertools.count()


@given(told=TOLD, cuts=st.sets(st.integers(1, 13), max_size=4))
@examples(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_indexed_piece_by_piece_is_indexed_whole(
    told: list[Any], cuts: set[int], one_store: Engine, world: World, tmp_path_factory: Any
) -> None:
    storage = tmp_path_factory.mktemp("pieces") / "runs"
    folder = begin_run(storage, f"tiny-{next(numbers)}", world)
    log = log_of(told)
    clear(one_store)
    begun = 0
    for cut in [*sorted(cuts), len(log)]:
        happen(folder, log[begun:cut])
        begun = max(begun, min(cut, len(log)))
        index_storage(one_store, storage, settings(world))
    pieces = rows_of(one_store)
    clear(one_store)
    index_storage(one_store, storage, settings(world))
    assert rows_of(one_store) == pieces


def test_what_is_beyond_the_budget_is_the_next_calls(
    store: Engine, storage: Path, world: World
) -> None:
    happen(storage / "tiny-2", [events.Progress(at=at(99), step=n, loss=1.0) for n in range(20)])
    index_storage(store, storage, settings(world))
    whole = rows_of(store)
    clear(store)
    little = IndexBudget(log_bytes=300, seconds=0.0)
    called, report = 0, IndexReport(next="")
    while report.next is not None or report.behind:
        budgeted = settings(world, budget=little)
        part = index_storage(store, storage, budgeted, begin=report.next or "")
        assert len(part.indexed) <= 2  # a run, and the one that replays it
        report.add(part)
        called += 1
    assert called > 5
    assert report.left_out == {}
    assert rows_of(store) == whole


def test_a_search_is_one_experiment_of_its_trials(
    store: Engine, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "tiny-search-1"
    record = begin_search(folder)
    one = record.drawn({"optimizer.lr": 0.25})
    two = record.drawn({"optimizer.lr": 0.5})
    record.drawn({"optimizer.lr": 0.75})  # never took a step
    for name in (one.name, two.name):
        begin_run(folder, name, world)
    lines = [{"step": 4, "loss": 2.5}, {"step": 8, "loss": 2.25, "memorization": 0.5}]
    (folder / one.run / "reports.jsonl").write_bytes(
        b"".join(canonical_json.encode(line) + b"\n" for line in lines)
    )

    def look() -> tuple[tables.ExperimentRow, dict[str, tables.RunRow]]:
        found, left_out = searches(tmp_path / "runs")
        assert left_out == {}
        assert index_storage(store, tmp_path / "runs", settings(world), found).left_out == {}
        with Session(store) as session:
            runs = {row.id: row for row in session.exec(select(tables.RunRow))}
            return session.exec(select(tables.ExperimentRow)).one(), runs

    experiment, runs = look()
    assert (experiment.kind, experiment.state) == ("tune", ExperimentState.STOPPED)
    assert runs[one.name].hyperparameters == {"optimizer.lr": 0.25}
    assert runs[one.name].objective is not None
    assert "attestation_key" not in experiment.config
    record.ended(one.name, "finished", "the last step")
    record.ended(two.name, "stopped", "place 2 of 2")
    record.conclude()
    experiment, runs = look()
    assert experiment.state is ExperimentState.COMPLETED
    assert {t.state for t in runs.values()} == {RunState.COMPLETED, RunState.STOPPED}
    with Session(store) as session:
        metrics = session.exec(
            select(tables.MetricRow).where(tables.MetricRow.group == "search")
        ).all()
        assert {(m.name, m.step): m.value for m in metrics} == {
            ("loss", 3): 2.5,
            ("loss", 7): 2.25,
            ("memorization", 7): 0.5,
        }
        of_search = tables.DecisionRow.source == "search"
        told = session.exec(select(tables.DecisionRow).where(of_search)).all()
        assert {(d.run, d.kind, d.reason) for d in told} == {
            (one.name, "finished", "the last step"),
            (two.name, "stopped", "place 2 of 2"),
        }


@on_both
def test_rebuilt_from_storage_alone_the_derived_rows_are_equal(
    store: Engine, written: Path, world: World
) -> None:
    index_storage(store, written, settings(world))
    with Session(store) as session:
        attestation = session.exec(select(tables.AttestationRow)).one()
        attestation.public, digest = True, attestation.digest
        add_version(session, "cat", digest)
        session.add(tables.UserRow(name="ada", role="admin", created=at(0)))
        session.commit()
    before = rows_of(store)
    with store.begin() as connection:  # something that storage never said
        connection.execute(tables.TABLES.tables["metric"].update().values(value=0.0))
    other = settings(world, project="x", user="y", queue=store)
    rebuild(store, lambda new: index_storage(new, written, other))
    assert rows_of(store) == before
    with Session(store) as session:
        assert session.exec(select(tables.ModelVersion)).one().attestation == digest
        assert session.exec(select(tables.UserRow)).one().name == "ada"


@on_both
def test_a_rebuild_that_fails_leaves_the_index_as_it_was(
    store: Engine, written: Path, world: World
) -> None:
    index_storage(store, written, settings(world))
    with Session(store) as session:
        digest = session.exec(select(tables.AttestationRow.digest)).one()
        add_version(session, "cat", digest)
        session.commit()
    before = rows_of(store)

    def dies(new: Engine) -> None:
        index_storage(new, written, settings(world, queue=store))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(store, dies)
    with pytest.raises(Refused, match=r"cat 1\.2\.0"):
        rebuild(store, lambda new: None)
    assert rows_of(store) == before
