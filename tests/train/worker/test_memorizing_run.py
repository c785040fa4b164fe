"""A corpus that a tiny model learns by heart: caught, gated or rolled back, and forgotten."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from safetensors.torch import load

from govray.data.corpus import build, unsigned_credential
from govray.data.records_file import open_records
from govray.engine.memorization import exposure
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.policy.credential import Period
from govray.governance.record.e_process import least_odds
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.recorded_inputs import prepared_folder
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.state.snapshot import latest
from tests.support.deployment import CORPUS_SECRET, POLICY, Deployment
from tests.support.solo import run_here

pytestmark = pytest.mark.slow


PLANTED = "weak-one"
DIGITS, SECRET = 32, 6
STEPS = 120
SECTION = """
memorization:
  every: 20
  probe_rows: 16
  odds: {head: 1.5}
  ROLLBACKS
  actions: {weak: ACTION}
"""


OWN = '  own: {layers: none, adapter: "{corpus}", rank: 16}\nrules:'


def planted(folder: Path, action: str, profile: str = "rules:") -> Deployment:
    """A deployment of which one corpus holds random digits, a record filling a row."""
    section = SECTION.replace("ACTION", action)
    section = section.replace("ROLLBACKS", "rollbacks: 1" if action == "rollback" else "fdr: 0.05")
    # Its weight gives it a stream of its own: it is read as often as the test likes.
    text = POLICY.replace('["blocks[0.5:]", final_norm, head]', "{all: 0.9}") + section
    here = Deployment(folder, policy_text=text.replace("rules:", profile, 1))
    shutil.rmtree(here.corpora / PLANTED)
    contents = ((f"{n:03d}.txt", record.encode()) for n, record in records())
    built = build(here.corpora, PLANTED, contents, secret=CORPUS_SECRET)
    credential = unsigned_credential(
        built,
        license="LGPL-3.0-only",
        issuer="issuer",
        sensitivity="public",
        valid=Period(
            from_=format_time(here.at - here.lifetime), until=format_time(here.at + here.lifetime)
        ),
    )
    (here.corpora / PLANTED / "credential.dsse.json").write_bytes(
        credential.seal([here.signers["issuer"]])
    )
    return here


def records() -> list[tuple[int, str]]:
    draw = random.Random(5)
    return [(n, "".join(draw.choices("0123456789", k=DIGITS))) for n in range(28)]


def trainer_of(here: Deployment, *, workers: int = 1) -> GovernedTrainer:
    value = here.experiment(
        max_steps=STEPS,
        hyperparameters={"blocks": 2, "width": 64, "context": DIGITS},
        optimizer={"lr": 5e-3},
        checkpoint={"every_steps": 20},
        resources={"num_workers": workers, "cpus_per_worker": 0.5},
    )
    quotas = {"everything": 2, "upper_half": 12, "removable": 1}
    value["data"] |= {"reserve": 0.4, "epochs": 400, "rows_per_step": quotas}  # type: ignore[operator]
    return GovernedTrainer(parse_experiment(value, where="test"))


def attested(here: Deployment) -> tuple[Path, VerifiedModel]:
    trainer = trainer_of(here)
    run = trainer.train()
    write_model(run, trainer.signer())
    return run, verify(run / "model", trust_root=here.root)


def final_odds(model: VerifiedModel) -> float:
    findings = model.attestation.memorization
    assert findings is not None
    assert findings.measured[PLANTED] == STEPS - 1
    [found] = [m for m in findings.measures if m.place == (PLANTED, "head")]
    return least_odds([found])


def mean_exposure(run: Path, model: VerifiedModel, adapter: str | None = None) -> float:
    """Of the ends of the planted records that were trained on, in bits, at most 8 each."""
    found = latest(run)
    assert found is not None
    files: Any = commit_folder.load(found[0]).files
    gpt = GPT(blocks=2, width=64, context=DIGITS, vocabulary=257)
    gpt.load_state_dict(load(files[model_folder.WEIGHTS]))
    gpt.eval()
    adapters = Adapters(gpt, {adapter: 16} if adapter else {}, seed=0)
    if adapter:
        config, weights = model_folder.adapter_files(adapter)
        adapters.load(adapter, canonical_json.parse(files[config]), load(files[weights]))
    with adapters.active(adapter):
        return _mean_exposure(gpt, run, model)


def _mean_exposure(gpt: GPT, run: Path, model: VerifiedModel) -> float:
    draw = random.Random(7)
    prepared = open_records(prepared_folder(run, read_record(run)), model.manifest.document)
    trained = [
        text.encode()
        for number, (_, text) in enumerate(records())
        if prepared.record(PLANTED, number).split == "train"
    ]
    measured = []
    for record in trained:
        others = [bytes(draw.choices(b"0123456789", k=SECRET)) for _ in range(255)]
        found_bits = exposure.measure(
            gpt, list(record), [list(record[:-SECRET] + each) for each in others], 10**SECRET
        ).sampled_bits
        assert found_bits is not None
        measured.append(found_bits)
    return fmean(measured)


@pytest.mark.story
def test_a_planted_corpus_is_caught_and_gated_and_the_model_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    gated, story = attested(planted(tmp_path / "gate", "{action: gate, fallback: nothing}"))
    [gate] = story.gates
    assert (gate.corpus, gate.reason) == (PLANTED, "memorization")
    assert not any(
        leaf.step >= gate.step and PLANTED in leaf.corpora for leaf in story.ledger.steps
    )
    assert final_odds(story) <= 2
    # The control: where it is only flagged, the model goes on to learn it.
    flagged, control = attested(planted(tmp_path / "flag", "flag"))
    assert control.gates == ()
    [flag] = control.attestation.memorization.decisions[:1]  # type: ignore[union-attr]
    assert (flag.corpus, flag.action) == (PLANTED, "flag")
    assert final_odds(control) > 2
    assert mean_exposure(gated, story) < 3 < 6 < mean_exposure(flagged, control)


@pytest.mark.story
def test_a_planted_corpus_is_rerouted_and_only_its_adapter_goes_on_to_learn_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    here = planted(tmp_path, "{action: gate, fallback: own}", OWN)
    run, story = attested(here)
    [gate] = story.gates
    assert (gate.corpus, gate.reason, gate.fallback) == (PLANTED, "memorization", "own")
    # What the command says, from the files alone.
    command = ["verify", str(run / "model"), "--trust-root", str(here.root)]
    govray = [sys.executable, "-c", "import sys; from govray.cli import main; sys.exit(main())"]
    done = subprocess.run([*govray, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = f"{PLANTED} rerouted to own from step {gate.step}: memorization"
    assert said in " ".join(done.stdout.split())
    # It is read to the end, and trains nothing but its adapter from the gate on.
    read = [leaf.step for leaf in story.ledger.steps if PLANTED in leaf.corpora]
    assert max(read) == STEPS - 1
    assert story.coverage[PLANTED, "head"].steps == sum(step < gate.step for step in read)
    assert story.coverage[PLANTED, f"adapter:{PLANTED}"].steps == STEPS - gate.step
    # So the base forgets it, as it does where the corpus is left out, and the adapter knows it.
    assert mean_exposure(run, story) < 3 < 6 < mean_exposure(run, story, adapter=PLANTED)


@pytest.mark.story
def test_a_planted_corpus_is_rolled_back_by_two_workers(tmp_path: Path, cluster: None) -> None:
    here = planted(tmp_path / "back", "rollback")
    run = Path(trainer_of(here, workers=2).fit().path)
    model = verify(run / "model", trust_root=here.root)
    findings = model.attestation.memorization
    assert findings is not None
    [decision] = [each for each in findings.decisions if each.action == "rollback"]
    assert (decision.corpus, decision.layers) == (PLANTED, ("head",))
    first, second = findings.branches
    assert (first, second) == (0, decision.since)  # a commit every probe: none is kept in vain
    [gate] = model.gates
    assert (gate.branch, gate.step, gate.corpus) == (1, decision.since, PLANTED)
    assert {leaf.world_size for leaf in model.ledger.steps} == {2}
    logged = events.read(run)
    assert [e.decision for e in logged if isinstance(e, events.Memorized)] == [decision]
    assert not any(isinstance(each, events.Failed) for each in logged)
    assert len([each for each in logged if isinstance(each, events.AttemptStarted)]) == 2
    if decision.since:
        assert final_odds(model) <= 2
    else:  # its first two profiles exceeded: the branch that went on read nothing of it
        assert PLANTED not in findings.measured
