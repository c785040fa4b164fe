"""Ray's workers as forks of one process that has imported what they need.

A worker of Ray Train imports for about seven seconds of CPU time, and a run starts six. Here the
raylet starts a small program instead of Python; it hands its arguments, environment and open files
to a server. Ray reads its variables when it is imported, the job's number among them. So the server
forks once for each set of them, and that fork imports Ray and forks the workers. From there on all
is Ray's: a worker runs ``default_worker.py``.

The elastic run's nodes do so too, and clusters of commands that get `Forked.command` in place of
``govray``, the demo's among them. Those of the interrupted run, of the key and of benchmarks start
workers as Ray does. They show what forks can't: a missing import, or sets in another order in each
process.

`Forked.govray` stands for ``govray`` too: the whole command is a fork, which saves five seconds
where it trains and one where it verifies. It has its own process, words, variables and streams.
`forked_commands` are those alone, of a server that imports neither Ray nor torch.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.drawn_salt import fix_salt

PRELOADED = (
    "asyncio",
    "flax.nnx",
    "jsonschema",
    "lightning",
    "optax",
    "pandas",
    "psutil",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "govray.engine.step",
)
"""What a worker imports, but for Ray."""

ON_RAY = (
    "ray.data",
    "ray.train.v2.api.data_parallel_trainer",
    "ray.tune",
    "govray.train.driver.trainer",
    "govray.train.worker.run",
)
"""What it imports then."""

FOR_COMMANDS = (
    "importlib.metadata",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "rich.console",
    "typer.main",
    "yaml",
    "govray.governance.policy.policy_yaml",
    "govray.governance.verify.verifier",
    "govray.data.corpus",
)
"""What commands import that start no cluster."""

RESIZED_S = "RAY_TESTS_RESIZED_S"
"""The variable with the seconds between looks for room for more workers. Ray has 60."""

HELD_BACK = "RAY_TESTS_HELD_BACK"
"""The variable with bytes, in hexadecimal, that commands take for salts and corpora's secrets. So
the same records are held back in every run, and nothing that follows is drawn by lot."""

ADDRESS = "address"
"""Of the server, in its folder."""

MOST = 1 << 18
"""Bytes of an environment with its arguments."""

LAUNCHER = """\
#!{python} -IS
import json, os, shlex, socket, sys

argv = sys.argv[1:]
context = {{}}
for each in argv:
    if each.startswith("--serialized-runtime-env-context="):
        context = json.loads(each.partition("=")[2] or "{{}}")
prefix = context.get("command_prefix") or []
moves = len(prefix) == 3 and (prefix[0], prefix[2]) == ("cd", "&&")  # to a working directory
usual = (not prefix or moves) and not context.get("override_worker_entrypoint")
if not usual or not any(each.endswith("default_worker.py") for each in argv):
    os.execv({python!r}, [{python!r}, *argv])
os.environ.update(context.get("env_vars") or {{}})
if moves:
    os.chdir(shlex.split(prefix[1])[0])
argv = [each for each in argv
        if not each.startswith(("--serialized-runtime-env-context=", "--language="))]
