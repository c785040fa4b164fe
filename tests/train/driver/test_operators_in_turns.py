"""A run whose operator has two of three keys, one encrypted: trained, cosigned, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.cli import main
from tests.support.committee import CommitteeDeployment
from tests.support.solo import run_here

PASSWORD = b"a long secret"


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(monkeypatch)
        yield


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_two_of_three_operators_leave_a_model_that_verifies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = CommitteeDeployment(tmp_path / "committee")
    private(where.key, where.signers["operator"].to_pem(PASSWORD))
    password = private(tmp_path / "password", PASSWORD + b"\n")
    run = where.trainer(
        max_steps=2,
        checkpoint={"every_steps": 2},
        attestation_key_password_file=str(password),
    ).train(attest=True)
    model, root = str(run / "model"), ("--trust-root", str(where.root))
    second = private(tmp_path / "second.pem", where.signers["second"].to_pem())
    auditor = private(tmp_path / "auditor.pem", where.signers["auditor"].to_pem())

    assert main(["verify", model, *root]) == 1
    assert "signed by 1 of 2 distinct keys" in capsys.readouterr().err
    assert main(["model", "cosign", model, "--key", str(second), *root]) == 0
    assert main(["verify", model, *root]) == 0
    # A replay by another key of the operator is the operator's own.
    capsys.readouterr()
    assert main(["replay", str(run), "--without", "acme", "--key", str(second)]) == 0
    words = ["--key", str(where.key), "--password-file", str(password)]
    assert main(["attest", str(run), *words]) == 0
    assert "1 more of the operator's keys must sign" in capsys.readouterr().out
    assert main(["model", "cosign", model, "--key", str(second), *root]) == 0
    capsys.readouterr()
    assert main(["verify", model, *root]) == 0
    assert "acme 2 (replay identical, by operator itself)" in capsys.readouterr().out
    # A second party's statement holds on when the third key signs too.
    words = ["--key", str(auditor), "--party", "auditor", *root]
    assert main(["replay", str(run), *words]) == 0
    third = private(tmp_path / "third.pem", where.signers["third"].to_pem())
    assert main(["model", "cosign", model, "--key", str(third), *root]) == 0
    capsys.readouterr()
    assert main(["verify", model, *root]) == 0
    assert "replayChecked by auditor" in capsys.readouterr().out
