"""Replays: identical where nothing changed, and named where something did. One rank, no Ray."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.cli import main
from govray.errors import CouldNotCheck, Damaged, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.record.ledger import read_leaves
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import contents, tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs import gating
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from govray.train.replay import replayed_run as replaying
from govray.train.replay.replayed_run import commits, replay
from govray.train.replay.segments import last_branch
from govray.train.worker import run_terms
from tests.support.deployment import POLICY, Deployment
from tests.support.flipped import flip
from tests.support.solo import run_here
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "replay.md"
RUN = {
    "whole": "govray replay RUN",
    "strict": "govray replay RUN --strict",
    "steps": "govray replay RUN --steps 20:40",
    "without": "govray replay RUN --without acme-notes --key operator.pem",
    "attest": "govray attest RUN --key operator.pem",
    "sign": "govray replay RUN --key auditor.pem --party auditor --trust-root root.json",
    "verify": "govray verify RUN/model --trust-root root.json",
}


def test_this_module_runs_every_command_of_the_page() -> None:
    of_replays = PAGE.read_text().partition("## Adapters")[0]
    code = "".join(of_replays.split("```")[1::2])
    assert {line for line in code.splitlines() if line.startswith("govray ")} == set(RUN.values())


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(monkeypatch)
        yield


@pytest.fixture(scope="module")
def run(here: None, deployment: Deployment) -> Path:
    """Six steps, a checkpoint every two, attested."""
    trainer = deployment.trainer(
        name="short",
        max_steps=6,
        checkpoint={"every_steps": 2, "save_trial_latest": 3},
    )
    folder = trainer.train()
    write_model(folder, trainer.signer())
    return folder


@pytest.fixture
def copied(run: Path) -> Iterator[Path]:
    """A copy of the run's folder beside it, to be tampered with."""
    copy = shutil.copytree(run, run.with_name("tampered"), ignore=shutil.ignore_patterns("replay*"))
    yield copy
    shutil.rmtree(copy)


