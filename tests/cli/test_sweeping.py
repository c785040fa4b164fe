"""What `govray store sweep` and a service with a storage remove: projects, and unnamed archives."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import Session

from govray.data.records_file import PREPARED
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.submission.code_archive import CODE, archive_folder, archive_place
from govray.platform.indexing import unnamed_archives
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import DeletionRow, ProjectRow, QueueEntry
from govray.storage.place import Place
from govray.train.run_folder import events
from tests.support.command import Run
from tests.support.in_time import in_time
from tests.support.process import serving
from tests.support.runs import submission
from tests.support.runs_on_storage import at, begin_run, commit, happen
from tests.support.world import World

NOW = "2026-11-21T12:00:00Z"


def digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def sent(storage: Place, *names: str) -> None:
    for name in names:
        target = archive_place(storage, digest(name))
        if isinstance(target, Path):
            target.parent.mkdir(exist_ok=True)
        target.write_bytes(name.encode())


def there(storage: Place, *names: str) -> set[str]:
    return {name for name in names if archive_place(storage, digest(name)).is_file()}


def record(run: Place, value: object) -> None:
    """Of a run's record, what a sweep reads."""
    file = run / "record" / "run.json"
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(canonical_json.encode(value))


def queued(name: str, state: ExperimentState, **more: str) -> QueueEntry:
    row: QueueEntry = submission(name)
    return row.sqlmodel_update({"archive": digest(name), "state": state, **more})


@pytest.fixture
def engine_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'govray.db'}"
    monkeypatch.setenv("GOVRAY_STORE", url)
    open_store(url, create=True).dispose()
    return url


