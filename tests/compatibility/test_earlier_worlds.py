"""Models, runs and stores of earlier commits go on working. `earlier_world.py` made them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from govray import cli
from govray.checkpoint import commit_folder
from govray.engine.gpt import GPT
from govray.engine.huggingface import CausalLM
from govray.engine.model.keyed_dropout import Keyed
from govray.errors import Damaged, InfrastructureFailed, Refused
from govray.steps.keyed_seed import mask_seed
from govray.train.attest.audited_model import load_model
from govray.train.driver import trainer
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.run_record import read_record
from govray.train.state import snapshot
from govray.tune import search_record
from tests.compatibility.derived_keys import pem, store_secret
from tests.support.all_exports import export_all
from tests.support.command import Done
from tests.support.solo import run_here

COMMITS = ("6eb9031", "998eec9")
LAST_BEFORE_ROOMS = pytest.mark.parametrize("unpacked", COMMITS[1:], indirect=True)
"""The settings that a run records have grown since the first release, too."""

ROOT = ("--trust-root", "deployment/root.json")
MADE_IN = "/tmp/world"


@dataclass(frozen=True)
class World:
    """A world's folder, and what the commands of its commit said of it."""

    folder: Path
    recorded: dict[str, Any]

    @property
    def model(self) -> str:
        return f"runs/{self.recorded['whole']}/model"

    def run(self, name: str) -> Path:
        return Path("runs") / self.recorded[name]


@pytest.fixture(scope="module", params=COMMITS)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One commit's world, for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("world")
    with tarfile.open(Path(__file__).with_name(f"{request.param}.tar.xz")) as archive:
        # Python 3.11.0 to 3.11.3 have no filters yet; the archive is the tree's own.
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **filtered)
    for path, secret in (("deployment/operator.pem", pem("operator")), ("key", store_secret())):
        (folder / path).write_bytes(secret)
        (folder / path).chmod(0o600)
    return folder


