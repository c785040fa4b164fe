"""Prometheus with the shipped files over what service and runs expose: each expression has data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import Engine
from sqlmodel import Session

from govray.platform.store.database import open_store
from govray.platform.store.leases import RECONCILER
from govray.platform.store.states import ExperimentState
from govray.platform.store.store_secret import claim, key_file, load_key
from govray.platform.store.tables import Lease, PoolRow
from govray.train.watching.metrics import RunMetrics
from tests.support.deployment import Deployment
from tests.support.happened import submission
from tests.support.metrics_agent import metrics_agent
from tests.support.people import make_tokens
from tests.support.process import serving
from tests.support.site import free_port
from tests.support.solo import run_here
from tests.support.tree import ROOT
from tests.support.web_server import Handler, web_server
from tests.support.world import World

DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
BOARD = json.loads((DEPLOY / "grafana/govray_dashboard.json").read_text())
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def program() -> str:
    if (found := shutil.which("prometheus")) is None:
        if "CI" in os.environ:
            pytest.fail("no prometheus: CI has to install it")
        pytest.skip("NOT CHECKED: no prometheus here, so no expression of board and alerts was")
    return found


def answered(expression: str) -> str:
    """An alert's expression that answers 0 or 1 where it would answer nothing."""
    return re.sub(r" (==|!=|<=|>=|<|>) ", r" \1 bool ", expression)


def drawn(expression: str) -> str:
    """A panel's expression as Grafana sends it: for all runs and sessions."""
    every = re.sub(r"\$(?:run|session)\b", ".*", expression)
    return every.replace("$__rate_interval", "1m")


EXPRESSIONS = {
    **{
        rule["alert"]: answered(rule["expr"])
        for group in RULES["groups"]
        for rule in group["rules"]
    },
    **{
        panel["title"]: drawn(target["expr"])
        for panel in BOARD["panels"]
        for target in panel["targets"]
    },
}


@contextmanager
def exposed(text: Callable[[], str]) -> Iterator[int]:
    """A port that answers with this text, as an agent of Ray's does."""

    class Agent(Handler):
        def do_GET(self) -> None:
            self.say(text().encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    with web_server(Agent) as port:
        yield port


@contextmanager
def prometheus(program: str, folder: Path, ray: int, service: str, token: str) -> Iterator[str]:
    """Prometheus with the shipped configuration, but for addresses, token and its pace."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus/rules.yml")]
    del config["alerting"]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs.keys() == {"ray", "govray"}
    targets, secret = folder / "agents.json", folder / "token"
    targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{ray}"]}]))
    secret.write_text(token)
    jobs["ray"]["file_sd_configs"] = [{"files": [str(targets)]}]
    jobs["govray"]["authorization"]["credentials_file"] = str(secret)
    jobs["govray"]["static_configs"] = [{"targets": [service.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program, *words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)


def until(found: Callable[[], Any]) -> Any:
    """What a question is answered with, once it is."""
    end = time.monotonic() + PATIENCE_S
    while not (answer := found()) and time.monotonic() < end:
        time.sleep(0.25)
    return answer


def filled(store: Engine) -> None:
    """A queue that stands still, a run that waits for its attestor, and one that was refused."""
    with Session(store) as session:
        session.add(Lease(name=RECONCILER, holder="gone", until="2026-11-27T11:58:00Z"))
        session.add(PoolRow(name="gpu", slots=4))
        for state, attested in (
            ("QUEUED", None), ("RUNNING", None), ("COMPLETED", None), ("COMPLETED", "NOT_ATTESTED"),
        ):  # fmt: skip
            submission(
                session, f"s-{state}-{attested}", ExperimentState(state), pool="gpu",
                attested=attested, submitted="2026-11-27T11:00:00Z",
                finished="2026-11-27T11:30:00Z",
            )  # fmt: skip
        session.commit()


def a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a governed run tells, and of a monitor besides."""
    run_here(monkeypatch)
    told = metrics_agent(monkeypatch)
    publish = RunMetrics.committing

    def measured(self: RunMetrics, *given: Any) -> None:
        profile = SimpleNamespace(corpora={"open-one"}, of=lambda corpus: [])
        self.measured(profile)  # type: ignore[arg-type]
        publish(self, *given)

    monkeypatch.setattr(RunMetrics, "committing", measured)
    Deployment(folder).trainer().train()
    return told.text()


@pytest.mark.timeout(300)
def test_every_expression_of_board_and_alerts_has_data(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = a_run(tmp_path / "run", monkeypatch)
    url = f"sqlite:///{tmp_path / 'govray.db'}"
    store = open_store(url, create=True)
    token = make_tokens(store, "acme", "umbrella")["admin"]
    with Session(store) as session:
        claim(session, load_key(url))
        session.commit()
    root = tmp_path / "trust" / "root.json"
    root.parent.mkdir()
    root.write_bytes(World().root)
    (tmp_path / "runs").mkdir()
    words = ("--store", url, "--storage", str(tmp_path / "runs"), "--trust-root", str(root))
    with (
        serving(tmp_path, *words) as (_, service),
        exposed(lambda: text) as ray,
        prometheus(program, tmp_path, ray, service, token) as address,
        httpx.Client(base_url=address, trust_env=False) as client,
    ):
        filled(store)  # with a queue before it, the service would ask for other accounts
        key = key_file(url)
        moved = key.rename(key.with_name("moved"))
        assert httpx.get(f"{service}/v1/ready").status_code == 503  # an error to count
        moved.rename(key)

        def asked(path: str, **query: str) -> Any:
            try:
                answer = client.get(f"/api/v1/{path}", params=query)
            except httpx.TransportError:
                return None
            assert answer.status_code in (200, 503), answer.text
            return answer.json()["data"] if answer.status_code == 200 else None

        def data(expression: str) -> Any:
            found = asked("query", query=expression)
            return found and found["result"]

        lacking = [name for name, each in EXPRESSIONS.items() if not until(lambda e=each: data(e))]
        assert lacking == []
        rules = asked("rules")["groups"]
        assert len(rules) == len(RULES["groups"])
        assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
        # The control: what nobody exposes has none, and a dead reconciler is seen.
        assert data("govray_queue_entry") == []
        [standstill] = data(
            next(r["expr"] for g in RULES["groups"] for r in g["rules"]
                 if r["alert"] == "GovrayQueueStandsStill")
        )  # fmt: skip
        assert float(standstill["value"][1]) < -60
    store.dispose()
