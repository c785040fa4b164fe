"""A run by hand keeps the code that it ran, in a folder of `govray init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import govray
from govray.cli import main
from govray.governance.submission.code_archive import archive_place
from govray.train.inputs.run_record import read_record
from tests.support.deployment import Deployment
from tests.support.solo import run_here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Its folder beside the one that the command is given in."""
    run_here(monkeypatch)
    (own := tmp_path / "own").mkdir()
    monkeypatch.chdir(own)
    return Deployment(tmp_path / "here")


def trained(here: Deployment) -> Any:
    value = here.experiment(max_steps=2, resources={"num_workers": 1})
    Path("f.yaml").write_text(yaml.safe_dump(value))
    before = {*(here.folder / "runs").glob("tiny-*")}
    assert main(["train", "f.yaml"]) == 0
    [run] = {*(here.folder / "runs").glob("tiny-*")} - before
    return run


def test_the_folder_is_kept_by_its_digest_and_a_secret_in_it_stops_nobody(
    here: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = trained(here)  # no folder of `govray init`
    assert read_record(other).archive is None
    Path("jobs").mkdir()
    Path("jobs/train.py").write_text("# mine\n")
    run = trained(here)
    archive = read_record(run).archive
    assert archive is not None
    assert archive_place(run.parent, archive).is_file()
    facts = govray.verify(run / "model", trust_root=here.root).attestation
    assert facts.execution.code.archive == archive
    assert main(["runs", "code", str(run), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/jobs/train.py").read_text() == "# mine\n"
    # What must not be packed is named, and training goes on.
    Path("key.pem").write_bytes((here.folder / "operator.pem").read_bytes())
    assert read_record(trained(here)).archive is None
    said = capsys.readouterr()
    assert "not kept beside the runs" in said.err + said.out
    assert "key.pem" in said.err + said.out
