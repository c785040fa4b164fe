"""What `attest` takes for level 2: outcomes that an operator or a witness signed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from govray.cli import main
from govray.errors import Refused, Untrusted
from govray.governance.attestation import model_folder
from govray.governance.attestation.replay_outcome import ReplayOutcome
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import read
from govray.governance.trust.trust_state import TrustState
from govray.train.replay.replay_outcome import FILE, FOLDER, ReplayFinding, evidence
from govray.train.replay.replayed_run import replay
from tests.support.deployment import Deployment
from tests.support.solo import run_here


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(monkeypatch)
        yield


@pytest.fixture(scope="module")
def replayed(here: None, deployment: Deployment) -> tuple[Path, ReplayFinding]:
    """A run of four steps, and what its replay without acme found; nobody signed it."""
    folder = deployment.trainer(
        name="evidence",
        max_steps=4,
        checkpoint={"every_steps": 4},
    ).train()
    return folder, replay(folder, without="acme")


@pytest.fixture
def run(replayed: tuple[Path, ReplayFinding], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the run's folder, beside it."""
    copy = shutil.copytree(replayed[0], replayed[0].with_name("copy"))
    yield copy
    shutil.rmtree(copy)


@pytest.fixture
def outcome(replayed: tuple[Path, ReplayFinding]) -> ReplayFinding:
    return replayed[1]


def trust(deployment: Deployment) -> TrustState:
    return TrustState.load(deployment.root.read_bytes(), at=deployment.at)


def now() -> datetime:
    return datetime.now(UTC)


def sign(
    run: Path, outcome: ReplayFinding, deployment: Deployment, name: str, **changes: Any
) -> Path:
    """The outcome signed by ``name``, as ``govray replay --key`` leaves it."""
    folder = run / FOLDER / f"{outcome.run}-{name}"
    folder.mkdir(exist_ok=True)
    signer, at = deployment.signers[name], now()
    return replace(outcome, **changes).sign(folder, signer, trust(deployment), at=at)


def attest(
    run: Path, deployment: Deployment, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["attest", str(run), "--key", str(deployment.key), *more])
    return (code, *capsys.readouterr())


def verdict(run: Path, deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["verify", str(run / "model"), "--trust-root", str(deployment.root)]) == 0
    return capsys.readouterr().out


def test_an_outcome_that_nobody_signed_gives_no_level(
    run: Path, outcome: ReplayFinding, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write to the run's storage can write this file; it is even true here."""
    assert outcome.identical
    assert outcome.whole
    code, out, _ = attest(run, deployment, capsys)
    assert code == 0
    assert "replays    none" in out
    assert f"{FILE}: it is not signed; replay again with --key" in out
    assert "acme 1 (exclusion counted)" in verdict(run, deployment, capsys)
    _, out, _ = attest(run, deployment, capsys, "--json")
    told = json.loads(out)
    assert told["replays"] == []
    assert [Path(each).name for each in told["unsigned"]] == [FILE]


def test_a_witness_is_named_and_its_outcome_goes_with_the_model(
    run: Path,
    outcome: ReplayFinding,
    deployment: Deployment,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    sent = shutil.move(sign(run, outcome, deployment, "auditor"), tmp_path / "auditor.dsse.json")
    assert evidence(run, at=now()) == ()
    code, out, _ = attest(run, deployment, capsys, "--replay", str(sent))
    assert code == 0
    assert "acme by auditor" in out
    assert (run / "model" / model_folder.REPLAYS).read_bytes() == Path(sent).read_bytes() + b"\n"
    assert "acme 2 (replay identical, by auditor)" in verdict(run, deployment, capsys)
    sign(run, outcome, deployment, "operator")
    attest(run, deployment, capsys, "--replay", str(sent))
    said = verdict(run, deployment, capsys)
    assert "acme 2 (replay identical, by auditor and operator itself)" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"of": "run-0000"}, "is of run run-0000"),
        ({"plan": "sha256:" + "00" * 32}, "another plan"),
        ({"without": "weak-one"}, "another plan"),
        (
            {
                "original": {model_folder.WEIGHTS: "sha256:" + "00" * 32},
                "replayed": {model_folder.WEIGHTS: "sha256:" + "00" * 32},
            },
            "compared another model.safetensors",
        ),
    ],
    ids=["run", "plan", "corpus", "weights"],
)
def test_a_signed_outcome_of_something_else_is_refused(
    run: Path, outcome: ReplayFinding, deployment: Deployment, changes: dict[str, Any], says: str
) -> None:
    sign(run, outcome, deployment, "operator", **changes)
    with pytest.raises(Refused, match=says):
        evidence(run, at=now())


def test_nobody_else_may_sign_and_nothing_signed_may_change(
    run: Path, outcome: ReplayFinding, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Untrusted, match="no operator and no witness"):
        sign(run, outcome, deployment, "issuer")
    path = sign(run, outcome, deployment, "operator")
    document = read(ReplayOutcome, Envelope.parse(path.read_bytes())).document
    path.write_bytes(document.seal([LocalSigner.generate()]))
    code, _, err = attest(run, deployment, capsys)
    assert code == 1
    assert "no signature verifies" in err
    # The operator's own replay under a second party's name.
    renamed = document.model_copy(update={"party": "auditor"})
    path.write_bytes(renamed.seal([deployment.signers["operator"]]))
    code, _, err = attest(run, deployment, capsys)
    assert code == 1
    assert "operator signed it" in err
    assert "witness's signature" in err
    # Another digest under the true signature.
    true: Any = canonical_json.parse(sign(run, outcome, deployment, "operator").read_bytes())
    other = document.model_copy(update={"replay": "x"}).seal([LocalSigner.generate()])
    forged: Any = canonical_json.parse(other)
    path.write_bytes(canonical_json.encode(forged | {"signatures": true["signatures"]}))
    assert attest(run, deployment, capsys)[0] == 1


def test_a_replay_that_differed_outweighs_an_identical_one(
    run: Path, outcome: ReplayFinding, deployment: Deployment
) -> None:
    sign(run, outcome, deployment, "operator")
    assert [each.replay.party for each in evidence(run, at=now())] == ["operator"]
    path = sign(run, outcome, deployment, "auditor")
    document = read(ReplayOutcome, Envelope.parse(path.read_bytes())).document
    differs = document.model_copy(
        update={"identical": False, "replayed": {model_folder.WEIGHTS: "sha256:" + "00" * 32}}
    )
    path.write_bytes(differs.seal([deployment.signers["auditor"]]))
    assert evidence(run, at=now()) == ()
    # Some of the steps say nothing about the whole.
    part = differs.model_copy(update={"stop": 3})
    path.write_bytes(part.seal([deployment.signers["auditor"]]))
    assert [each.replay.party for each in evidence(run, at=now())] == ["operator"]


def test_a_key_of_nobody_runs_nothing(
    run: Path, deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((run / FOLDER).glob("*"))
    key = tmp_path / "issuer.pem"
    key.write_bytes(deployment.signers["issuer"].to_pem())
    key.chmod(0o600)
    assert main(["replay", str(run), "--without", "acme", "--key", str(key)]) == 1
    assert "no operator and no witness" in capsys.readouterr().err
    assert sorted((run / FOLDER).glob("*")) == before
