"""Every path is a URL: a run is killed and resumed, indexed, verified and served, as on a disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import ray
import yaml

from govray.cli import main
from govray.errors import CouldNotCheck, Damaged, GovrayError, Refused, Untrusted
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.storage.bucket_path import BucketPath
from govray.train.checkpoint import commit_folder
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_listing import find_unfinished
from govray.train.run_folder.run_lock import take_over
from govray.train.state.carried_governance import carried
from govray.train.state.carried_inputs import carried_inputs
from govray.train.state.snapshot import latest
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.process import serving

pytestmark = pytest.mark.story

STEPS = 80


@pytest.fixture
def govray(
    cluster: None,
    tmp_path: Path,
    forked: Forked,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """What a command says. One that only reads, or indexes, runs here: a process imports for long.

    Others have processes of their own, since each drives a run.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)

    def run(*words: str, code: int = 0) -> Any:
        command = ["--json", *words]
        if words[0] == "train" or words[:2] == ("runs", "resume"):
            done = subprocess.run(
                [forked.govray, *command],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            returned, out, err = done.returncode, done.stdout, done.stderr
        else:
            capsys.readouterr()
            returned = main(command)
            out, err = capsys.readouterr()
        assert returned == code, out + err
        return json.loads(out) if out and code == 0 else err

    return run


def upload(folder: Path, to: BucketPath) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (to / path.relative_to(folder).as_posix()).write_bytes(path.read_bytes())


def download(folder: BucketPath, to: Path) -> None:
    for name in folder.walk_files():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((folder / name).read_bytes())


def wait_for(condition: Any, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def started(forked: Forked, tmp_path: Path, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [forked.command, "train", str(file)],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def no_copy_vouches_for_itself(run: Path, made: Deployment) -> None:
    """The root from elsewhere decides about a copy, and nothing in the copy can be exchanged."""
    root = made.root.read_bytes()

    def refused(kind: type[GovrayError], why: str, *, under: bytes = root) -> None:
        with pytest.raises(kind, match=why):
            carried_inputs(run, under)

    # As it is, only the rows are missing, which were not copied.
    refused(CouldNotCheck, "the data that the run read is not here")
    stranger = Deployment(made.folder / "stranger", at=made.at)
    refused(Refused, "another trust root than the one given", under=stranger.root.read_bytes())
    newest = latest(run)
    assert newest is not None
    found = carried(commit_folder.open_commit(newest[0]))
    for name, entry in found.files.items():
        if data := found.read(name):
            path = run / "governance" / entry.digest.removeprefix("sha256:")
            path.write_bytes(data.replace(b"a", b"b"))
            refused(Damaged, name)
            path.write_bytes(data)
    # Whoever writes to the copy can make all digests fit: then signatures, and the run's own
    # bindings, are what is left.
    other = made.sign_policy(made.policy_text.replace("version: 1", "version: 2"))
    for name, data, kind, why in (
        ("policy.dsse.json", other.read_bytes(), Refused, "another policy than the one that it"),
        ("policy.dsse.json", stranger.policy.read_bytes(), Untrusted, "sign"),
        ("root.json", stranger.root.read_bytes(), Refused, "another trust root"),
    ):
        changed = run.with_name(f"{run.name}.changed")
        shutil.copytree(run, changed)
        exchange(changed, f"record/{name}", data)
        with pytest.raises(kind, match=why):
            carried_inputs(changed, root)
        shutil.rmtree(changed)


def exchange(run: Path, name: str, data: bytes) -> None:
    """Put other bytes in a copy, and make every digest fit."""
    newest = latest(run)
    assert newest is not None
    folder = Path(str(newest[0]))
    manifest: Any = json.loads((folder / "manifest.json").read_bytes())
    state: Any = json.loads((folder / "state.json").read_bytes())
    stated = {"digest": canonical_json.sha256(data), "size": len(data)}
    state["governance"][name] = stated
    encoded = canonical_json.encode(state)
    manifest["files"]["state.json"] = {
        "digest": canonical_json.sha256(encoded),
        "size": len(encoded),
    }
    (folder / "state.json").write_bytes(encoded)
    (folder / "manifest.json").write_bytes(canonical_json.encode(manifest))
    (run / "governance" / stated["digest"].removeprefix("sha256:")).write_bytes(data)
    (run / name).write_bytes(data)


def test_a_run_whose_every_path_is_a_url_is_the_run_on_a_disk(
    store: BucketPath, tmp_path: Path, forked: Forked, govray: Any
) -> None:
    made = Deployment(tmp_path / "made")
    upload(made.corpora, store / "corpora")
    (store / "policy.dsse.json").write_bytes(made.policy.read_bytes())
    (store / "root.json").write_bytes(made.root.read_bytes())
    runs = store / "runs"
    experiment = made.experiment(max_steps=STEPS)
    experiment["checkpoint"] = {**experiment["checkpoint"], "save_trial_latest": STEPS}  # type: ignore[dict-item]
    experiment["data"] = {**experiment["data"], "corpora": str(store / "corpora"), "epochs": 30}  # type: ignore[dict-item]
    on_disk = yaml.safe_dump(
        experiment | {"data": {**experiment["data"], "corpora": str(made.corpora)}}
    )  # type: ignore[dict-item]
    experiment["governance"] = {
        **experiment["governance"],  # type: ignore[dict-item]
        "policy": str(store / "policy.dsse.json"),
        "trust_root": str(store / "root.json"),
    }
    experiment["storage_path"] = str(runs)
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(experiment))

    first = started(forked, tmp_path, file)
    try:
        wait_for(lambda: any(runs.glob("tiny-*/checkpoint_*/manifest.json")), first)
        os.killpg(first.pid, signal.SIGSTOP)  # it has the run, and does not end meanwhile
        [run] = [path.parent.parent for path in runs.glob("tiny-*/record/run.json")]
        refused = govray("runs", "resume", str(run), code=69)
        assert "the run is being driven by process" in refused
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()
    [listed] = govray("runs", "ls", str(runs))
    assert listed["state"] == "interrupted"
    assert 0 < listed["step"] < STEPS or listed["attempts"] == 1
    # The same command would go on with it.
    assert find_unfinished(parse_experiment(experiment, where="test")) == run

    # Its first commit is copied to another place, and all that the run began with is gone. The
    # last one would be the end: the workers of a quick machine go on without their driver.
    first_commit = min(path.parent.name for path in run.glob("checkpoint_*/manifest.json"))
    commit = str(run / first_commit.partition(".")[0])
    take_over(run)  # its workers, if one is left, write nothing meanwhile
    copied = govray("checkpoint", "copy", commit, str(store / "moved"))
    assert copied["missing"] == []
    for_controls = govray("checkpoint", "copy", commit, "controls", "--without-rows")["run"]
    for name in store.walk_files():
        if not name.startswith("moved/"):
            (store / name).unlink(missing_ok=True)
    no_copy_vouches_for_itself(Path(for_controls), made)
    runs, run = store / "moved", BucketPath.parse(copied["run"])
    assert run == runs / listed["run"]
    gone = govray("runs", "resume", str(run), code=2)
    assert "no signed policy here" in gone

    done = govray("runs", "resume", str(run), "--carried", "--trust-root", str(made.root))
    assert done["run"] == str(run)
    events = govray("runs", "show", str(run))["events"]
    begun = [each["step"] for each in events if each["kind"] == "attemptStarted"]
    assert begun == [copied["step"]]
    assert 0 < copied["step"] < STEPS

    model = f"{run / 'model'}"
    # Attested once more, from the store and the key alone.
    assert govray("attest", str(run), "--key", str(made.key))["model"] == model
    verified = govray("verify", model, "--trust-root", str(made.root))
    assert verified["verified"]
    [prepared] = (runs / "prepared").iterdir()
    full = govray("verify", model, "--trust-root", str(made.root), "--records", str(prepared))
    assert (verified["depth"], full["depth"]) == ("summary", "full")

    govray("store", "index", str(runs), "--trust-root", str(made.root))
    with serving(tmp_path, "--no-auth") as (_, address), urlopen(f"{address}/models") as answer:
        assert run.name in answer.read().decode()

    # The reserve's salt is drawn once, so the run on the disk reads what was prepared.
    local = tmp_path / "made" / "runs"
    download(prepared, local / "prepared" / prepared.name)
    file.write_text(on_disk)
    other = Path(govray("train", str(file))["model"])
    for name in [model_folder.WEIGHTS, model_folder.CONFIG, model_folder.LEDGER]:
        assert (other / name).read_bytes() == (run / "model" / name).read_bytes(), name
    assert {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()} == {
        *(run / "model").walk_files()
    }
    # Nothing of the run at the URL lies on this disk.
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("s3", "runs"))]