NAMED = ("by a run", "by its submission", "by a trial", "by a replay", "waits", "may be resumed")
UNNAMED = ("by nothing", "whose run is gone", "whose project is gone")


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_sweep_removes_old_archives_that_nothing_names(
    run: Run,
    engine_url: str,
    where: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage: Place = tmp_path / "runs"
    storage = request.getfixturevalue("store") if where == "bucket" else storage
    record(storage / "a", {"archive": digest("by a run")})
    record(storage / "b", {"submission": {"archive": digest("by its submission")}})
    record(storage / "search" / "trial", {"archive": digest("by a trial")})
    record(storage / "a" / "replays" / "r", {"archive": digest("by a replay")})
    ended = ExperimentState.COMPLETED
    marks = {"at": NOW, "user": "ada", "gone_after": NOW, "gone": NOW, "digests": {}}
    engine = open_store(engine_url)
    with Session(engine) as session:
        session.add(queued("waits", ExperimentState.QUEUED))
        session.add(queued("may be resumed", ExperimentState.STOPPED))
        session.add(queued("whose run is gone", ended))
        place = {"storage": str(storage), "folder": "x", "begun": NOW, "project": "default"}
        session.add(DeletionRow(run="x", experiment="whose run is gone", **place, **marks))
        session.add(queued("whose project is gone", ended, kind="notebook", project="old"))
        old = {"deleted": NOW, "settings": {}, "created": NOW, "user": "ada"}
        session.add(ProjectRow(name="old", workspace="default", **old))
        session.commit()
    engine.dispose()
    sent(storage, *NAMED, *UNNAMED)
    (storage / CODE / "readme.txt").write_bytes(b"mine")
    sweep = ("store", "sweep", storage, "--json")
    # Negative control: what was just sent may be about to be named.
    assert run(*sweep).json["archives"] == []
    monkeypatch.setattr(unnamed_archives, "YOUNG", timedelta(minutes=-1))
    # A record that can't be read could name any.
    (storage / "b" / "record" / "run.json").write_bytes(b"{")
    [(name, _)] = run(*sweep).json["unnamedStay"].items()
    assert name == "b"
    assert "unnamed stay  b:" in run(*sweep[:-1]).out
    record(storage / "b", {"submission": {"archive": "other"}})
    assert [*run(*sweep).json["unnamedStay"]] == ["b"]
    assert there(storage, *NAMED, *UNNAMED) == {*NAMED, *UNNAMED}
    record(storage / "b", {"submission": {"archive": digest("by its submission")}})
    assert {*run(*sweep).json["archives"]} == {digest(name) for name in UNNAMED}
    assert there(storage, *NAMED, *UNNAMED) == {*NAMED}
    assert (storage / CODE / "readme.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_prepared_data_go_with_the_last_run_that_read_them(
    run: Run,
    engine_url: str,
    where: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    world: World,
) -> None:
    storage: Place = tmp_path / "runs"
    storage = request.getfixturevalue("store") if where == "bucket" else storage
    names = ("left", "trained on", "judged by", "set", "never read")
    signed = (world.policy, world.root, *map(world.issue, ("alpha", "beta", "gamma")))
    envelopes = dict(zip(names, signed, strict=True))
    of = {name: canonical_json.sha256(Envelope.parse(d).payload) for name, d in envelopes.items()}
    for name, data in envelopes.items():
        folder = storage / PREPARED / name
        if isinstance(folder, Path):
            folder.mkdir(parents=True)
        (folder / "rows.parquet").write_bytes(b"rows")
        (folder / MANIFEST_FILE).write_bytes(data)
    record(storage / "a", {"plan": {"manifest": of["trained on"]}})
    record(storage / "b", {"validation": {"manifest": of["judged by"]}})
    marks = {"at": NOW, "user": "ada", "gone_after": NOW, "begun": NOW, "gone": NOW}
    recorded = {"recorded": [of[name] for name in names[:-1]]}
    place = {"storage": str(storage), "folder": "x", "project": "default", "digests": recorded}
    engine = open_store(engine_url)
    with Session(engine) as session:
        session.add(DeletionRow(run="x", experiment="x", **place, **marks))
        session.get_one(ProjectRow, "default").settings = {"manifests": [of["set"]]}
        session.add(queued("begins", ExperimentState.RUNNING))
        session.commit()
    sweep = ("store", "sweep", storage, "--json")
    # Negative control: what begins may be about to read them.
    assert run(*sweep).json["prepared"] == []
    with Session(engine) as session:
        session.get_one(QueueEntry, "begins").state = ExperimentState.COMPLETED
        session.commit()
    engine.dispose()
    assert run(*sweep).json["prepared"] == [of["left"]]
    assert [each.name for each in sorted((storage / PREPARED).iterdir())] == sorted(names[1:])
    if isinstance(storage, Path):  # a kill left what is aside
        (storage / PREPARED / ".left.deleted").mkdir()
    assert run(*sweep).json["prepared"] == []
    assert [each.name for each in sorted((storage / PREPARED).iterdir())] == sorted(names[1:])


def test_what_is_found_again_counts_as_sent_and_a_link_leads_nowhere(
    run: Run, engine_url: str, tmp_path: Path
) -> None:
    storage, work = tmp_path / "runs", tmp_path / "work"
    work.mkdir()
    (work / "job.py").write_text("print()")
    archive = archive_place(storage, archive_folder(work, storage))
    sweep = ("store", "sweep", storage, "--json")
    os.utime(archive, (0, 0))
    archive_folder(work, storage)
    assert run(*sweep).json["archives"] == []
    os.utime(archive, (0, 0))
    archive.parent.rename(tmp_path / "elsewhere")
    archive.parent.symlink_to(tmp_path / "elsewhere")
    assert run(*sweep).json["archives"] == []
    archive.parent.unlink()
    (tmp_path / "elsewhere").rename(archive.parent)
    # Negative control: as old, and where archives lie, it goes.
    assert run(*sweep).json["archives"] == [f"sha256:{archive.stem}"]


def ended(storage: Path, name: str, world: World) -> Path:
    folder = begin_run(storage, name, world, finished=at(50))
    happen(folder, [events.Finished(at=at(50), step=12)])
    commit(folder, 12)
    return folder


@pytest.mark.timeout(300)
def test_a_service_with_a_storage_removes_what_was_deleted_by_command(
    run: Run,
    engine_url: str,
    world: World,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    storage, root = tmp_path / "runs", tmp_path_factory.mktemp("trust") / "root.json"
    root.write_bytes(world.root)
    for name in ("gone", "stays"):
        ended(storage, name, world)
        index = ("store", "index", storage, "--trust-root", root, "--project", name)
        run(*index)
    sent(storage, "by nothing")
    os.utime(archive_place(storage, digest("by nothing")), (0, 0))
    words = ("--no-auth", "--storage", str(storage), "--trust-root", str(root))
    (tmp_path / "at-once.yaml").write_text("delete_after_days: 0\n")
    with serving(tmp_path, *words) as (_, address):
        here = ("--server", address, "project")
        for name in ("gone", "stays"):
            run(*here, "new", name)
        run(*here, "settings", "gone", "at-once.yaml")
        for name in ("gone", "stays"):
            assert "delete it again once they are gone" in run(*here, "delete", name).out
        with in_time(120):
            while run(*here, "delete", "gone", "--json").json:
                pass
        # Negative control: what is not due is there, and comes back.
        assert os.listdir(storage / "stays" / "checkpoint_000000012")
        undo = ("--server", address, "experiments", "restore", "stays")
        assert "stays  stays" in run(*undo).out
        assert sorted(os.listdir(storage)) == [CODE, "stays"]
        assert there(storage, "by nothing") == set()
        runs = run("--server", address, "runs", "ls", "--json").json
        assert [each["id"] for each in runs] == ["stays"]
        assert "gone" not in [each["name"] for each in run(*here, "ls", "--json").json]
        assert "was deleted on" in run(*here, "delete", "gone", code=1).err
        assert "was deleted on" in run(*here, "new", "gone", code=1).err
    swept = run("store", "sweep", storage, "--json").json
    assert swept == {
        "removed": [],
        "kept": {},
        "left": [],
        "archives": [],
        "prepared": [],
        "unnamedStay": {},
    }