told = json.dumps({{"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}})
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(told.encode() + b"\\n")
    server.recv(1)  # nothing, when the fork has ended
"""
"""What stands for Python's executable. It imports next to nothing, so it starts in
milliseconds. `ray._private.runtime_env.context` does the same."""


COMMAND = """\
#!{python}
import sys

sys.executable = {launcher!r}
from govray.cli import main

raise SystemExit(main())
"""
"""``govray``, whose own cluster starts the launcher."""


GOVRAY = """\
#!{python} -IS
import json, os, socket, sys

told = json.dumps({{"argv": ["govray", *sys.argv[1:]], "environment": dict(os.environ),
                   "folder": os.getcwd(), "python": {launcher!r}}})
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(told.encode() + b"\\n")
    code = server.recv(1)
os._exit(code[0] if code else 255)
"""
"""``govray`` as a fork. Whoever kills this kills the fork."""


@dataclass(frozen=True)
class Forked:
    """What starts clusters whose workers are forks."""

    python: str
    """What stands for ``sys.executable`` while Ray starts."""
    command: Path
    """What stands for ``govray``, and starts a cluster whose workers are forks."""
    govray: Path
    """What stands for ``govray``, and is a fork; in a folder of its own for ``PATH``."""


@contextlib.contextmanager
def forked_workers() -> Iterator[Forked]:
    """Serve forks; all workers live as long as this."""
    python = sys.executable
    with serving("workers") as (folder, govray):
        launcher, command = folder / "python", folder / "command"
        write_program(launcher, LAUNCHER.format(python=python, address=str(folder / ADDRESS)))
        write_program(command, COMMAND.format(python=python, launcher=str(launcher)))
        yield Forked(str(launcher), command, govray)


@contextlib.contextmanager
def forked_commands() -> Iterator[Path]:
    """Serve forks that are commands without a cluster: what stands for ``govray``."""
    with serving("commands") as (_, govray):
        yield govray


@contextlib.contextmanager
def serving(what: str) -> Iterator[tuple[Path, Path]]:
    """A server's folder, and what stands for ``govray``."""
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix=f"{what}-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        govray = folder / "bin" / "govray"
        govray.parent.mkdir()
        launcher = str(folder / "python") if what == "workers" else None
        text = GOVRAY.format(python=python, address=str(folder / ADDRESS), launcher=launcher)
        write_program(govray, text)
        server = stack.enter_context(
            subprocess.Popen(
                [python, "-m", __name__, what, str(folder / ADDRESS)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # as Ray sets it for one CPU
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the server of forks does not start"
        yield folder, govray


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(stat.S_IRWXU)


def serve(what: str, address: str) -> None:
    """Import, then hand on what a launcher asks, until standard input ends."""
    preload(PRELOADED if what == "workers" else FOR_COMMANDS)
    assert "ray" not in sys.modules, "Ray reads its environment when it is imported"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    forkers: dict[str, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            launcher, _ = listener.accept()
            _, files, _, _ = socket.recv_fds(launcher, 1, 3)
            told = launcher.makefile("rb").readline()
            # The launcher's socket stays open as long as the fork lives.
            given = [*files, launcher.fileno()]
            if what == "workers":
                hand_on(told, given, forkers, [listener, launcher])
            elif os.fork() == 0:
                listener.close()
                command(json.loads(told), [*files, launcher.detach()])
            launcher.close()
            for file in files:
                os.close(file)


def hand_on(
    told: bytes,
    files: Sequence[int],
    forkers: dict[str, socket.socket],
    others: Sequence[socket.socket],
) -> None:
    """Ask the forker of the environment; start it where there is none, without others' sockets."""
    environment = json.loads(told)["environment"]
    # Sorted: every launcher has them in another order.
    read = str(sorted(each for each in environment.items() if each[0].startswith("RAY_")))
    if read not in forkers:
        forkers[read], asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            for each in (*others, *forkers.values()):
                each.close()
            for file in files[:3]:  # the fourth was the launcher's
                os.close(file)
            fork(asked, environment)
            os._exit(0)
        asked.close()
    socket.send_fds(forkers[read], [told], files)


def preload(modules: Sequence[str]) -> None:
    """Import, and see that no thread stands: a fork has only the thread that forks.

    What is imported stays, so no collection of a fork need look at it.
    """
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    tasks = Path("/proc/self/task").iterdir()
    threads = {
        (task / "comm").read_text().strip() for task in tasks if task.name != str(os.getpid())
    }
    assert threads <= {"jemalloc_bg_thd"}, threads  # jemalloc starts its own again


def fork(asked: socket.socket, environment: Mapping[str, str]) -> None:
    """Import Ray, then become a worker whenever the server asks, until it ends."""
    os.environ.clear()
    os.environ.update(environment)
    import ray.actor

    # An actor's class draws its number when it is defined. Ray's generator is seeded by the first
    # draw, and forks of a seeded one draw the same numbers: their objects would have equal names.
    with pytest.MonkeyPatch.context() as patch:
        drawn = SimpleNamespace(from_random=lambda: ray.ActorClassID(os.urandom(28)))
        patch.setattr(ray.actor, "ActorClassID", drawn)
        preload(ON_RAY)
    fix_salt(pytest.MonkeyPatch())  # for good: of commands, which are forks of this
    assert draw_of_fork() != draw_of_fork(), "forks draw the same random numbers"
    if RESIZED_S in environment:
        look_for_room_every(float(environment[RESIZED_S]))
    while True:
        told, files, _, _ = socket.recv_fds(asked, MOST, 4)
        if not told:
            return
        if os.fork() == 0:
            asked.close()
            what = json.loads(told)
            if what["argv"][:1] == ["govray"]:
                command(what, files)
            work(what, files[:3])
        for file in files:
            os.close(file)


def look_for_room_every(seconds: float) -> None:
    """Let elastic runs that state nothing else look for room for more workers so often."""
    from ray.train import ScalingConfig
    from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy

    begin: Any = ElasticScalingPolicy.__init__

    def begun(policy: ElasticScalingPolicy, scaling_config: ScalingConfig) -> None:
        scaling_config.elastic_resize_monitor_interval_s = seconds
        begin(policy, scaling_config)

    ElasticScalingPolicy.__init__ = begun  # type: ignore[method-assign]


def draw_of_fork() -> bytes:
    reader, writer = os.pipe()
    if os.fork() == 0:
        from ray._raylet import UniqueID

        os.write(writer, UniqueID.from_random().binary())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as drawn:
        return drawn.read()


def become(told: dict[str, Any], files: list[int]) -> None:
    """Take the streams, variables and folder of the launcher."""
    os.setsid()  # the raylet ends a worker with its process group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    # The server started before, maybe with fewer folders to import from.
    given = [each for each in told["environment"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[1:1] = [each for each in given if each not in sys.path]


def command(told: dict[str, Any], files: list[int]) -> None:
    """Be ``govray``, tell the launcher the exit code, and end with it."""
    launcher = socket.socket(fileno=files.pop())
    become(told, files)
    # Python opened those of the server, which were other kinds of files.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115

    def end_with_it() -> None:
        launcher.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()
    sys.argv = told["argv"]
    sys.executable = told["python"] or sys.executable  # of a cluster that it starts
    code: Any = 1
    try:
        if HELD_BACK in os.environ:
            hold_back(bytes.fromhex(os.environ[HELD_BACK]))
        from govray.cli import main

        code = main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        launcher.sendall(bytes([code & 0xFF if isinstance(code, int) else 1]))
        os._exit(0)


def hold_back(drawn: bytes) -> None:
    """Take these bytes where a command would draw a salt or a corpus's secret."""
    from govray.data import corpus
    from govray.train.driver import preparation

    corpus.new_secret = lambda: drawn
    preparation.secrets = SimpleNamespace(  # type: ignore[assignment]
        token_bytes=lambda size: drawn
    )


def work(told: dict[str, Any], files: list[int]) -> None:
    """Become the worker that the launcher was asked to start."""
    become(told, files)
    [start] = [at for at, each in enumerate(told["argv"]) if each.endswith("default_worker.py")]
    sys.argv = told["argv"][start:]
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:])
