"""The life of an interactive task: start, say where, watch, end, say why.

1. The program starts in the task's own folder, with a token made now.
2. Once it answers, its endpoint is written (`endpoint`). Before that nothing leads there.
3. It ends when nobody has used it for the idle time, when this process is told to (SIGTERM,
   SIGINT), or by itself. A program that ends by itself with 0 was ended from within, for good.
4. The endpoint is withdrawn before the program is told to end, so the proxy sends nobody on.

The program stays in this process's group: whoever kills the job's group leaves none of it. Should
this process alone be killed, the program still ends after its idle time (`jupyter`).
"""

from __future__ import annotations

import json
import secrets
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from govray.errors import InfrastructureFailed, Stopped
from govray.governance.formats.document import format_time
from govray.platform.tasks.endpoint import Endpoint, Why, register, task_folder, withdraw
from govray.platform.tasks.jupyter import Program, jupyter_program, without_secrets
from govray.platform.tasks.kept_files import KeptFiles
from govray.platform.tasks.task_file import Watched
from govray.storage.place import Place

# When a Jupyter server was last used, as it says itself.
#
# Its ``/api/status`` knows of HTTP requests, WebSocket messages, terminals and what
# jupyter-server-proxy forwards. A kernel that computes counts as used, whether anyone watches or
# not. To ask counts as no use.
#
# Source: Jupyter Server's REST API, ``/api/status`` and ``/api/kernels``; in its 2.21.1
# ``APIHandler.update_api_activity`` and ``ServerWebApplication.last_activity``.


_SECONDS = 10.0
_LONGEST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JupyterServer:
    """A server that is running. ``address``: ``http://IP:PORT``. ``base``: the path that all of its
    addresses begin with, with a slash at either end."""

    address: str
    base: str
    token: str

    def idle(self, now: datetime) -> timedelta:
        """How long nobody has used it.

        Raises:
            OSError: It does not answer.
            ValueError: It answers something else.
        """
        status = self._ask("api/status")
        if any(each.get("execution_state") == "busy" for each in self._ask("api/kernels")):
            return timedelta()
        last = datetime.fromisoformat(str(status["last_activity"]).replace("Z", "+00:00"))
        return now - last.astimezone(UTC)

    def answers(self) -> bool:
        try:
            self._ask("api/status")
        except (OSError, ValueError):
            return False
        return True

    def _ask(self, path: str) -> Any:
        parts = urlsplit(self.address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
        try:
            connection.request(
                "GET",
                f"{self.base}{path}?no_track_activity=1",
                headers={"Authorization": f"token {self.token}"},
            )
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"{path}: {response.status}")
            return json.loads(response.read(_LONGEST))
        except HTTPException as error:
            raise ValueError(str(error)) from None
        finally:
            connection.close()


START_SECONDS = 120.0
"""How long a program may take until it answers."""

END_SECONDS = 15.0
"""How long it may take to end before it is killed."""

SEND_SECONDS = 60.0
"""Between two looks at which files a bucket lacks."""

_LOG = "program.log"
_TAIL = 2000


def run_watched(
    task: Watched,
    *,
    id: str,
    storage: Place,
    listen: str = "127.0.0.1",
    environment: dict[str, str],
    stop: Event,
    on_ready: Callable[[Endpoint], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a notebook, shell or TensorBoard until nobody uses it.

    Args:
        listen: The IP address that the program answers at.
        environment: Of the program; private keys in it are left out.

    Raises:
        InfrastructureFailed: The program did not start, or failed.
        Stopped: ``stop`` was set.
    """
    with tempfile.TemporaryDirectory(prefix="govray-task-") as folder:
        private = Path(folder)
        files = KeptFiles(task_folder(storage, id), private, note)
        token = secrets.token_urlsafe(32)
        program = jupyter_program(
            task,
            id=id,
            storage=storage,
            work=files.path,
            private=private,
            listen=listen,
            token=token,
        )
        (private / "runtime").mkdir(mode=0o700)
        for name, text in program.files.items():
            (private / name).touch(mode=0o600)
            (private / name).write_text(text)
        process = _start(program, files.path, private, environment)
        why: Why = "failed"
        try:
            server = _await(process, private, id, listen, token, stop)
            endpoint = Endpoint(
                task=id,
                kind=task.kind,
                address=server.address,
                token=token,
                landing=program.landing,
                started=format_time(datetime.now(UTC)),
            )
            register(storage, endpoint)
            on_ready(endpoint)
            why = _watch(process, server, timedelta(minutes=task.idle_minutes), files, stop)
        except Stopped:
            why = "stopped"
            raise
        finally:
            withdraw(storage, id, why, at=datetime.now(UTC))
            _end(process)
            files.send()
        if why == "failed":
            raise InfrastructureFailed(
                f"the program ended by itself, with code {process.returncode}: {_said(private)}",
                where=f"task {id}",
            )
        if why == "stopped":
            raise Stopped("the task was told to end", where=f"task {id}")


def _start(
    program: Program, work: Path, private: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with (private / _LOG).open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - this Python, a module of Jupyter
            program.argv,
            cwd=work,
            env={**without_secrets(environment), **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _await(
    process: subprocess.Popen[bytes],
    private: Path,
    id: str,
    listen: str,
    token: str,
    stop: Event,
) -> JupyterServer:
    shown = f"[{listen}]" if ":" in listen else listen
    until = monotonic() + START_SECONDS
    while monotonic() < until and process.poll() is None:
        if (port := _port(private, process.pid)) is not None:
            server = JupyterServer(
                address=f"http://{shown}:{port}", base=f"/tasks/{id}/", token=token
            )
            if server.answers():
                return server
        if stop.wait(0.2):
            raise Stopped("the task was told to end before it began", where=f"task {id}")
    raise InfrastructureFailed(
        f"the program did not begin to answer: {_said(private)}",
        where=f"task {id}",
        do="The last lines are the program's own",
    )


def _port(private: Path, pid: int) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((private / "runtime" / f"jpserver-{pid}.json").read_bytes())["port"])
    return None


def _watch(
    process: subprocess.Popen[bytes],
    server: JupyterServer,
    idle: timedelta,
    files: KeptFiles,
    stop: Event,
) -> Why:
    pause = min(max(idle.total_seconds() / 10, 0.2), 15.0)
    sent = monotonic()
    while process.poll() is None:
        if stop.wait(pause):
            return "stopped"
        # A server too busy to answer is in use; one that is gone ends the loop.
        with suppress(OSError, ValueError, KeyError):
            if server.idle(datetime.now(UTC)) >= idle:
                return "idle"
        if monotonic() - sent >= SEND_SECONDS:
            files.send()
            sent = monotonic()
    return "failed" if process.returncode else "idle"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _said(private: Path) -> str:
    """The end of what the program wrote; an error's text is made printable where it is shown."""
    try:
        text = (private / _LOG).read_bytes()[-_TAIL:].decode(errors="replace")
    except OSError:
        return "it wrote nothing"
    return " | ".join(text.strip().splitlines()[-5:]) or "it wrote nothing"
