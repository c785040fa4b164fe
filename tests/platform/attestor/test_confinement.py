"""A confined process reads and writes what it was given, and reaches nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROBE = """
import json, os, socket, sys
from pathlib import Path
from govray.platform.attestor.confinement import ParserLimits, confine, keep_secret

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

said = {
    "reads its own": tried((Path(mine) / "record").read_bytes),
    "writes": tried(lambda: (Path(out) / "model").write_text("m")),
    "writes its own": tried(lambda: (Path(mine) / "record").write_text("m")),
    "reads the key": tried(Path(key).read_bytes),
    "connects": tried(connect),
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


def test_no_other_process_reads_the_memory_of_one_with_a_key() -> None:
    code = (
        "import ctypes, resource; from govray.platform.attestor.confinement import keep_secret;"
        "keep_secret(); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),"
        "resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "0 (0, 0)\n"


def _probe(folder: Path, confined: str) -> dict[str, str]:
    import socket

    mine, out, key = folder / "run", folder / "out", folder / "key"
    mine.mkdir()
    out.mkdir()
    (mine / "record").write_text("r")
    key.write_text("k")
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = [str(mine), str(out), str(key), str(server.getsockname()[1]), confined]
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *given],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ),
        )
    said: dict[str, str] = json.loads(done.stdout)
    return said
