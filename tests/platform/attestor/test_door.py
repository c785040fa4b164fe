"""The register's door: who may say what, within which bounds, and what is loaded for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from govray.cli import attestor
from govray.errors import GovrayError, InfrastructureFailed, Refused, UsageError
from govray.governance.submission.register_client import RegisterClient
from govray.platform.attestor.door import register_door
from govray.platform.attestor.register import Register
from govray.platform.attestor.settings import read_settings
from tests.support.registered import (
    RUN,
    SUBMISSION,
    TOKEN,
    TRUST_ROOT,
    acceptance,
    attempt,
    committed,
    digest,
    started,
)
from tests.support.tree import ROOT
from tests.support.web_server import certified

NOW = datetime(2026, 11, 24, 9, tzinfo=UTC)
ALL = "/v1/register/submissions"
ONE = f"{ALL}/{SUBMISSION}"
SERVICE = {"Authorization": f"Bearer {TOKEN}"}
JOB = {"Authorization": "Bearer one"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    register = Register(f"sqlite:///{tmp_path}/register.db")
    app = register_door(register, TOKEN, TRUST_ROOT, lambda: NOW)
    yield TestClient(app, raise_server_exceptions=False)
    register.close()


def filled(client: TestClient) -> None:
    for url, form, who in (
        (ALL, acceptance(), SERVICE),
        (f"{ONE}/attempts", attempt(1, "one"), SERVICE),
        (f"{ONE}/posts", started(), JOB),
        (f"{ONE}/posts", committed(1, 5), JOB),
    ):
        assert client.post(url, json=form.to_json(), headers=who).status_code == 200


def test_a_submission_is_told_and_shown(client: TestClient) -> None:
    filled(client)
    shown = client.get(ONE, headers=SERVICE).json()
    own = {"registered": "2026-11-24T09:00:00Z", "trustRoot": TRUST_ROOT}
    assert shown["accepted"] == acceptance().to_json() | own
    opened = {"number": 1, "submission": SUBMISSION, "opened": "2026-11-24T09:00:00Z"}
    assert shown["attempts"] == [opened | {"facts": acceptance().facts_digest}]
    [run] = shown["runs"]
    assert (run["run"], run["lastCommit"]["commit"]) == (RUN, digest("commit 5"))
    told = client.get(f"{ONE}/runs/{RUN}", headers=JOB).json()
    assert (told["step"], told["ledgerSize"], told["sequence"]) == (5, "5", 2)
    assert client.get(f"{ONE}/runs/{RUN}?at_most=4", headers=JOB).json()["step"] == 0


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", ALL),
        ("POST", f"{ONE}/attempts"),
        ("POST", f"{ONE}/posts"),
        ("GET", ONE),
        ("GET", f"{ONE}/runs/{RUN}"),
    ],
)
def test_each_needs_its_own_secret(client: TestClient, method: str, url: str) -> None:
    filled(client)
    job = url.endswith(("/posts", RUN))
    body = started().to_json() if job else acceptance().to_json()
    if url.endswith("/attempts"):
        body = attempt(1, "one").to_json()
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        SERVICE if job else JOB,
    ]
    for headers in wrong:
        answer = client.request(method, url, json=body, headers=headers)
        assert (answer.status_code, answer.json()["title"]) == (401, "Not accepted")
        assert answer.headers["content-type"] == "application/problem+json"
    right = client.request(method, url, json=body, headers=JOB if job else SERVICE)
    assert right.status_code == 200


def test_what_does_not_extend_is_told(client: TestClient) -> None:
    filled(client)
    back = committed(2, 4, digest("commit 5"))
    answer = client.post(f"{ONE}/posts", json=back.to_json(), headers=JOB)
    assert (answer.status_code, answer.json()["title"]) == (409, "Refused")
    assert "lies before step 5" in answer.json()["detail"]
    answer = client.post(f"{ONE}/posts", json=committed(1, 6).to_json(), headers=JOB)
    assert (answer.status_code, answer.json()["title"]) == (409, "Flagged")
    [shown] = client.get(ONE, headers=SERVICE).json()["attempts"]
    assert shown["flagged"] == "two different posts are number 1"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b"x" * 300_000, 413),
        (b'{"number":1}', 422),
        (b'{"number":1,"secret":"one"}', 422),
        (b'{"number":"1","secret":"sha256:%s"}' % (b"0" * 64), 422),
        (b'{"number":1,"secret":"sha256:%s","more":1}' % (b"0" * 64), 422),
        (b'{"number":1,"number":2,"secret":"sha256:%s"}' % (b"0" * 64), 422),
    ],
)
def test_a_form_is_strict(client: TestClient, body: bytes, status: int) -> None:
    filled(client)
    answer = client.post(f"{ONE}/attempts", content=body, headers=SERVICE)
    assert answer.status_code == answer.json()["status"] == status


@pytest.mark.parametrize(
    "changes",
    [
        {"submission": "../s"},
        {"run": "a/b"},
        {"isolation": "none"},
        {"trustRoot": TRUST_ROOT},
        {"submitted": "yesterday"},
        {"config": "sha256:1"},
    ],
)
def test_an_acceptance_is_strict(client: TestClient, changes: dict[str, Any]) -> None:
    body = acceptance().to_json() | changes
    assert client.post(ALL, json=body, headers=SERVICE).status_code == 422


def test_what_is_not_there(client: TestClient) -> None:
    filled(client)
    missing = (f"{ALL}/s-2", f"{ALL}/s%00", "/", "/v1")
    assert {client.get(each, headers=SERVICE).status_code for each in missing} == {404}
    assert client.delete(ONE, headers=SERVICE).status_code == 405


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """``attestor.yaml`` of a register on every address, with a certificate for localhost."""
    certified(tmp_path)
    value = yaml.safe_load((ROOT / "deploy/attestor.yaml").read_text())
    value |= {"host": "0.0.0.0", "port": 0, "certificate": "tls.crt", "certificate_key": "tls.key"}
    (file := tmp_path / "attestor.yaml").write_text(yaml.safe_dump(value))
    return file


def test_on_other_addresses_it_speaks_tls(
    tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [(each, signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT)]
    register = Register(f"sqlite:///{tmp_path}/register.db")
    door = register_door(register, TOKEN, TRUST_ROOT, lambda: NOW)
    try:
        with attestor._open(door, read_settings(tls)) as (address, _):
            url = address.replace("0.0.0.0", "localhost")
            assert url.startswith("https://")
            client = RegisterClient(url, TOKEN)
            with pytest.raises(InfrastructureFailed, match="CERTIFICATE_VERIFY_FAILED"):
                client.shown("s-1")  # the control: nobody who speaks for it
            monkeypatch.setenv("SSL_CERT_FILE", str(tls.parent / "tls.crt"))
            with pytest.raises(InfrastructureFailed, match="404"):
                client.shown("s-1")
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        register.close()


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (("certificate", "certificate_key"), "would come to 0.0.0.0 in the clear"),
        (("certificate_key",), "a certificate has a key"),
    ],
)
def test_in_the_clear_it_listens_on_loopback_alone(
    tls: Path, left_out: tuple[str, ...], says: str
) -> None:
    value = yaml.safe_load(tls.read_text())
    tls.write_text(yaml.safe_dump({k: v for k, v in value.items() if k not in left_out}))
    with pytest.raises(GovrayError, match=says):
        read_settings(tls)


def test_its_certificate_s_key_is_its_account_s_alone(tls: Path) -> None:
    settings = read_settings(tls)
    assert settings.certificate_key in settings.secrets  # its parser reads none of them
    (tls.parent / "tls.key").chmod(0o640)
    with pytest.raises(Refused, match="others than its owner"):
        attestor._certificate(settings)
    (tls.parent / "tls.key").chmod(0o600)
    (tls.parent / "tls.key").write_text("no key")
    with pytest.raises(UsageError, match="cannot be used"):
        attestor._certificate(settings)


PROGRAM = """
import importlib, pkgutil, sys
import govray.platform.attestor as attestor
for each in pkgutil.walk_packages(attestor.__path__, "govray.platform.attestor."):
    if not each.name.endswith(".tasks"):  # the parser's, in a process without the key
        importlib.import_module(each.name)
assert "govray.platform.attestor.door" in sys.modules
print(*sorted({"torch", "ray", "jax", "pyarrow"} & {*sys.modules}))
print(*sorted(name for name in sys.modules if name.startswith("govray.platform.")))
"""


def test_the_attestor_loads_neither_torch_nor_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    heavy, ours = done.stdout.splitlines()
    assert heavy == ""
    assert all(each.startswith("govray.platform.attestor") for each in ours.split())


def test_the_parser_loads_neither_torch_nor_ray() -> None:
    code = "import sys, govray.platform.attestor.tasks; print(*{'torch', 'ray'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
