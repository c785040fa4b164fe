"""A confined process reads and writes what it was given, and reaches nothing else."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.parser import ONE_THREAD, ask, refuse_readable

PROBE = """
import json, os, signal, socket, sys
from pathlib import Path
from govray.platform.attestor import tasks  # as the parser does: what it loads starts no thread
from govray.platform.attestor.confinement import ParserLimits, confine

mine, out, key, port, confined = sys.argv[1:]
if confined == "yes":
    confine(read=[Path(mine)], write=[Path(out)], limits=ParserLimits(memory=1 << 30, files=32))

def tried(what):
    try:
        what()
        return "done"
    except (OSError, MemoryError) as error:
        return type(error).__name__

def connect():
    with socket.socket() as found:
        found.connect(("127.0.0.1", int(port)))

def ask():
    with socket.socket(socket.AF_UNIX) as found:
        found.connect(key + ".socket")

def fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

said = {
    "reads its own": tried((Path(mine) / "record").read_bytes),
    "writes": tried(lambda: (Path(out) / "model").write_text("m")),
    "writes its own": tried(lambda: (Path(mine) / "record").write_text("m")),
    "reads the key": tried(Path(key).read_bytes),
    "connects": tried(connect),
    "asks a socket of this account": tried(ask),
    "starts another process": tried(fork),
    "ends its parent": tried(lambda: os.kill(os.getppid(), 0)),
    "opens the key to others": tried(lambda: os.chmod(key, 0o644)),
    "starts a program": tried(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "takes memory": tried(lambda: bytearray(1 << 30)),
    "opens many": tried(lambda: [os.open(out, os.O_RDONLY) for _ in range(64)]),
}
print(json.dumps(said))
"""

FREE = {
    "reads its own",
    "writes",
    "writes its own",
    "reads the key",
    "connects",
    "asks a socket of this account",
    "starts another process",
    "ends its parent",
    "opens the key to others",
    "starts a program",
    "takes memory",
    "opens many",
}


def test_a_confined_process_has_its_two_folders_alone(tmp_path: Path) -> None:
    said = _probe(tmp_path, "yes")

    assert {what for what, how in said.items() if how == "done"} == {"reads its own", "writes"}


def test_control_the_same_process_unconfined_reaches_all_of_it(tmp_path: Path) -> None:
    said = _probe(tmp_path, "no")

    assert {what for what, how in said.items() if how == "done"} == FREE


def test_a_process_with_threads_is_refused() -> None:
    """They would keep their rights."""
    code = (
        "import threading; from govray.platform.attestor.confinement import *;"
        "threading.Thread(target=threading.Event().wait, daemon=True).start();"
        "confine(read=[], write=[], limits=ParserLimits())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "the parser has threads" in done.stderr


def test_a_process_ends_with_its_processor_time_even_if_it_ignores_the_first_signal() -> None:
    code = (
        "import signal, sys; from govray.platform.attestor.confinement import *;"
        "confine(read=[], write=[], limits=ParserLimits(seconds=1));"
        "print(resource.getrlimit(resource.RLIMIT_CPU), flush=True)\n"
        "while True: pass"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (-signal.SIGXCPU, "(1, 6)\n")


@pytest.mark.parametrize(
    ("ends_by", "error", "why"),
    [
        ("kill -XCPU $$", Refused, "takes more time than the parser has"),
        ("exec sleep 60", Refused, "takes more time than the parser has"),
        ("kill -KILL $$", InfrastructureFailed, "ended without an answer"),  # control: tried again
    ],
)
def test_a_run_that_takes_all_time_is_refused_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_by: str,
    error: type[GovrayError],
    why: str,
) -> None:
    """Tried again, it would take as long, and keep other runs waiting eight times."""
    spent = tmp_path / "python"
    spent.write_text(f"#!/bin/sh\n{ends_by}\n")
    spent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(spent))

    with pytest.raises(error, match=why):
        ask("read", read=(), write=tmp_path, within=0.5, limits=ParserLimits())


def test_nothing_that_lies_about_is_imported_by_the_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what a variable names, nor what lies where it works."""
    made, home = tmp_path / "made", tmp_path / "home"
    home.mkdir()
    for name in ("sitecustomize", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(made)!r}, 'w'); from decimal import *")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    monkeypatch.chdir(tmp_path)

    given = {"run": str(home), "model": str(home), "prepared": [str(home)]}
    given |= {"commit": "none", "ended": None}
    with pytest.raises(GovrayError, match="not the folder of a run"):
        ask("read", read=(home,), write=home, within=60, limits=ParserLimits(), **given)
    assert not made.exists()
    subprocess.run([sys.executable, "-c", ""], check=True)  # the control
    assert made.exists()


@pytest.mark.parametrize("place", ["prepared", "site"])
def test_a_secret_where_the_parser_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for each in ("prepared", "site", "etc"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "key").write_text("k")
    (tmp_path / "link").symlink_to(tmp_path / place / "key")
    monkeypatch.syspath_prepend(tmp_path / "site")

    for secret in (tmp_path / place / "key", tmp_path / "link"):
        with pytest.raises(Refused, match="may read all below"):
            refuse_readable(secret, [tmp_path / "prepared"])
    refuse_readable(tmp_path / "etc" / "key", [tmp_path / "prepared"])  # the control


def _probe(folder: Path, confined: str) -> dict[str, str]:
    mine, out, key = folder / "run", folder / "out", folder / "key"
    mine.mkdir()
    out.mkdir()
    (mine / "record").write_text("r")
    key.write_text("k")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as agent,
    ):
        agent.bind(f"{key}.socket")
        agent.listen()
        given = [str(mine), str(out), str(key), str(server.getsockname()[1]), confined]
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *given],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ) | ONE_THREAD,
        )
    said: dict[str, str] = json.loads(done.stdout)
    return said
