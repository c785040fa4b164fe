"""Every path is a URL: a run is killed and resumed, indexed, verified and served, as on a disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from govray.cli import main
from govray.files.bucket_path import BucketPath
from govray.governance.attestation import model_folder
from tests.support import object_server
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.process import serving

pytestmark = pytest.mark.slow

STEPS = 80


@pytest.fixture
def govray(
    tmp_path: Path,
    forked: Forked,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """What a command says. One that only reads, or indexes, runs here: a process imports for long.

    Others have processes of their own, since one drives a run and starts a cluster.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> Any:
        command = ["--json", *words]
        if words[0] == "train" or words[:2] == ("runs", "resume"):
            done = subprocess.run(
                [forked.command, *command],
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


def test_a_run_whose_every_path_is_a_url_is_the_run_on_a_disk(
    store: BucketPath, tmp_path: Path, forked: Forked, govray: Any
) -> None:
    made = Deployment(tmp_path / "made")
    upload(made.corpora, store / "corpora")
    (store / "policy.dsse.json").write_bytes(made.policy.read_bytes())
    (store / "root.json").write_bytes(made.root.read_bytes())
    runs = store / "runs"
    experiment = made.experiment(max_steps=STEPS)
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

    done = govray("train", str(file))
    assert done["run"] == str(run)  # the same command went on with it
    events = govray("runs", "show", str(run))["events"]
    begun = [each["step"] for each in events if each["kind"] == "attemptStarted"]
    assert begun[0] == 0 < begun[-1]

    model = f"{run / 'model'}"
    verified = govray("verify", model, "--trust-root", str(made.root))
    assert verified["verified"]
    [prepared] = (store / "runs" / "prepared").iterdir()
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


def test_a_store_that_disappears_ends_the_run_with_a_word(tmp_path: Path, forked: Forked) -> None:
    server = object_server.start()
    try:
        server.bucket("bucket")
        runs = BucketPath.parse(server.url("bucket").replace("/commits", "/runs"))
        made = Deployment(tmp_path / "made")
        experiment = made.experiment(max_steps=5000, storage_path=str(runs))
        experiment["data"] = {**experiment["data"], "epochs": 3000}  # type: ignore[dict-item]
        file = tmp_path / "tiny.yaml"
        file.write_text(yaml.safe_dump(experiment))
        run = started(forked, tmp_path, file)
        try:
            wait_for(lambda: any(runs.glob("tiny-*/checkpoint_*/manifest.json")), run)
        finally:
            server.stop()
        _, said = run.communicate(timeout=300)
    finally:
        server.stop()
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode != 0
    assert "the storage failed" in said
    assert "Traceback" not in said
