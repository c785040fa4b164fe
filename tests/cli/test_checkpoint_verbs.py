"""`checkpoint ls` and `gc`, on a run's folder of real commits; the commands of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from govray.governance.attestation.model_folder import WEIGHTS
from govray.governance.formats import canonical_json
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import storage_of
from govray.train.checkpoint.stored_tensors import contents
from govray.train.inputs.run_record import read_record
from govray.train.state.carried_governance import keep
from govray.train.state.garbage_collection import pin
from govray.train.state.snapshot import folder_name
from tests.support.command import Run
from tests.support.runs_on_storage import begin_run
from tests.support.world import World


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    """Where the page's commands look: five commits, one pinned, and what a crash left."""
    run = begin_run(tmp_path / "runs", "tiny", world)
    carried = keep(run, storage_of(run))
    for step, loss in ((10, 4.0), (20, 1.0), (30, 3.0), (40, None), (50, 2.0)):
        state = {"step": step, "keep": {"best": 1, "latest": 1}, "governance": carried}
        state |= {"ledger": {}}
        state |= {} if loss is None else {"loss": loss}
        files = {"state.json": canonical_json.encode(state), "w": b"1" * 2000}
        commit_folder.commit(
            run / folder_name(step), contents(files | {WEIGHTS: {"w": torch.ones(3)}})
        )
    pin(run, folder_name(10), "released")
    commit_folder.write(commit_folder.stage(run / folder_name(60)), "w", b"1" * 5000)
    return run


def left(run: Path) -> list[int]:
    return sorted(
        int(entry.name[-9:]) for entry in run.glob("checkpoint_*") if entry.name[-1].isdigit()
    )


def test_a_person_pins_and_unpins(run: Run, folder: Path) -> None:
    commit = folder / folder_name(30)
    assert (
        run("checkpoint", "pin", commit, "--reason", "table 2", "--json")
        .json["pin"]
        .endswith(": table 2")
    )
    run("checkpoint", "gc", folder)
    assert left(folder) == [10, 20, 30, 50]
    assert "is not pinned" in run("checkpoint", "unpin", commit).out
    run("checkpoint", "gc", folder)
    assert left(folder) == [10, 20, 50]
    refused = run("checkpoint", "unpin", folder / folder_name(10), code=1).err
    assert "released" in refused
    assert "no such commit" in run("checkpoint", "pin", commit, code=1).err
    assert "no such checkpoint" in run("checkpoint", "unpin", commit, code=2).err


def test_nothing_of_a_held_run_goes_until_each_case_released_it(run: Run, folder: Path) -> None:
    assert "held for 1 case" in run("runs", "hold", folder, "--for", "C-7").out
    placed = run("runs", "hold", folder, "--for", "audit 2026", "--json").json["holds"]
    again = run("runs", "hold", folder, "--for", "C-7", "--json").json["holds"]
    assert again == placed
    said = run("checkpoint", "gc", folder)
    assert "0 folders" in said.out
    assert "the run is held for C-7, audit 2026" in said.out
    assert left(folder) == [10, 20, 30, 40, 50]
    assert list(folder.glob("*.partial"))
    told = run("checkpoint", "ls", folder, "--json").json
    assert all("held" in row["kept"] for row in told["commits"])
    run("runs", "release", folder, "--for", "C-7")
    assert "0 folders" in run("checkpoint", "gc", folder).out
    assert "no such case" in run("runs", "release", folder, "--for", "C-8", code=2).err
    assert "is not held" in run("runs", "release", folder, "--for", "audit 2026").out
    run("checkpoint", "gc", folder)
    assert left(folder) == [10, 20, 50]


def test_ls_says_why_each_stays(run: Run, folder: Path) -> None:
    told = run("checkpoint", "ls", folder, "--json").json
    assert {row["step"]: row["kept"] for row in told["commits"]} == {
        50: ["latest"],
        40: [],
        30: [],
        20: ["best"],
        10: ["pinned"],
    }
    assert told["commits"][-1]["pin"] == "released"
    assert told["commits"][0]["size"] > 2000
    [(leftover, size)] = told["leftovers"].items()
    assert leftover.endswith(".partial")
    assert size == 5000
    text = run("checkpoint", "ls", folder).out
    assert "pinned: released" in text
    assert "nothing: goes with the next commit" in text
    assert "never loads" in text


def test_gc_deletes_what_the_dry_run_said(run: Run, folder: Path) -> None:
    said = run("checkpoint", "gc", folder, "--dry-run", "--json").json
    assert left(folder) == [10, 20, 30, 40, 50]
    did = run("checkpoint", "gc", folder, "--json").json
    assert did["deleted"] == said["deleted"]
    assert (said["dryRun"], did["dryRun"]) == (True, False)
    assert left(folder) == [10, 20, 50]
    assert not list(folder.glob("*.partial"))
    assert "0 folders, 0 B" in run("checkpoint", "gc", folder).out


def test_copy_says_what_comes_along_and_what_it_is_not(
    run: Run, folder: Path, tmp_path: Path, root: Path
) -> None:
    said = run("checkpoint", "copy", folder / folder_name(20), "there")
    assert "not here" in said.out
    assert "the packed rows: put the folder into there" in said.out
    assert "--carried --trust-root TRUSTED_ROOT" in said.out
    copy = tmp_path / "there" / "tiny"
    assert left(copy) == [20]
    assert read_record(copy) == read_record(folder)
    assert "already exists" in run("checkpoint", "copy", folder, "there", code=2).err
    told = run("checkpoint", "copy", folder, "newest", "--json").json
    assert (told["step"], told["rows"], told["missing"]) == (50, [], ["the packed rows"])
    # The root from elsewhere decides, whatever the copy says of itself.
    resume = ("runs", "resume", copy, "--carried")
    assert "none is pinned" in run(*resume, code=3).err
    inside = copy / "record" / "root.json"
    assert "lies inside the run" in run(*resume, "--trust-root", inside, code=1).err
    other = tmp_path / "other.json"
    other.write_bytes(World(name="another").root)
    assert "another trust root" in run(*resume, "--trust-root", other, code=1).err
    assert "--carried" in run("runs", "resume", copy, "--trust-root", root, code=2).err
    # A record that was changed beside the original is not copied.
    (folder / "record" / "policy.dsse.json").write_bytes(b"{}")
    refused = run("checkpoint", "copy", folder, "changed", code=1).err
    assert "not the record/policy.dsse.json that checkpoint_000000050 carries" in refused
