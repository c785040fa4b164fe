"""Downloads by the command from a real service: broken off, resumed, refused, and whole or absent.

The command is a process that finds no torch, Ray, pyarrow, obstore or service.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest
from sqlmodel import Session

from govray.errors import GovrayError
from govray.platform.client import Client
from govray.platform.store import tables
from govray.platform.store.states import RunState
from govray.train.checkpoint import commit_folder
from tests.support.command import Done, Run
from tests.support.happened import experiment, run_row
from tests.support.in_time import in_time
from tests.support.people import Service, serve_models
from tests.support.tree import ROOT
from tests.support.web_server import Handler, web_server
from tests.support.world import World


class BreakingProxy:
    """Each connection carries one request.

    Attributes:
        limit: Bytes of an answer, its head counted, that are let through; None: all.
        holds: At the limit a connection stays open and silent, in place of ending.
        asked: The heads of the requests, in order.
        before: Called with the head of a request before it is passed on.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 0)
        self.limit: int | None = None
        self.holds = False
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda head: None
        self.silent = Event()
        """Set once a connection is held."""
        self.ended = Event()

    def ranges(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file, in order; None where none was."""
        found: list[str | None] = []
        for head in self.asked:
            first, *fields = head.split("\r\n")
            if first.split(" ")[1].endswith(f"/files/{name}"):
                values = [each[7:] for each in fields if each.lower().startswith("range: ")]
                found.append(values[0] if values else None)
        return found

    def carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._upstream) as service:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data:
                    return
                head += data
            self.asked.append(head.decode("latin-1"))
            self.before(self.asked[-1])
            service.sendall(head)
            left = self.limit
            while data := service.recv(65536 if left is None else min(65536, max(1, left))):
                if left is not None:
                    if left <= 0:
                        if self.holds:
                            self.silent.set()
                            self.ended.wait()
                        return
                    left -= len(data)
                client.sendall(data)


@contextmanager
def breaking_proxy(upstream: str) -> Iterator[tuple[BreakingProxy, str]]:
    """A proxy in front of ``upstream``, and its address."""
    proxy = BreakingProxy(upstream)
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def accept() -> None:
            while not proxy.ended.is_set():
                with suppress(OSError):
                    client, _ = taken.accept()
                    Thread(target=proxy.carry, args=(client,), daemon=True).start()

        Thread(target=accept, daemon=True).start()
        yield proxy, f"http://127.0.0.1:{taken.getsockname()[1]}"
        proxy.ended.set()
        taken.shutdown(socket.SHUT_RDWR)


WEIGHTS = "model.safetensors"
ABSENT = ("torch", "ray", "pyarrow", "obstore", "fastapi", "sqlmodel", "uvicorn")
COMMAND = (
    f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    "from govray.cli import main; raise SystemExit(main())"
)
SIZE = 3_000_000
COMMIT = "checkpoint_000000100"


def content(size: int, begin: int = 0) -> Iterator[bytes]:
    """Bytes that repeat nowhere near."""
    for start in range(begin, begin + size, 1 << 20):
        piece = b"".join(n.to_bytes(8, "big") for n in range(start, start + (1 << 17)))
        yield piece[: min(1 << 20, begin + size - start)]


def commit(folder: Path, size: int = SIZE, begin: int = 0) -> bytes:
    """A checkpoint in the place of any that is there; its first bytes."""
    shutil.rmtree(folder / COMMIT, ignore_errors=True)
    files = {WEIGHTS: content(size, begin), "state.json": b"{}"}
    commit_folder.commit(folder / COMMIT, files)
    return next(content(size, begin))


@pytest.fixture(scope="module")
def model(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that verifies; whoever changes it puts it back."""
    return world.deploy(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def service(
    world: World, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("downloads")
    rights = folder / "rights.yaml"
    rights.write_text("adapters: {acme: {users: [admin]}}\n")
    verified = world.verify(model)
    with serve_models(folder, world.root, [verified], rights=rights) as served:
        with Session(served.engine) as session:
            shown = {"created": "2026-11-20T00:00:00Z", "user": "ada", "labels": {}}
            session.add(tables.ModelRow(name="gpt", description="", **shown))
            session.flush()
            numbers = {"version": "1.2.0", "major": 1, "minor": 2, "patch": 0}
            session.add(
                tables.ModelVersion(
                    model="gpt", attestation=verified.digest, stage="none", **numbers,
                    **shown,
                )
            )  # fmt: skip
            experiment(session, "e", storage=str(folder / "runs"))
            run_row(session, "run-a", RunState.COMPLETED, experiment="e")
            session.commit()
        yield served


@pytest.fixture
def run_folder(service: Service) -> Path:
    """The folder of the service's run."""
    url: str = service.app.state.settings.store
    return Path(url.removeprefix("sqlite:///")).parent / "runs" / "run-a"


@pytest.fixture
def proxy(address: str) -> Iterator[tuple[BreakingProxy, str]]:
    with breaking_proxy(address) as made:
        yield made


class Command:
    """The command with a person's token."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service, self._folder = service, folder

    def begin(self, server: str, *words: object, kind: str = "admin") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, words)],
            cwd=self._folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "GOVRAY_SERVER": server,
                "GOVRAY_TOKEN": self._service.tokens[kind],
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, server: str, *words: object, kind: str = "admin", code: int = 0) -> Done:
        process = self.begin(server, *words, kind=kind)
        out, err = process.communicate(timeout=300)
        done = Done(process.returncode, out, err)
        assert done.code == code, done
        assert "Traceback" not in done.err
        return done


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Command:
    return Command(service, tmp_path)


CHECKPOINT = ("checkpoint", "download", "run-a", "100", "--into", "copy")


def left(folder: Path) -> set[str]:
    """What lies in a folder besides what the fixtures put there."""
    return {each.name for each in folder.iterdir()} - {"config", "root.json"}


def test_a_version_is_downloaded_and_verified(
    command: Command, address: str, model: Path, root: Path, at: str, tmp_path: Path, run: Run
) -> None:
    words = ("model", "download", "gpt@1.2.0", "--trust-root", root, "--at", at)
    done = command(address, *words, "--into", "copy", "--json").json
    assert (done["whole"], done["signer"]) == (True, "operator")
    assert {p.relative_to(model) for p in model.rglob("*")} == {
        p.relative_to(tmp_path / "copy") for p in (tmp_path / "copy").rglob("*")
    }
    verified = run("verify", "copy", "--trust-root", root, "--at", at, "--json").json
    assert verified["attestation"] == done["attestation"]
    assert left(tmp_path) == {"copy"}
    again = command(address, *words, "--into", "copy", code=2)
    assert "already exists" in again.err
    none = command(address, "model", "download", "gpt", *words[3:], "--into", "other", code=2)
    assert "no version is in production" in none.err
    unsure = command(address, *words[:3], "--into", "other", code=3)
    assert "no trust root" in unsure.err
    assert left(tmp_path) == {"copy"}


def test_who_has_no_right_to_the_adapter_gets_the_model_without_it(
    command: Command, address: str, root: Path, at: str, tmp_path: Path
) -> None:
    words = ("model", "download", "gpt@1.2.0", "--trust-root", root, "--at", at, "--into")
    done = command(address, *words, "copy", "--json", kind="engineer").json
    assert (done["whole"], done["signer"]) == (False, None)
    assert (tmp_path / "copy" / WEIGHTS).is_file()
    assert not (tmp_path / "copy" / "adapters").exists()
    assert "left out" in command(address, *words, "other", kind="engineer").out
    assert "no version" in command(address, *words, "none", kind="supplier", code=2).err


def test_a_download_goes_on_where_its_connection_broke(
    command: Command, proxy: tuple[BreakingProxy, str], run_folder: Path, tmp_path: Path
) -> None:
    breaking, address = proxy
    commit(run_folder)
    breaking.limit = 1_400_000
    done = command(address, *CHECKPOINT, "--json").json
    assert done["whole"]
    for name in (WEIGHTS, "state.json", "manifest.json"):
        data = (tmp_path / "copy" / name).read_bytes()
        assert data == (run_folder / COMMIT / name).read_bytes()
    first, *others = breaking.ranges(WEIGHTS)
    assert first is None
    assert len(others) == 2
    assert all(each is not None and each > "bytes=1" for each in others)
    assert left(tmp_path) == {"copy"}


def killed_half_way(command: Command, proxy: tuple[BreakingProxy, str], tmp_path: Path) -> None:
    """A command that was ended at once when half of the weights had come."""
    breaking, address = proxy
    breaking.limit, breaking.holds = 1_400_000, True
    breaking.silent.clear()
    process = command.begin(address, *CHECKPOINT)
    assert breaking.silent.wait(240)
    with in_time(240):  # what was sent may still wait to be read
        while not any(each.stat().st_size for each in tmp_path.glob(".copy.download/parts/*")):
            Event().wait(0.01)
    process.kill()
    process.communicate()
    assert left(tmp_path) <= {".copy.download"}  # nothing that a loader finds
    assert not [*tmp_path.rglob(WEIGHTS)]
    breaking.limit = None
    breaking.asked.clear()


def test_a_command_that_was_killed_is_said_again(
    command: Command, proxy: tuple[BreakingProxy, str], run_folder: Path, tmp_path: Path
) -> None:
    commit(run_folder)
    killed_half_way(command, proxy, tmp_path)
    breaking, address = proxy
    command(address, *CHECKPOINT)
    assert (tmp_path / "copy" / WEIGHTS).read_bytes() == b"".join(content(SIZE))
    [asked] = breaking.ranges(WEIGHTS)
    assert asked is not None
    assert int(asked.removeprefix("bytes=").rstrip("-")) > 0
    assert left(tmp_path) == {"copy"}


def test_a_file_that_changed_between_the_halves_is_begun_anew(
    command: Command, proxy: tuple[BreakingProxy, str], run_folder: Path, tmp_path: Path
) -> None:
    """Between two commands, and between the listing and the answer of one."""
    commit(run_folder)
    killed_half_way(command, proxy, tmp_path)
    commit(run_folder, begin=7)
    breaking, address = proxy
    command(address, *CHECKPOINT)
    assert (tmp_path / "copy" / WEIGHTS).read_bytes() == b"".join(content(SIZE, 7))
    assert breaking.ranges(WEIGHTS) == [None]

    shutil.rmtree(tmp_path / "copy")
    killed_half_way(command, proxy, tmp_path)
    swapped: list[str] = []

    def swap(head: str) -> None:
        if f"/files/{WEIGHTS} " in head and not swapped:
            swapped.append(head)
            commit(run_folder, begin=9)

    breaking.before = swap
    command(address, *CHECKPOINT)
    assert "Range: bytes=" in swapped[0]
    assert (tmp_path / "copy" / WEIGHTS).read_bytes() == b"".join(content(SIZE, 9))


def test_other_bytes_than_the_digest_says_are_refused_and_not_kept(
    command: Command, address: str, run_folder: Path, tmp_path: Path
) -> None:
    commit(run_folder)
    path = run_folder / COMMIT / WEIGHTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    refused = " ".join(command(address, *CHECKPOINT, code=1).err.split())
    for part in (WEIGHTS, "other bytes than its digest", address, "tell who runs the service"):
        assert part in refused
    assert not (tmp_path / "copy").exists()
    assert not [
        each for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size == SIZE
    ]
    path.write_bytes(whole)
    command(address, *CHECKPOINT)
    assert (tmp_path / "copy" / WEIGHTS).read_bytes() == whole


def test_a_service_that_goes_away_leaves_what_came(
    service: Service, proxy: tuple[BreakingProxy, str], run_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the client: after some tries it says what to do, and the next call goes on."""
    from govray.platform.client import downloads

    monkeypatch.setattr(downloads, "PAUSE_S", 0)
    breaking, address = proxy
    commit(run_folder)
    client = Client(address, service.tokens["engineer"])
    told: list[tuple[int, int]] = []

    def fetch() -> downloads.Downloaded:
        return client.runs.download_checkpoint(
            "run-a", 100, into=tmp_path / "copy", told=lambda *at: told.append(at)
        )

    breaking.limit = 100_000
    monkeypatch.setattr(downloads, "TRIES", 1)
    with pytest.raises(GovrayError, match="connection ended") as caught:
        fetch()
    assert "goes on behind byte" in str(caught.value)
    breaking.limit = None
    monkeypatch.setattr(downloads, "TRIES", 5)
    assert [each.name for each in fetch().files] == ["manifest.json", WEIGHTS, "state.json"]
    assert told[-1][0] == told[-1][1] > SIZE


def test_the_evidence_of_a_run_is_downloaded(
    command: Command, address: str, model: Path, tmp_path: Path
) -> None:
    done = command(address, "runs", "download", "run-7f3a", "--into", "copy", "--json").json
    assert "governance/attestation.dsse.json" in done["files"]
    assert all(name.startswith("governance/") for name in done["files"])
    for name in done["files"]:
        assert (tmp_path / "copy" / name).read_bytes() == (model / name).read_bytes()
    assert (
        "no attestation" in command(address, "runs", "download", "run-a", "--into", "x", code=2).err
    )


def test_logs_are_those_of_the_service_that_is_set(
    command: Command, address: str, run_folder: Path, tmp_path: Path
) -> None:
    """And not those of a folder here that is called the same."""
    for folder, text in ((run_folder, "there"), (tmp_path / "run-a", "here")):
        (folder / "logs").mkdir(parents=True)
        for name in ("driver-0.log", "rank-0-1.log", "rank-0-2.log", "rank-1-2.log"):
            (folder / "logs" / name).write_text(f"first\n{name} {text}\n")
    words = ("runs", "logs", "run-a", "--lines", "1")
    shown = command(address, *words, "--json").json
    assert shown == [
        {"name": name, "tail": [f"{name} there"]} for name in ("rank-0-2.log", "rank-1-2.log")
    ]
    every = command(address, *words, "--all").out
    assert "driver-0.log there" in every
    assert "here\n" not in every.replace("there", "")


def test_no_verb_that_downloads_falls_back_to_this_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.delenv("GOVRAY_SERVER", raising=False)
    evidence = ("runs", "download", "run-a", "--into", "x")
    for words in (
        CHECKPOINT,
        evidence,
        ("model", "download", "gpt", "--into", "x", "--trust-root", root),
    ):
        assert "no service is named" in run(*words, code=2).err


HOSTILE = [
    {"name": "../outside", "bytes": "1", "digest": "sha256:" + "0" * 64},
    {"name": "/etc/cron.d/x", "bytes": "1", "digest": "sha256:" + "0" * 64},
    {"name": "a\\..\\b", "bytes": "1", "digest": "sha256:" + "0" * 64},
    {"name": "a//b", "bytes": "1", "digest": "sha256:" + "0" * 64},
    {"name": "a", "bytes": "-1", "digest": "sha256:" + "0" * 64},
    {"name": "a", "bytes": "1", "digest": "md5:0"},
]


@pytest.mark.parametrize("item", HOSTILE, ids=[f"{n}" for n in range(len(HOSTILE))])
def test_a_service_writes_nowhere_else(item: dict[str, str], tmp_path: Path) -> None:
    class Answer(Handler):
        def do_GET(self) -> None:
            self.say_json(200, {"items": [item], "whole": True})

    with web_server(Answer) as port:
        client = Client(f"http://127.0.0.1:{port}", "t")
        with pytest.raises(GovrayError, match=r"is not written here|not what this client knows"):
            client.runs.download_checkpoint("r", 1, into=tmp_path / "copy")
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


@pytest.mark.story
def test_400_mb_are_broken_off_and_resumed(
    command: Command, proxy: tuple[BreakingProxy, str], run_folder: Path, tmp_path: Path
) -> None:
    """Broken off by the network and by a kill; the service's memory doesn't grow with the file."""
    size = 400_000_000
    commit(run_folder, size)
    breaking, address = proxy
    killed_half_way(command, proxy, tmp_path)
    breaking.holds, breaking.limit = False, 150_000_000
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    command(address, *CHECKPOINT)
    assert peak() - before < 100_000
    assert len(breaking.ranges(WEIGHTS)) == 3
    assert None not in breaking.ranges(WEIGHTS)
    copied, held = tmp_path / "copy" / WEIGHTS, run_folder / COMMIT / WEIGHTS
    assert subprocess.run(["cmp", copied, held], check=False).returncode == 0
    commit(run_folder)


def peak() -> int:
    """The most memory that this process, and so its service, had at once, in KiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")))
