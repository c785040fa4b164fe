"""Tasks through the files that ship, on a head and a GPU node, from the submission to their end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from govray.cli.init import copy
from govray.platform.tasks.endpoint import task_folder
from govray.platform.tasks.kept_files import OUTPUT
from tests.support.chromium import browser
from tests.support.forked_workers import Forked
from tests.support.process import COMMAND, serving
from tests.support.ray_nodes import ray_nodes
from tests.support.tree import ROOT
from tests.support.world import World

pytestmark = [pytest.mark.story, pytest.mark.timeout(1800)]

PATIENCE_S = 600.0
NOTEBOOK = (ROOT / "jobs" / "notebook.yaml").read_text()
IDLE = "idle_minutes: 2"
"""Whole minutes: at these Jupyter's own timer, which looks once a minute, would be first."""

SEES = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.path.exists('jobs/task.py'))"
TASKS = {
    "notebook": NOTEBOOK.replace("idle_minutes: 30", IDLE),
    "shell": f"kind: shell\n{IDLE}\n",
    "tensorboard": f"kind: tensorboard\n{IDLE}\n",
    "command": f'kind: command\nargv: [{sys.executable}, -c, "{SEES}"]\n',
}
SHOWS = {"notebook": "#jp-top-panel", "shell": ".xterm-screen", "tensorboard": "main"}


@contextmanager
def working(folder: Path, file: Path) -> Iterator[None]:
    """A running ``govray queue run``."""
    with (folder / "queue.log").open("wb") as log:
        words = [sys.executable, "-c", COMMAND, "queue", "run", str(file)]
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=os.environ)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def test_each_kind_is_placed_opened_and_gone_when_nobody_uses_it(
    tmp_path: Path, forked: Forked
) -> None:
    folder, runs = tmp_path / "deployment", tmp_path / "runs"
    copy(ROOT, folder)
    runs.mkdir()
    (root := tmp_path / "root.json").write_bytes(World().root)
    store = f"sqlite:///{tmp_path / 'govray.db'}"
    node = ("--labels=pool=gpu", "--num-gpus=4")
    serve = ("--no-auth", "--store", store, "--storage", str(runs), "--trust-root", str(root))
    with (
        ray_nodes(forked, workers=1, cpus=4, words=node) as nodes,
        serving(tmp_path, *serve, "--tasks-port", "0") as (_, address),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        file = folder / "deploy" / "queue.yaml"
        text = file.read_text()
        for name, value in (("address", nodes.dashboard), ("storage", runs), ("store", store)):
            text = re.sub(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.M)
        file.write_text(text)
        with working(tmp_path, file):
            until(lambda: bool(client.get("/v1/pools").json()["items"]))
            unknown = {"name": "x", "pool": "tpu", "config": NOTEBOOK}
            assert client.post("/v1/tasks", json=unknown).status_code == 409
            tasks: dict[str, str] = {}

            def found(kind: str) -> dict[str, Any]:
                answer: dict[str, Any] = client.get(f"/v1/tasks/{tasks[kind]}").json()
                assert answer["state"] not in ("ERROR", "STOPPED"), answer
                return answer

            with browser() as chromium:
                for kind, config in TASKS.items():
                    new = {"name": kind, "pool": "gpu", "config": config}
                    tasks[kind] = client.post("/v1/tasks", json=new).json()["id"]
                    if kind not in SHOWS:
                        continue
                    endpoint = task_folder(runs, tasks[kind]) / "endpoint.json"
                    until(lambda: found(kind)["state"] == "COMPLETED" or endpoint.is_file())  # noqa: B023
                    page = chromium.new_page()
                    until(lambda: opened(client, tasks[kind], page))  # noqa: B023
                    expect(page.locator(SHOWS[kind]).first).to_be_visible(timeout=120_000)
                    page.close()
            until(lambda: all(found(kind)["state"] == "COMPLETED" for kind in TASKS))
            for kind in SHOWS:
                assert found(kind)["why"] == "nobody used it"
                assert client.post(f"/v1/tasks/{tasks[kind]}:open").status_code == 410
        ran = httpx.get(f"{nodes.dashboard}/api/jobs/").json()
        summary = httpx.get(f"{nodes.dashboard}/nodes?view=summary").json()["data"]["summary"]
        [gpu] = [each["raylet"] for each in summary if each["raylet"]["labels"].get("pool")]
        # A busy head may refuse a start. Then Ray knows of a job that never ran.
        assert {job["driver_node_id"] for job in ran if job["driver_node_id"]} == {gpu["nodeId"]}
        assert not gpu["isHeadNode"]
    assert "its driver ended" not in (tmp_path / "queue.log").read_text()  # at its idle time
    kept = task_folder(runs, tasks["command"]) / "files" / OUTPUT
    assert re.fullmatch(r"[0-3] True\n", kept.read_text())


def opened(client: httpx.Client, task: str, page: Any) -> bool:
    """Whether the task's own page is there, after the address that is good once."""
    answer = client.post(f"/v1/tasks/{task}:open")
    assert answer.status_code == 200, answer.text
    return bool(page.goto(answer.json()["url"]).status == 200)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1)
