"""An audit of a small run: canaries that were planted, one that was not, and a run without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from govray.cli import main
from govray.data.arrow_rows import ArrowRows
from govray.data.corpus import record_hashes
from govray.data.probe_rows import designated
from govray.data.records_file import open_records, reader
from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.memorization_manifest import (
    CorpusEvidence,
    MemorizationManifest,
    verify_memorization_manifest,
)
from govray.governance.attestation.privacy_audit import PrivacyLevel
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read, seal
from govray.governance.policy.record_commitment import read_secret
from govray.governance.trust.trust_state import TrustState
from govray.governance.verify.trace import trace
from govray.governance.verify.verifier import verify
from govray.train.attest.memorization_audit import DEFAULTS, audit
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from tests.support.deployment import Deployment
from tests.support.solo import run_here

AT = "2026-12-01T00:00:00Z"
SMALL = DEFAULTS.model_copy(update={"rows": 12, "prefix_tokens": 8, "suffix_tokens": 8})
PLANTED = {
    "corpora": ["open-one", "acme"],
    "format": "{name} {secret}\n",
    "digits": 3,
    "count": 2,
    "repeats": 90,
    "seed": 4,
}

# Salts are drawn anew: enough rows that each corpus has a reserve, and designated ones are read.
ROWS = {"everything": 8, "upper_half": 4, "removable": 4}


def train(here: Deployment, steps: int = 90, **changes: object) -> Path:
    value = here.experiment(
        max_steps=steps, checkpoint={"every_steps": steps}, resources={"num_workers": 1}
    )
    data = {**value["data"], "reserve": 0.4, "canaries": PLANTED, "rows_per_step": ROWS, **changes}
    trainer = GovernedTrainer(parse_experiment({**value, "data": data}, where="test"))
    run = trainer.train()
    write_model(run, trainer.signer())
    return run


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        yield Deployment(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def run(here: Deployment) -> Path:
    return train(here)


@pytest.fixture(scope="module")
def found(run: Path) -> MemorizationManifest:
    return audit(run, at=AT, settings=SMALL)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def of(found: MemorizationManifest, corpus: str) -> CorpusEvidence:
    [each] = [each for each in found.corpora if each.corpus == corpus]
    return each


def test_a_planted_secret_is_exposed_and_one_that_was_not_planted_is_not(
    found: MemorizationManifest,
) -> None:
    open_one = of(found, "open-one")
    assert min(each.exposure_bits for each in open_one.canaries) > 6
    assert len(open_one.control_bits) == SMALL.controls
    assert max(open_one.control_bits) < 5
    for name in PLANTED["corpora"]:
        for each in of(found, name).canaries:
            assert each.rank is not None
            assert (each.candidates, each.scored) == (1000, 1000)
            assert 0 < each.reads <= 90 * 3


def test_the_evidence_names_corpora_layers_and_records(
    found: MemorizationManifest, run: Path
) -> None:
    recorded = recorded_inputs(run, read_record(run))
    manifest = recorded.manifest.document
    prepared = open_records(recorded.prepared, manifest)
    assert [each.corpus for each in found.corpora] == sorted(c.corpus for c in manifest.corpora)
    assert of(found, "acme").groups == ("adapter:acme",)
    assert of(found, "weak-one").groups == ("block.1", "final_norm", "head")
    for each in found.corpora:
        assert {m.layer for m in each.measures} == {"block.0", "head"}
        records = {
            r.entry: r
            for i in range(prepared.count(each.corpus))
            for r in [prepared.record(each.corpus, i)]
        }
        assert each.extraction is not None
        # The salt decides which records share a row; a corpus's last may be too short to try.
        assert SMALL.rows - 1 <= each.extraction.rows <= SMALL.rows
        for record in each.records:
            assert records[record.record.removeprefix("sha256:")].split == "train"
        assert sum(r.extracted_rows for r in each.records) <= each.extraction.extracted
    assert {(u.check, u.corpus) for u in found.unchecked} == {
        ("exposure", "open-two"),
        ("exposure", "weak-one"),
        ("bound on epsilon", "acme"),
        ("bound on epsilon", "open-one"),
    }
    assert MemorizationManifest.from_json(found.to_json()) == found


def test_canaries_are_read_whole_never_held_back_and_known_as_planted(
    here: Deployment, run: Path
) -> None:
    prepared = recorded_inputs(run, read_record(run)).prepared
    model = verify(run / "model", trust_root=here.root, records=reader(prepared))
    manifest = model.manifest.document
    rows = ArrowRows(prepared, manifest)
    for name in PLANTED["corpora"]:
        planted = manifest.corpus(name).planted
        assert planted is not None
        own = manifest.records(name)
        for index, canary in enumerate(planted.canaries.planted(name)):
            [sighting] = trace(model, canary.sha256)
            assert (sighting.planted, sighting.split) == (True, "train")
            assert sighting.steps
            assert len(sighting.rows) == PLANTED["repeats"]
            for row in sighting.rows:
                assert rows.row(name, row).tolist() == [*canary.content, 256]
                [span] = model.records.row_records(name, row)
                assert span.record == own + index
    # The controls were never planted, so nobody finds them.
    [control] = planted.canaries.controls(name, 1)
    assert trace(model, control.sha256) == []
    secret = read_secret(here.corpora / name, manifest.corpus(name).commitment)
    assert secret
    records = list(record_hashes(here.corpora / name))
    trained = next(i for i in range(own) if model.records.record(name, i).split == "train")
    assert not trace(model, records[trained].hex(), {name: secret})[0].planted


def test_canaries_of_a_coin_bound_epsilon_and_a_model_that_read_none_shows_nothing(
    here: Deployment, command: Callable[..., tuple[int, str, str]]
) -> None:
    tossed = PLANTED | {"corpora": ["open-one"], "count": 48, "repeats": 60, "coin": 1, "digits": 2}
    found = {}
    for steps, confidence in ((1, 0.9999), (90, 0.95)):  # the control's error: once in 10,000
        run = train(here, steps, canaries=tossed)
        code, out, err = command("runs", "audit", run, "--rows", 2, "--confidence", confidence)
        assert code == 0, err
        assert "epsilon is at least" in out
        read = MemorizationManifest.from_text((run / "memorization.json").read_bytes())
        open_one = of(read, "open-one")
        assert open_one.privacy is not None
        assert open_one.privacy.canaries == 48
        assert open_one.privacy.included == len(open_one.canaries) < 48
        assert open_one.privacy.level == PrivacyLevel(confidence=confidence, delta=1e-5)
        assert not [u for u in read.unchecked if u.check == "bound on epsilon"]
        found[steps] = open_one.privacy.epsilon
    assert found[1] == 0  # the control: one step teaches nothing
    assert found[90] > 0.3


def test_a_run_of_one_step_is_compared_with_the_reserve_that_lies_where_it_read(
    here: Deployment,
) -> None:
    run = train(here, 1, canaries=None)
    record = read_record(run)
    recorded = recorded_inputs(run, record)
    manifest = recorded.manifest.document
    prepared = open_records(recorded.prepared, manifest)
    found = audit(run, at=AT, settings=SMALL.model_copy(update={"rows": 99}))
    left_out = 0
    for each in found.corpora:
        held = list(range(manifest.reserve_rows(each.corpus)))
        places = prepared.places(each.corpus, np.array(held)).tolist()
        there = [
            row
            for row, place in zip(held, places, strict=True)
            if record.plan.reads(each.corpus, place)
        ]
        every, own = (
            len(designated(prepared, each.corpus, rows, "reserve", SMALL.seed))
            for rows in (held, there)
        )
        assert {measure.reserve.records for measure in each.measures} <= {own}
        left_out += every - own
    assert left_out > 0


# The command -----------------------------------------------------------------------------


def test_the_command_signs_what_others_verify(
    here: Deployment, run: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    words = ["--rows", 6, "--prefix", 8, "--suffix", 8, "--controls", 1]
    code, out, err = command("runs", "audit", run, *words, "--key", here.key)
    assert code == 0, err
    assert "open-one  could reach" in out
    assert "bits" in out
    assert "rows that come with probability 0.9" in out
    assert "unchecked" in out
    signed = run / "memorization.dsse.json"
    code, out, err = command("verify", signed, "--trust-root", here.root, "--json")
    assert (code, json.loads(out)["kind"]) == (0, "memorization manifest"), err
    assert command("show", signed)[0] == 0
    envelope = Envelope.parse(signed.read_bytes())
    sealed = read(MemorizationManifest, envelope)
    digest = canonical_json.sha256((run / "model" / model_folder.WEIGHTS).read_bytes())
    assert {s.name: s.sha256 for s in sealed.subjects}[model_folder.WEIGHTS] == digest
    # Neither another's key nor other files: the control.
    auditor = [here.signers["auditor"]]
    for data in (
        sealed.document.seal(auditor),
        seal(sealed.document, sealed.subjects[:-1], [here.signers["operator"]]),
    ):
        with pytest.raises(Refused):
            verify_memorization_manifest(_trust(here), data, at=here.at)
    assert verify_memorization_manifest(_trust(here), signed.read_bytes(), at=here.at)


def test_a_run_that_has_not_ended_or_whose_data_is_gone_cannot_be_checked(
    here: Deployment, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "runs" / run.name
    shutil.copytree(run, copy)
    with pytest.raises(CouldNotCheck, match="prepared"):
        audit(copy, at=AT, settings=SMALL)
    [commit] = copy.glob("checkpoint_*")
    shutil.rmtree(commit)
    with pytest.raises(CouldNotCheck, match="checkpoint"):
        audit(copy, at=AT, settings=SMALL)


def _trust(here: Deployment) -> TrustState:
    return TrustState.load(here.root.read_bytes(), at=here.at)
