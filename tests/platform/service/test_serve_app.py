"""The Ray Serve application: its config is what Ray reads, and a real one answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest
import yaml
from sqlmodel import Session

from govray.errors import Refused, UsageError
from govray.platform.store import pools, registry
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.tables import PoolRow
from tests.support.people import make_tokens
from tests.support.provider import Provided, provided
from tests.support.shelf_of_models import made_once
from tests.support.tree import ROOT

SERVE = ROOT / "serve"
ADDRESS = "http://127.0.0.1:8000"


def test_the_config_is_one_that_ray_reads() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(yaml.safe_load((SERVE / "config.yaml").read_text()))
    (application,) = config.applications
    assert application.import_path == "serve.app:app"
    (deployment,) = application.deployments
    assert deployment.name == "govray"
    assert deployment.autoscaling_config["min_replicas"] == 2
    assert deployment.graceful_shutdown_timeout_s > 0


def test_without_a_store_it_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delenv("GOVRAY_STORE", raising=False)
    from serve.app import Arguments, app

    with pytest.raises(UsageError, match="no store is named"):
        app(Arguments())
    # What every replica would fail at is said to whoever starts the service.
    with pytest.raises(UsageError, match="there is no store here"):
        app(Arguments(store="sqlite:///none.db"))
    with pytest.raises(ValueError, match="Extra inputs"):
        Arguments(auth=False)


def test_it_acts_for_two_only_where_a_queue_s_jobs_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_doctor.py` has whose jobs reach what."""
    monkeypatch.syspath_prepend(ROOT)
    from serve.app import Arguments, app

    url = f"sqlite:///{tmp_path}/store.db"
    engine = open_store(url, create=True)
    make_tokens(engine, "acme-legal", "umbrella")
    with Session(engine) as session:
        pools.state(session, [PoolRow(name="default", slots=2)])
        session.commit()
    engine.dispose()

    with pytest.raises(Refused, match="can read and write the store"):
        app(Arguments(store=url))
    assert app(Arguments(store=url, jobs_account="64103:64103"))  # the control: others' jobs


BUSY = "The current node timed out during startup"
"""What Ray says where its processes were not up within its own 30 s: the machine is busy."""


def answers(process: subprocess.Popen[bytes], log: IO[bytes]) -> bool:
    """Wait until the service answers; False if Ray found the machine too busy to start."""
    deadline = time.monotonic() + 240
    while True:
        if process.poll() is not None:
            assert BUSY in (said := Path(log.name).read_text()), said
            return False
        assert time.monotonic() < deadline, Path(log.name).read_text()
        try:
            if httpx.get(f"{ADDRESS}/v1/health", timeout=5).status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.5)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provided]:
    with provided(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(
    tmp_path_factory: pytest.TempPathFactory, provider: Provided
) -> Iterator[dict[str, str]]:
    """Everyone's tokens for ``serve run serve.app:app``, which runs with a model in its store."""
    folder = tmp_path_factory.mktemp("serve")
    shelf = made_once()
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        (row,) = shelf.index(session, "first")
        by = ChangedBy(user="eve", at="2026-11-20T10:00:00Z")
        registry.register(session, model="gpt", version="1.0.0", attestation=row.digest, by=by)
        session.commit()
    tokens = make_tokens(engine, "acme-legal", "umbrella")
    engine.dispose()
    words = ". serve/cluster.sh && exec serve run --address local serve.app:app oidc=$PROVIDER"
    environment = os.environ | {
        "GOVRAY_STORE": url,
        "RAY_metrics_report_interval_ms": "500",
        "PROVIDER": str(provider.file),
        "SSL_CERT_FILE": str(provider.certificate),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with (folder / "log").open("wb") as log:

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                ["sh", "-c", words],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        process = start()
        try:
            if not answers(process, log):
                process = start()
                assert answers(process, log), "too busy twice"
            yield tokens
        finally:
            process.terminate()  # Ray ends its processes
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def client_of(tokens: dict[str, str], kind: str) -> httpx.Client:
    return httpx.Client(
        base_url=ADDRESS, headers={"Authorization": f"Bearer {tokens[kind]}"}, timeout=30
    )


def test_ray_serve_answers_a_lineage_query(tokens: dict[str, str]) -> None:
    with client_of(tokens, "supplier") as client:
        shown = client.get("/v1/models/gpt/versions/1.0.0").json()
        assert shown["version"] == "1.0.0"
        answer = client.get(f"/v1/attestations/{shown['attestation']}/lineage")
        assert answer.status_code == 200, answer.text
        assert "acme" in answer.text
        assert "alpha" not in answer.text, "of another supplier"
    assert httpx.get(f"{ADDRESS}/v1/models/gpt", timeout=30).status_code == 404
    assert httpx.get(f"{ADDRESS}/metrics", timeout=30).status_code == 401


def test_ray_serve_accepts_the_identity_provider(
    tokens: dict[str, str], provider: Provided
) -> None:
    assert tokens  # it runs
    for groups, status in ((["ml-engineers"], 200), (["others"], 401)):
        headers = {"Authorization": f"Bearer {provider.token(*groups)}"}
        answer = httpx.get(f"{ADDRESS}/v1/runs", headers=headers, timeout=30)
        assert answer.status_code == status, answer.text


def test_haproxy_s_statistics_are_on_loopback_only(tokens: dict[str, str]) -> None:
    assert httpx.get("http://127.0.0.1:8404/stats", timeout=10).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://127.0.0.2:8404/stats", timeout=10)
    assert httpx.get("http://127.0.0.2:8000/v1/health", timeout=10).status_code == 200
