"""The ``environment`` section: what it takes, what Ray gets, and what both refuse."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.runtime_env import RuntimeEnv

from govray.errors import GovrayError, UsageError
from govray.governance.attestation.environment import SETUP, Setup
from govray.governance.formats import canonical_json
from govray.governance.submission.submission import Submission
from govray.train.driver import submit as submitting
from govray.train.driver.job_environment import runtime_env
from govray.train.experiment.environment import JobEnvironment
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from tests.support.deployment import Deployment
from tests.support.page_commands import part

HEX = "0123456789abcdef" * 4
IMAGE = f"registry.example/team/govray@sha256:{HEX}"
EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "hyperparameters": {"context": 8},
    "data": {"corpora": "corpora", "rows_per_step": {"everything": 1}},
    "governance": {"policy": "policy.json", "trust_root": "root.json"},
    "max_steps": 1,
}


def experiment(environment: Any) -> Experiment:
    return parse_experiment(EXPERIMENT | {"environment": environment}, where="test")


def section(**fields: Any) -> JobEnvironment:
    found = experiment(fields).environment
    assert found is not None
    return found


def setup_of(asked: dict[str, Any]) -> Setup:
    stated = asked["env_vars"][SETUP]
    return Setup.from_json(canonical_json.parse_canonical(stated.encode()))


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("image", "rayproject/ray:2.60.0", "by digest"),
        ("image", f"-v/:/host@sha256:{HEX}", "by digest"),
        ("image", f"ray ; reboot@sha256:{HEX}", "by digest"),
        ("pip", 3, "a list of requirements"),
        ("pip", [], "a list of requirements"),
        ("pip", ["six", "-r more.txt"], "files of this machine"),
        ("pip", ["-e ."], "files of this machine"),
        ("pip", ["./wheels/own.whl"], "files of this machine"),
        ("pip", ["own @ file:///wheels/own.whl"], "files of this machine"),
        ("pip", ["six\n-r more.txt"], "one line"),
        ("pip", ["--index-url https://ada:word@pypi.example/"], "a secret"),
        ("uv_lock", "s3://bucket/uv.lock", "not a URL"),
        ("working_dir", "s3://bucket/work", "not a URL"),
        ("env_vars", {"GOVRAY_KEY": "env:X"}, "govray's or Ray's own"),
        ("env_vars", {"RAY_AUTH_MODE": "disabled"}, "govray's or Ray's own"),
        ("env_vars", {"AWS_SECRET_ACCESS_KEY": "x"}, "names a secret"),
        ("env_vars", {"hf_token": "x"}, "names a secret"),
        ("env_vars", {"A": HEX}, "looks like a key"),
        ("env_vars", {"A": "ghp_0123456789abcdefghij"}, "looks like a key"),
        ("env_vars", {"A": "govr_abcdefghijklmnopqrst_x"}, "looks like a key"),
        ("env_vars", {"A": "govs_abcdefghijklmnopqrst_x"}, "looks like a key"),
        ("env_vars", {"A": "postgresql://ada:word@db/x"}, "looks like a key"),
        ("env_vars", {"A": "MC4CAQAwBQYDK2VwBCIEIA"}, "looks like a key"),
        ("env_vars", {"A=B": "x"}, "letters, digits"),
        ("env_vars", {"A": "x\ny"}, "no line"),
        ("env_vars", {"A": "x" * 4097}, "no line"),
        ("container", "x", "unknown field"),
    ],
)
def test_what_the_section_does_not_take(field: str, value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        experiment({field: value})
    if isinstance(value, dict):
        assert not any(len(each) > 1 and each in str(refused.value) for each in value.values())


def test_what_it_takes(tmp_path: Path) -> None:
    given = {
        "pip": ["six==1.17.0", "--index-url https://pypi.example/simple"],
        "env_vars": {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "2"},
        "working_dir": str(tmp_path),
    }
    assert section(**given).pip == tuple(given["pip"])
    with pytest.raises(UsageError, match="not both"):
        section(pip=["six"], uv_lock="requirements.lock")
    with pytest.raises(ValueError, match="cannot be specified at the same time"):  # as Ray has it
        RuntimeEnv(pip=["six"], uv=["six"])


def test_ray_gets_what_it_asks_for(tmp_path: Path) -> None:
    hashes = b" \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n"
    lock = b"six==1.17.0" + hashes + b"    # via us\n\n# end\nidna==3\n"
    (tmp_path / "requirements.lock").write_bytes(lock)
    assert runtime_env(None, "here") == {"working_dir": "here"}
    asked = runtime_env(section(uv_lock=str(tmp_path / "requirements.lock")), str(tmp_path))
    assert asked["uv"] == {
        "packages": ["six==1.17.0 --hash=sha256:0 --hash=sha256:1", "idna==3"],
    }
    assert setup_of(asked) == Setup(uv_lock=sha256(lock))
    RuntimeEnv(**asked)
    asked = runtime_env(section(pip=["six==1.17.0", "idna==3"], env_vars={"A": "b"}), "here")
    assert (asked["pip"], asked["env_vars"]["A"]) == (["six==1.17.0", "idna==3"], "b")
    (tmp_path / "requirements.txt").write_bytes(b"six==1.17.0\nidna==3\n")
    of_file = runtime_env(section(pip=str(tmp_path / "requirements.txt")), "here")
    assert of_file["pip"] == asked["pip"]
    assert setup_of(of_file) == setup_of(asked) == Setup(pip=sha256(b"six==1.17.0\nidna==3\n"))
    asked = runtime_env(section(image=IMAGE, env_vars={"A": "b"}), None)
    assert asked["image_uri"] == IMAGE
    assert setup_of(asked) == Setup(image=f"sha256:{HEX}")
    RuntimeEnv(**asked)
    assert SETUP not in runtime_env(section(env_vars={"A": "b"}), "here")["env_vars"]


class Answering:
    """Ray's client, which takes every job and remembers what it was given."""

    asked: dict[str, Any]

    def __init__(self, address: str) -> None:
        pass

    def submit_job(self, **asked: Any) -> str:
        Answering.asked = asked
        given = asked["runtime_env"].get("working_dir", "")
        Answering.asked["sent"] = Path(given).read_bytes() if given.endswith(".zip") else None
        return "job-1"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(submitting, "JobSubmissionClient", Answering)
    jobs = tmp_path / "work" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "train.py").write_text("")
    (jobs / "tiny.yaml").write_text("")
    return jobs.parent


def test_a_key_is_never_sent(work: Path, tmp_path: Path) -> None:
    here = Deployment(tmp_path / "here")
    (work / "notes.txt").write_bytes(here.key.read_bytes())
    given = parse_experiment(here.experiment(), where="test")
    with pytest.raises(GovrayError, match="private key"):
        submitting.submit("here", work / "jobs" / "tiny.yaml", work, experiment=given)
    os.unlink(work / "notes.txt")  # the control
    submitting.submit("here", work / "jobs" / "tiny.yaml", work, experiment=given)


def test_the_pages_examples_are_read() -> None:
    page = part("docs/queue.md", "Who submitted it") + part("docs/queue.md", "What a job runs in")
    [stated] = re.findall(r"```json\n(.*?)```", page, re.S)
    assert Submission.from_json(canonical_json.parse(stated.encode())).user == "ada"
    [written] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    found = experiment(yaml.safe_load(written)["environment"]).environment
    assert found is not None
    assert runtime_env(found, ".")["pip"] == ["six==1.17.0"]
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert named == set(JobEnvironment.model_fields)
