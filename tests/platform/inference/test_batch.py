"""Batch inference: a model that verifies answers a file, and no other does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from govray.errors import Refused, UsageError
from govray.platform.inference.batch import RECORD, BatchAnswers, described, load_for
from govray.platform.service.identity.adapter_rights import read_rights
from govray.platform.service.identity.caller import Caller
from govray.platform.tasks.task_file import InferenceTask, read_task
from jobs import infer
from tests.platform.inference.conftest import Trained
from tests.support.flipped import flip


def task(trained: Trained, folder: Path, model: Path | None = None, **more: object) -> Path:
    lines = [json.dumps({"prompt": each}) for each in ("acme says", "def f(", "")]
    (folder / "in.jsonl").write_text("\n".join(lines))
    written = {
        "kind": "inference",
        "model": str(model or trained.folder),
        "trust_root": str(trained.root),
        "input": str(folder / "in.jsonl"),
        "output": str(folder / "out"),
        "max_tokens": 3,
        **more,
    }
    path = folder / "task.yaml"
    path.write_text(json.dumps(written))
    return path


def read(path: Path) -> InferenceTask:
    return InferenceTask.model_validate_json(path.read_text())


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["jobs/infer.py", *words])
    return infer.main()


@pytest.mark.slow
def test_prompts_are_answered(
    trained: Trained,
    tmp_path: Path,
    cluster: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = task(trained, tmp_path, adapter="acme")
    assert run(monkeypatch, "--config", str(config)) == 0
    assert "any job that reads this folder can use its adapters" in capsys.readouterr().err
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["prompt"] for row in rows] == ["acme says", "def f(", ""]
    attestation = load_for(read(config)).attestation
    assert {row["attestation"] for row in rows} == {attestation}
    assert {row["adapter"] for row in rows} == {"acme"}
    assert all(row["tokens"] <= 3 for row in rows)
    assert run(monkeypatch, "--config", str(config), "--check") == 0
    # What is there is not written over.
    assert run(monkeypatch, "--config", str(config)) == 2


def test_a_record_of_results_holds_them_to_one_model_and_one_input(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = task(trained, tmp_path)
    asked = read(config)
    out, attestation = Path(asked.output), load_for(asked).attestation

    def write(file: str, **more: object) -> None:
        row = {"prompt": "a", "text": "b", "attestation": attestation, "adapter": "", **more}
        pq.write_table(pa.Table.from_pylist([row]), out / file)

    def checked() -> str:
        code = run(monkeypatch, "--config", str(config), "--check")
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    out.mkdir()
    write("0.parquet")
    assert "can't be read" in checked()
    (out / RECORD).write_bytes(described(asked, attestation, id="s-1", code="1"))
    assert "as recorded" in checked()
    told = json.loads((out / RECORD).read_bytes())
    assert (told["rows"], told["task"], told["attestation"]) == (1, "s-1", attestation)
    write("0.parquet", text="c")
    assert "files differ" in checked()
    write("0.parquet", attestation="sha256:" + "0" * 64)
    assert "a row has the attestation" in checked()
    write("0.parquet")
    assert "as recorded" in checked()  # the control: as it was
    (tmp_path / "in.jsonl").write_text("{}")
    assert "input differ" in checked()
    (out / "folder").mkdir()
    assert "no Parquet" in checked()


def test_a_folder_that_does_not_verify_answers_nothing(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = trained.copy(tmp_path / "model")
    weights = next(other.glob("*.safetensors"))
    flip(weights)
    config = task(trained, tmp_path, other)
    assert run(monkeypatch, "--config", str(config)) == 1
    assert "step" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    flip(weights)  # the control: as it was, it verifies
    assert load_for(read(config)).names


def test_a_task_names_no_rights_of_its_own(trained: Trained, tmp_path: Path) -> None:
    """A submitter's own file gave the submitter every adapter."""
    own = tmp_path / "rights.yaml"
    own.write_text("adapters: {acme: {users: [ben]}}")
    assert read_rights(own).of(Caller(name="ben", account="engineer")) == {"acme"}, (
        "as it would say"
    )
    config = task(trained, tmp_path, adapter="acme", rights=str(own))
    with pytest.raises(UsageError, match="rights: Extra inputs are not permitted"):
        read_task(config.read_bytes(), where="task.yaml")
    # The control: without that field the file is read, and what the model has is answered.
    found = read_task(task(trained, tmp_path, adapter="acme").read_bytes(), where="task.yaml")
    assert load_for(found).names == ("acme",)
    with pytest.raises(UsageError, match="has no adapter 'none'"):
        load_for(read(task(trained, tmp_path, adapter="none")))


def test_a_worker_refuses_another_model_than_the_drivers(trained: Trained, tmp_path: Path) -> None:
    config = read(task(trained, tmp_path))
    with pytest.raises(Refused, match="another attestation"):
        BatchAnswers(config, "sha256:" + "0" * 64)
    answers = BatchAnswers(config, load_for(config).attestation)
    assert answers({"prompt": np.array(["a"], dtype=object)})["text"]
    for wrong in (1, None, "x" * 100_000):
        with pytest.raises(UsageError):
            answers({"prompt": np.array([wrong], dtype=object)})