@pytest.fixture
def world(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return _inside(unpacked, monkeypatch)


@pytest.fixture
def copy(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same, to be changed."""
    return _inside(shutil.copytree(unpacked, tmp_path / "world"), monkeypatch)


def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Paths in records are relative to the world."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GOVRAY_STORE_KEY", "key")
    return World(folder, json.loads(Path("recorded.json").read_bytes()))


@pytest.fixture
def govray(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns its exit code and what it prints with ``--json``."""

    def run(*words: str | Path) -> tuple[int, Any]:
        code = cli.main([*map(str, words), "--json"])
        said = capsys.readouterr().out
        return code, json.loads(said) if said else None

    return run


def flip(path: str | Path) -> None:
    """Change one bit, in the middle of a file."""
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)


def test_a_model_verifies_and_says_what_it_said(world: World, govray: Any) -> None:
    code, said = govray("verify", world.model, *ROOT)
    earlier = moved(world.recorded["verified"], world.folder)
    assert code == 0
    assert earlier["levels"]
    assert {name: said[name] for name in earlier} == earlier  # later versions say more


@pytest.mark.parametrize(
    "file",
    [
        "model.safetensors",
        "adapters/acme/adapter_model.safetensors",
        "config.json",
        "governance/ledger.jsonl",
    ],
)
def test_a_flipped_bit_in_a_model_is_refused(copy: World, govray: Any, file: str) -> None:
    flip(f"{copy.model}/{file}")
    assert govray("verify", copy.model, *ROOT)[0] == 1


def test_a_trained_model_is_exported_in_every_format(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*words: object, code: int = 0) -> Done:
        capsys.readouterr()
        done = Done(cli.main([str(word) for word in words]), *capsys.readouterr())
        assert done.code == code, done
        return done

    read = export_all(run, Path(world.model), tmp_path / "exports", *ROOT)
    trained = {row["corpus"] for row in world.recorded["verified"]["coverage"]}
    assert {each.name for each in read["croissant"]} == trained


def test_revocation_lists_are_read(world: World, govray: Any) -> None:
    """The first revokes a corpus that no model learned from, the second one that all did."""
    listed = [("--revocations", f"deployment/revocations-{n}.dsse.json") for n in (1, 2)]
    assert [govray("verify", world.model, *ROOT, *each)[0] for each in listed] == [0, 1]


def test_a_flipped_bit_in_a_revocation_list_is_refused(copy: World, govray: Any) -> None:
    listed = "deployment/revocations-1.dsse.json"
    flip(listed)
    assert govray("verify", copy.model, *ROOT, "--revocations", listed)[0] == 1


def test_a_record_is_traced_as_it_was(world: World, govray: Any) -> None:
    code, said = govray("trace", "record.txt", "--model", world.model, *ROOT)
    assert code == 0
    assert said["found"]
    earlier = moved(world.recorded["traced"], world.folder)
    assert {name: said[name] for name in earlier} == earlier


def test_another_record_is_not_found(copy: World, govray: Any) -> None:
    flip("record.txt")
    assert not govray("trace", "record.txt", "--model", copy.model, *ROOT)[1]["found"]


def test_an_adapter_is_exported_as_it_was(copy: World, govray: Any) -> None:
    words = ("adapter", "export", copy.model, "acme", *ROOT, "--out")
    assert govray(*words, "again")[0] == 0
    before, after = (files(Path(name)) for name in ("exported", "again"))
    assert len(before) == 2
    assert before == after
    flip(f"{copy.model}/adapters/acme/adapter_model.safetensors")
    assert govray(*words, "refused")[0] == 1
    assert not Path("refused").exists()


def test_entry_points_of_earlier_models_load(world: World) -> None:
    """The strings in ``config.json`` name a class that the weights fit."""
    for name, kind in (("whole", GPT), ("transformer", CausalLM)):
        config = json.loads((world.run(name) / "model/config.json").read_bytes())
        assert config["entrypoint"].endswith(f":{kind.__name__}")
        assert type(load_model(world.run(name)).model) is kind


def test_weights_with_a_flipped_bit_do_not_load(copy: World) -> None:
    flip(last_commit(copy.run("whole")) / "model.safetensors")
    with pytest.raises(Damaged, match="differs from its digest"):
        load_model(copy.run("whole"))


def test_a_search_reads_as_it_was_recorded(world: World) -> None:
    found = search_record.read(Path("runs/search"))
    assert [trial.how for trial in found.trials.values()] == ["stopped", "failed"]
    assert found.concluded


def test_an_earlier_store_is_upgraded_and_keeps_its_rows(copy: World, govray: Any) -> None:
    before = tables("store.db")
    assert [len(before[table]) for table in ("trial", "attestation", "checkpoint")] == [3, 2, 3]
    assert govray("store", "upgrade", "--store", "sqlite:///store.db")[0] == 0
    require_rows(tables("store.db"), before)


def test_earlier_folders_index_to_the_same_rows(copy: World, govray: Any) -> None:
    """Indexed by today's code, and by that of the commit."""
    index = ("store", "index", "runs", *ROOT, "--user", "someone", "--store")
    code, said = govray(*index, "sqlite:///today.db")
    assert (code, said) == (0, {"runs": 3, "newModels": 2, "leftOut": {}})
    earlier = moved(tables("store.db"), copy.folder)
    if "committed" not in (copy.run("whole") / "events.jsonl").read_text():
        # The first release took a commit's time from its file, which a copy does not keep.
        earlier["checkpoint"] = [row | {"at": None} for row in earlier["checkpoint"]]
    require_rows(tables("today.db"), earlier)
    with pytest.raises(AssertionError):
        require_rows(tables("today.db"), earlier | {"trial": earlier["trial"][:2]})
    flip(f"{copy.model}/model.safetensors")
    code, said = govray(*index, "sqlite:///damaged.db")
    assert code == 1
    assert [*said["leftOut"]] == [str(copy.folder / copy.model)]


@pytest.fixture
def resumable(copy: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A run goes on under the code that began it alone; here, today's passes for that."""
    run_here(monkeypatch)
    record = read_record(copy.run("stopped"))
    monkeypatch.setattr(run_listing, "code_digest", lambda: record.code)
    monkeypatch.setattr(trainer, "source_of", lambda *_: record.environment.source)
    return copy


def test_a_run_of_other_code_is_refused_by_name(
    copy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    run = copy.run("stopped")
    with pytest.raises(Refused, match=r"changed since the run began: govray's own code\."):
        trainer.from_experiment(experiment(run), resume=run).train()
    assert run_listing.inspect(run).state == "stopped"
    assert run_listing.find_unfinished(experiment(run)) is None


@LAST_BEFORE_ROOMS
def test_a_stopped_run_goes_on_to_the_same_ledger_and_weights(
    resumable: World, govray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the dropout masks of that commit, for they are drawn otherwise since.

    Not to the same bytes: the passes of those commits added gradients in another order.
    """
    monkeypatch.setattr(Keyed, "kept", earlier_masks)
    run, whole = resumable.run("stopped"), resumable.run("whole")
    assert run_listing.inspect(run).step == 4
    stopped = last_commit(run)
    begun = {name: load_file(stopped / name) for name in resumable.recorded["weights"]}
    trainer.from_experiment(experiment(run), resume=run).train(attest=True)
    assert govray("verify", run / "model", *ROOT)[0] == 0
    ledgers = [last_commit(each) / "ledger.jsonl" for each in (run, whole)]
    assert ledgers[0].read_bytes() == ledgers[1].read_bytes()
    for name in resumable.recorded["weights"]:
        found, expected = (load_file(each / "model" / name) for each in (run, whole))
        assert close(found, expected)
        assert not close(begun[name], expected)  # the steps since then moved more than that


@LAST_BEFORE_ROOMS
def test_a_run_does_not_go_on_from_a_flipped_bit(resumable: World) -> None:
    run = resumable.run("stopped")
    commit = last_commit(run)
    flip(commit / "optimizer.safetensors")
    with pytest.raises(InfrastructureFailed, match="damaged and was put aside"):
        trainer.from_experiment(experiment(run), resume=run).train()
    assert not commit.exists()


def experiment(run: Path) -> Experiment:
    found = read_record(run).experiment
    assert found is not None
    return found


def last_commit(run: Path) -> Path:
    found = snapshot.latest(run)
    assert found is not None
    assert isinstance(found[0], Path)
    assert commit_folder.load(found[0]).names
    return found[0]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def earlier_masks(keyed: Keyed, fqn: str, p: float, inputs: Tensor) -> Tensor:
    """What dropout kept when torch's generator drew each row's mask; of the inputs' shape."""
    assert keyed._rows is not None
    masks = torch.empty(inputs.shape, dtype=torch.bool)
    for mask, (stream, position) in zip(masks, keyed._rows, strict=True):
        seed = mask_seed(keyed._seed, stream, keyed._step, position, fqn)
        mask.bernoulli_(1.0 - p, generator=torch.Generator().manual_seed(seed))
    return masks


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Whether all tensors are the same to rounding."""
    return found.keys() == expected.keys() and all(
        torch.allclose(found[name], value, rtol=1e-4, atol=1e-6) for name, value in expected.items()
    )


Tables = dict[str, list[dict[str, Any]]]


def tables(store: str) -> Tables:
    """Table → its rows."""
    connection = sqlite3.connect(store)
    connection.row_factory = sqlite3.Row
    with closing(connection):
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            for (name,) in names
            if name != "alembic_version"
        }


def require_rows(found: Tables, earlier: Tables) -> None:
    """All rows of an earlier store are there, and no others: by the columns that it had."""
    for table, rows in earlier.items():
        columns = [*rows[0]] if rows else []
        projected = [{name: row[name] for name in columns} for row in found[table]]
        assert sorted(map(repr, projected)) == sorted(map(repr, rows)), table


def moved(value: Any, folder: Path) -> Any:
    """What would have been said or stored, had the world been made in a folder."""
    if isinstance(value, dict):
        return {name: moved(each, folder) for name, each in value.items()}
    if isinstance(value, list):
        return [moved(each, folder) for each in value]
    return value.replace(MADE_IN, str(folder)) if isinstance(value, str) else value
