"""The operator's key stays on the driver: no process of a Ray cluster that starts here has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml

from govray.cli import main
from govray.errors import InfrastructureFailed, Refused
from govray.governance.formats.keys import LocalSigner
from govray.governance.signers.pkcs11_reference import PIN_VARIABLE
from govray.train.driver import attempts, ray_cluster
from govray.train.inputs import operator_key
from tests.support.committing import an_experiment
from tests.support.deployment import Deployment
from tests.support.solo import run_here


@pytest.fixture(autouse=True)
def nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_key, "_taken", {})
    for name in ("GOVRAY_KEY", "OTHER", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pem() -> str:
    return LocalSigner.generate().to_pem().decode()


def test_a_key_leaves_the_environment_and_can_be_loaded_again(
    pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = LocalSigner.from_pem(pem.encode()).public_key
    monkeypatch.setenv("GOVRAY_KEY", pem)
    monkeypatch.setenv("OTHER", f"\n{pem}")
    for reference in ("env:OTHER", "env:GOVRAY_KEY"):
        for _ in range(2):
            assert operator_key.load(reference).public_key == expected
    assert {"GOVRAY_KEY", "OTHER"}.isdisjoint(os.environ)
    # Set again, the newer one counts.
    other = LocalSigner.generate()
    monkeypatch.setenv("OTHER", other.to_pem().decode())
    assert operator_key.load("env:OTHER").public_key == other.public_key


def test_a_key_in_the_job_s_runtime_environment_is_refused(
    pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submitted(**variables: str) -> None:
        config = {"runtime_env": {"working_dir": ".", "env_vars": variables}}
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))

    submitted(GOVRAY_KEY=pem)
    with pytest.raises(Refused, match="GOVRAY_KEY holds the operator's key") as told:
        operator_key.take()
    assert pem.splitlines()[1] not in str(told.value)
    submitted(OTHER=pem)
    operator_key.take()
    with pytest.raises(Refused, match="OTHER holds"):
        operator_key.take("env:OTHER")
    submitted(GOVRAY_KEY="/keys/operator.pem")
    operator_key.take()
    for odd in ("", "{", "[]", '{"runtime_env": null}'):
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", odd)
        operator_key.take()


def test_a_module_s_pin_leaves_the_environment_and_is_there_for_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PIN_VARIABLE, "1234")
    operator_key.take("pkcs11:token=t;object=k")
    assert PIN_VARIABLE not in os.environ
    assert operator_key._taken == {PIN_VARIABLE: "1234"}


def test_a_job_that_passes_the_pin_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"runtime_env": {"env_vars": {PIN_VARIABLE: "1234"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))
    with pytest.raises(Refused, match=f"passes {PIN_VARIABLE} to every worker") as refused:
        operator_key.take()
    assert "1234" not in str(refused.value)


def test_a_worker_whose_node_was_started_with_the_key_refuses(
    pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Order:
        experiment = an_experiment(attestation_key="env:OTHER")

    class Context:
        def get_world_rank(self) -> int:
            return 1

    monkeypatch.setattr(attempts.ray.train, "get_context", Context)
    monkeypatch.setenv("OTHER", pem)
    loop = attempts.GovernedLoop(lambda config: None, Order(), None)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"rank 1 on .*OTHER holds the operator's key"):
        loop({})


def test_the_key_has_left_the_environment_when_a_cluster_starts(
    pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's processes inherit the environment. The control: nothing takes the key away."""
    inherited: list[bool] = []

    def init(**settings: object) -> None:
        inherited.append("GOVRAY_KEY" in os.environ)
        raise ConnectionError("it was looked at")

    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster.ray, "init", init)
    for control in (False, True):
        with mock.patch.dict(os.environ, GOVRAY_KEY=pem):
            os.environ.pop("RAY_ADDRESS", None)
            if control:
                monkeypatch.setattr(operator_key, "take", lambda *_: None)
            with pytest.raises(InfrastructureFailed):
                ray_cluster.start_ray(num_cpus=1)
    assert inherited == [False, True]


def test_a_run_takes_its_key_before_a_cluster_starts_and_writes_it_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Deployment(tmp_path / "here")
    pem = here.key.read_text()
    here.key.unlink()
    inherited: list[bool] = []
    run_here(monkeypatch)
    monkeypatch.setattr(
        ray_cluster, "start_ray", lambda *_, **__: inherited.append("OTHER" in os.environ)
    )
    monkeypatch.setenv("OTHER", pem)
    file = tmp_path / "tiny.yaml"
    value = here.experiment(attestation_key="env:OTHER", max_steps=2, resources={"num_workers": 1})
    file.write_text(yaml.safe_dump(value))
    assert main(["train", str(file)]) == 0
    assert inherited == [False]
    [model] = here.folder.glob("runs/tiny-*/model")
    assert model.is_dir()
    body = pem.splitlines()[1].encode()
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if body in path.read_bytes()]


@pytest.mark.story
@pytest.mark.timeout(900)
def test_no_process_of_a_local_cluster_has_the_key() -> None:
    """The negative control: if nothing takes it away, they have it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.key_seen"],
        capture_output=True,
        text=True,
        timeout=800,  # a busy machine starts Ray in minutes
    )
    assert done.returncode == 0, done.stderr[-3000:]
    taken, control = json.loads(done.stdout.splitlines()[-1])
    assert "raylet" in taken
    assert not any(taken.values()), taken
    assert control["own"]
    assert control["raylet"]