@pytest.fixture
def command(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs one of the page's commands; returns exit code and standard output."""
    key = deployment.folder / "auditor.pem"
    key.write_bytes(deployment.signers["auditor"].to_pem())
    key.chmod(0o600)
    monkeypatch.setenv("GOVRAY_KEY", str(deployment.key))

    def run_command(name: str, run: Path, *more: str) -> tuple[int, str]:
        words = RUN[name].removeprefix("govray ").replace("RUN", str(run)).split()
        there = {
            "20:40": "2:4",
            "acme-notes": "acme",
            "auditor.pem": key,
            "operator.pem": deployment.key,
            "root.json": deployment.root,
        }
        code = main([*(str(there.get(word, word)) for word in words), *more])
        return code, capsys.readouterr().out

    return run_command


def tamper(run: Path, *path: str, value: object) -> None:
    """Change one field of a run's record."""
    file = run / "record" / "run.json"
    summary: Any = canonical_json.parse_canonical(file.read_bytes())
    inner = summary
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_bytes(canonical_json.encode(summary))


def test_a_second_party_replays_the_whole_run_and_signs(run: Path, command: Any) -> None:
    code, out = command("sign", run, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["identical"] is True
    assert (told["start"], told["stop"], told["checkpoints"]) == (0, 6, [2, 4, 6])
    assert told["original"] == told["replayed"]
    assert {model_folder.WEIGHTS, "optimizer.safetensors"} <= told["original"].keys()
    assert "leaf" not in told
    assert told["differences"] == []
    assert read_record(run / "replays" / told["run"]).replay_of == run.name
    assert Path(told["statement"]) == run / "model" / model_folder.replay_file("auditor")
    code, out = command("verify", run)
    assert code == 0
    assert "replayChecked by auditor: not shown are" in out


def test_the_operator_is_no_second_party_and_nothing_runs(
    run: Path, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((run / "replays").glob("*"))
    words = ["--key", str(deployment.key), "--party", "me", "--trust-root", str(deployment.root)]
    assert main(["replay", str(run), *words]) == 1
    assert "no second party" in capsys.readouterr().err
    assert main(["replay", str(run), *words, "--steps", "2:4"]) == 2
    assert sorted((run / "replays").glob("*")) == before


def test_recorded_inputs_are_verified_at_the_recorded_time(run: Path, tmp_path: Path) -> None:
    """What was valid then doesn't stop a replay later; what was not valid then does."""
    record = read_record(run)
    inputs = recorded_inputs(run, record)
    assert inputs.manifest.digest == record.plan.manifest
    order = replaying._order(inputs, record.plan, tmp_path)
    assert order.expiries == {}
    with pytest.raises(Refused, match="expired"):
        recorded_inputs(run, replace(record, started=record.started + timedelta(days=3)))
    other = record.plan.model_copy(update={"manifest": "sha256:" + "00" * 32})
    with pytest.raises(Refused, match="another manifest"):
        recorded_inputs(run, replace(record, plan=other))
    with pytest.raises(CouldNotCheck, match="data that the run read is not here"):
        recorded_inputs(tmp_path / "elsewhere" / run.name, record)
    with pytest.raises(UsageError, match="script"):
        recorded_inputs(run, replace(record, experiment=None))


def test_some_steps_are_replayed_from_a_kept_checkpoint(run: Path, command: Any) -> None:
    code, out = command("steps", run, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["identical"] is True
    assert (told["start"], told["stop"], told["checkpoints"]) == (2, 4, [4])


def test_without_a_corpus_of_the_trunk_the_first_tensor_that_differs_is_named(run: Path) -> None:
    """The control: leaving out what did train the base must change it."""
    outcome = replay(run, without="weak-one")
    assert not outcome.identical
    assert outcome.leaf is None
    assert outcome.tensor is not None
    assert outcome.tensor.file == model_folder.WEIGHTS
    assert outcome.tensor.max_abs


def test_a_damaged_checkpoint_is_an_error_and_not_a_difference(
    copied: Path,
) -> None:
    weights = commits(copied)[4] / model_folder.WEIGHTS
    flip(weights)
    with pytest.raises(Damaged, match="differs from its digest"):
        replay(copied, steps=(2, 4))


def test_without_a_corpus_all_else_is_the_same_and_can_be_attested(
    copied: Path, command: Any
) -> None:
    code, out = command("without", copied)
    assert code == 0
    assert out.startswith("IDENTICAL  steps 0 to 5, without acme")
    code, told = command("attest", copied)
    assert code == 0
    assert "acme by operator" in told
    code, out = command("verify", copied, "--json")
    assert code == 0
    assert set(json.loads(out)["levels"]["acme"].values()) == {2}
    assert json.loads(out)["replayedBy"] == {"acme": [{"party": "operator", "operator": True}]}
    assert "acme 2 (replay identical, by operator itself)" in command("verify", copied)[1]
    # From a state that has the corpus's adapter, which the replay then leaves alone.
    outcome = replay(copied, steps=(2, 4), without="acme")
    assert outcome.identical
    assert list(outcome.original) == [model_folder.WEIGHTS]


def test_a_changed_weight_under_a_matching_manifest_is_found_by_name(
    copied: Path, command: Any
) -> None:
    folder = commits(copied)[4]
    files = dict(commit_folder.load(folder).files)
    tensors = tensors_of(commit_folder.load(folder), model_folder.WEIGHTS)
    name = sorted(tensors)[-1]
    with torch.no_grad():
        tensors[name].view(-1)[0] += 0.5
    shutil.rmtree(folder)
    commit_folder.commit(folder, contents(files | {model_folder.WEIGHTS: tensors}))
    code, out = command("steps", copied)
    assert code == 1
    assert f"checkpoint of step 4: {model_folder.WEIGHTS}: {name}, by at most 0.5" in out
    assert "steps 2 to 3" in out


def test_other_code_runs_nothing_and_other_versions_only_without_strict(
    copied: Path, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(copied, "environment", "packages", "torch", value="1.0")
    assert command("strict", copied)[0] == 3
    tamper(copied, "environment", "codeDigest", value="sha256:" + "00" * 32)
    assert command("whole", copied)[0] == 3
    assert not (copied / "replays").exists()


class Clock:
    """Stands for the worker's ``time``: two hours pass with step 2."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.passed = 0.0

    def time(self) -> float:
        return time.time() + self.passed

    def tell(self, step: int, metrics: Mapping[str, float]) -> None:
        self.passed = 7200.0 if step >= 2 else 0.0


def test_a_replay_leaves_out_what_the_run_left_out_and_looks_at_no_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A credential ended after step 2; policy and clock of the replay would say otherwise."""
    gate = Deployment(tmp_path / "gate", policy_text=POLICY.replace("stop", "gate"))
    shutil.rmtree(gate.corpora / "weak-one")
    gate.add("weak-one", until=gate.at + timedelta(hours=1))
    value = gate.experiment(
        max_steps=6,
        checkpoint={"every_steps": 2, "save_trial_latest": 3},
        resources={"num_workers": 1},
    )
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(run_terms, "time", clock)
        experiment = parse_experiment(value, where="test")
        run = Path(GovernedTrainer(experiment, on_step=clock.tell).train())
    leaves = last_branch(read_leaves(commit_folder.load(commits(run)[6]).files["ledger.jsonl"]))
    assert ["weak-one" in leaf.corpora for leaf in leaves] == [True] * 3 + [False] * 3
    assert replay(run).identical
    assert replay(run, steps=(2, 4)).identical
    assert replay(run, steps=(4, 6)).identical
    monkeypatch.setattr(gating, "resumed", lambda *_: gating.UNDECIDED)  # the negative control
    outcome = replay(run)
    assert outcome.identical is False
    assert outcome.leaf is not None
    assert (outcome.leaf.step, outcome.leaf.fields) == (3, ("corpora",))
