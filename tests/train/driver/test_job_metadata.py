"""What a run adds to the metadata of its job, in the form in which Ray keeps jobs."""

from __future__ import annotations

import json

import pytest
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR as JOB_CONFIG
from ray.dashboard.modules.job.common import JobInfo, JobInfoStorageClient, JobStatus

from govray.train.driver import job_metadata
from govray.train.driver.job_metadata import add_metadata, run_metadata

RUN = "line-20261127-1f"
POLICY = "sha256:" + "1" * 64


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """Ray's store of jobs."""
    jobs: dict[bytes, bytes] = {}

    def get(key: bytes, *, namespace: bytes) -> bytes | None:
        assert namespace == b"job"
        return jobs.get(key)

    def put(key: bytes, value: bytes, *, namespace: bytes) -> None:
        assert namespace == b"job"
        jobs[key] = value

    monkeypatch.setattr(job_metadata, "_internal_kv_get", get)
    monkeypatch.setattr(job_metadata, "_internal_kv_put", put)
    monkeypatch.delenv(JOB_CONFIG, raising=False)
    return jobs


def driven(monkeypatch: pytest.MonkeyPatch, job: str) -> bytes:
    """This process drives a job; the key under which Ray keeps that."""
    config = {"metadata": {"job_submission_id": job}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(config))
    return JobInfoStorageClient.JOB_DATA_KEY.format(job_id=job).encode()


@pytest.mark.parametrize("said", [None, {"govray.user": "ada", "govray.run": "another"}])
def test_a_run_adds_what_its_job_does_not_say(
    kept: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, said: dict[str, str] | None
) -> None:
    monkeypatch.setenv(job_metadata.SERVICE, "https://govray.example/")
    key = driven(monkeypatch, "raysubmit_1")
    before = JobInfo(status=JobStatus.RUNNING, entrypoint="python jobs/train.py", metadata=said)
    kept[key] = json.dumps(before.to_json()).encode()
    found = run_metadata(RUN, "line", POLICY)
    assert found == {
        "govray.run": RUN,
        "govray.experiment": "line",
        "govray.policy": POLICY,
        "govray.page": f"https://govray.example/runs/{RUN}",
    }
    add_metadata(found)
    after = JobInfo.from_json(json.loads(kept[key]))
    assert after.metadata == found | (said or {})
    after.metadata = before.metadata
    assert after == before


def test_only_a_submitted_job_has_metadata(
    kept: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(job_metadata.SERVICE, raising=False)
    found = run_metadata(RUN, "line", POLICY)
    assert "govray.page" not in found
    add_metadata(found)  # no job's driver
    driven(monkeypatch, "raysubmit_2")
    add_metadata(found)  # of a job that Ray does not know
    assert kept == {}
