"""Real Jupyter and TensorBoard, started as a task's process, through the real proxy."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_connection
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import Engine
from sqlmodel import Session
from websockets.sync.client import connect

from govray.platform.service.identity import tokens
from govray.platform.store.database import open_store
from govray.platform.tasks.endpoint import ENDED, ENDPOINT, task_folder
from tests.support.chromium import browser
from tests.support.people import NOW
from tests.support.process import serving
from tests.support.shown_task import entry, task_process
from tests.support.world import World

pytestmark = [pytest.mark.story, pytest.mark.timeout(300)]

KINDS = ("notebook", "shell", "tensorboard")
IDLE = 0.2
"""Minutes."""


@dataclass
class Cluster:
    """A service with a proxy, and the three tasks of one engineer."""

    folder: Path
    storage: Path
    engine: Engine
    address: str
    token: str
    tasks: dict[str, str]
    processes: dict[str, Any]
    unused: Event = field(default_factory=Event)
    """Until it is set, each task is used all the time."""

    def use(self, task: str) -> None:
        while not self.unused.wait(0.5):
            with suppress(OSError, httpx.HTTPError):
                path = task_folder(self.storage, task) / ENDPOINT
                endpoint = json.loads(path.read_bytes())
                httpx.get(
                    f"{endpoint['address']}/tasks/{task}/api/kernels",
                    headers={"Authorization": f"token {endpoint['token']}"},
                    timeout=60,
                )

    def opened(self, kind: str) -> str:
        """An address to enter, good once."""
        answer = httpx.post(
            f"{self.address}/v1/tasks/{self.tasks[kind]}:open",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        assert answer.status_code == 200, answer.text
        url: str = answer.json()["url"]
        return url


def client(url: str, **more: Any) -> httpx.Client:
    """A client of the task's own host, whose name this machine's resolver may not know."""
    parts = urlsplit(url)
    return httpx.Client(
        base_url=f"http://127.0.0.1:{parts.port}",
        headers={"Host": parts.netloc},
        timeout=90,
        **more,
    )


def entered(url: str) -> tuple[httpx.Client, str]:
    session = client(url)
    parts = urlsplit(url)
    answer = session.get(f"{parts.path}?{parts.query}")
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "Domain" not in cookie
    value = cookie.partition(";")[0]
    session.headers["Cookie"] = value
    return session, value


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("tasks")
    storage = folder / "runs"
    storage.mkdir()
    events = storage / "run-1" / "tensorboard"
    events.mkdir(parents=True)
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(events)) as writer:
        writer.add_scalar("loss", 2.5, 1)
    store = f"sqlite:///{folder / 'govray.db'}"
    engine = open_store(store, create=True)
    with Session(engine) as session:
        token = tokens.new(session, "engineer", role="engineer", scopes=("write",), at=NOW)
        session.commit()
    tasks = {kind: entry(engine, kind=kind) for kind in KINDS}
    with ExitStack() as ending:
        root = folder / "root.json"
        root.write_bytes(World().root)
        words = ("--store", store, "--storage", str(storage), "--trust-root", str(root))
        _, address = ending.enter_context(
            serving(folder, *words, "--tasks-port", "0", "--tasks-network", "127.0.0.0/8")
        )
        processes = {
            kind: ending.enter_context(
                task_process(folder, storage, task, f"kind: {kind}\nidle_minutes: {IDLE}\n")
            )
            for kind, task in tasks.items()
        }
        cluster = Cluster(folder, storage, engine, address, token, tasks, processes)
        for task in tasks.values():
            thread = Thread(target=cluster.use, args=(task,), daemon=True)
            thread.start()
            ending.callback(thread.join)
        ending.callback(cluster.unused.set)
        for kind, process in processes.items():
            assert process.stdout.readline() == f"{kind} {tasks[kind]} answers\n"
        yield cluster


def test_a_notebook_runs_code_through_the_proxy(running: Cluster) -> None:
    url = running.opened("notebook")
    session, cookie = entered(url)
    base = f"/tasks/{running.tasks['notebook']}/"
    assert session.get(base).headers["location"] == f"{base}lab"
    assert "JupyterLab" in session.get(f"{base}lab").text
    origin = f"http://{urlsplit(url).netloc}"
    made = session.post(f"{base}api/kernels", headers={"Origin": origin})
    assert made.status_code == 201
    kernel = made.json()["id"]
    code = "import os; print(6 * 7, 'GOVRAY_KEY' in os.environ); open('kept.txt', 'w').write('x')"
    message = {
        "header": {"msg_id": "1", "msg_type": "execute_request", "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "channel": "shell",
        "content": {"code": code, "silent": False},
    }
    port = urlsplit(url).port
    with connect(
        f"ws://{urlsplit(url).netloc}{base}api/kernels/{kernel}/channels",
        origin=origin,
        additional_headers={"Cookie": cookie},
        sock=create_connection(("127.0.0.1", port)),
    ) as socket:
        socket.send(json.dumps(message))
        said = ""
        while "42" not in said:
            got = json.loads(socket.recv(timeout=30))
            said += str(got["content"].get("text", ""))
    assert said == "42 False\n"
    kept = task_folder(running.storage, running.tasks["notebook"]) / "files" / "kept.txt"
    assert kept.read_text() == "x"
    assert session.delete(f"{base}api/kernels/{kernel}", headers={"Origin": origin}).is_success


def test_a_person_types_into_a_shell_and_its_transcript_is_kept(running: Cluster) -> None:
    folder = task_folder(running.storage, running.tasks["shell"]) / "files" / "transcripts"
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(running.opened("shell"))
        assert urlsplit(page.url).path.endswith("/terminals/1")
        page.locator(".xterm-helper-textarea").focus()
        until = time.monotonic() + 60
        while not any("42-here" in each.read_text() for each in folder.glob("*.log")):
            page.keyboard.type("echo $((6*7))-here\n")
            page.wait_for_timeout(300)
            assert time.monotonic() < until


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_session_nothing_answers(running: Cluster, kind: str) -> None:
    url = running.opened(kind)
    base = f"/tasks/{running.tasks[kind]}/"
    with client(url) as stranger:
        assert stranger.get(base).status_code == 401
        bearer = {"Authorization": f"Bearer {running.token}"}
        assert stranger.get(base, headers=bearer).status_code == 401
        assert stranger.get(base, headers={"Cookie": f"govray_token={running.token}"}).is_error
        assert stranger.get(f"{base}enter?ticket=guess").status_code == 401
    endpoint = json.loads(
        (task_folder(running.storage, running.tasks[kind]) / ENDPOINT).read_bytes()
    )
    # Nor does the program itself, to who knows its address.
    direct = httpx.get(f"{endpoint['address']}{base}api/status")
    assert direct.status_code == 403
    assert os.stat(task_folder(running.storage, running.tasks[kind]) / ENDPOINT).st_mode & 0o77 == 0


FETCH = """async (address) => {
    const seen = {cookie: document.cookie};
    for (const mode of ["cors", "no-cors"]) {
        try {
            const answer = await fetch(address, {credentials: "include", mode});
            seen[mode] = [answer.status, await answer.text()];
        } catch (error) { seen[mode] = "refused"; }
    }
    seen.own = (await fetch(location.href, {credentials: "include"})).status;
    return seen;
}"""


def test_a_script_in_a_notebook_cannot_act_for_who_looks_at_it(running: Cluster) -> None:
    """In Chromium, signed in to the service, on a page of the task."""
    url = running.opened("notebook")
    base = f"/tasks/{running.tasks['notebook']}/"
    with browser() as chromium:
        context = chromium.new_context()
        own_page = {"Sec-Fetch-Site": "same-origin"}
        form = {"token": running.token}
        context.request.post(f"{running.address}/sign-in", form=form, headers=own_page)
        page = context.new_page()
        page.goto(f"{running.address}/v1/runs")
        # Negative control: a script of the service's own origin reads with the same cookie.
        assert page.evaluate(FETCH, f"{running.address}/v1/runs")["cors"][0] == 200
        page.goto(url)
        assert urlsplit(page.url).path == f"{base}lab"
        fetched = page.evaluate(FETCH, f"{running.address}/v1/runs")
        assert fetched["cors"] == "refused"
        assert fetched["no-cors"] in ([0, ""], "refused")
        assert "govray" not in fetched["cookie"]
        assert fetched["own"] == 200  # it is no page that may fetch nothing
        context.close()


def test_each_is_gone_after_its_idle_time(running: Cluster) -> None:
    sessions = {kind: entered(running.opened(kind))[0] for kind in KINDS}
    assert all(process.poll() is None for process in running.processes.values())
    running.unused.set()
    for kind, session in sessions.items():
        assert running.processes[kind].wait(60) == 0
        folder = task_folder(running.storage, running.tasks[kind])
        assert not (folder / ENDPOINT).exists()
        assert json.loads((folder / ENDED).read_bytes())["why"] == "idle"
        until = time.monotonic() + 10  # the proxy remembers an address for two seconds
        while (status := session.get(f"/tasks/{running.tasks[kind]}/").status_code) != 410:
            assert status in (303, 502)
            assert time.monotonic() < until
            time.sleep(0.2)
