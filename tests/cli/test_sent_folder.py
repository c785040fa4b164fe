"""``govray --server URL train --working-dir DIR``: from a laptop without shared storage."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlmodel import Session, select

from govray.governance.formats import canonical_json
from govray.governance.submission.code_archive import archive_place, open_archive, packed
from govray.platform.service.routes import archives
from govray.platform.store.database import open_store
from govray.platform.store.tables import QueueEntry
from tests.support.command import Run
from tests.support.people import Service, serve
from tests.support.runs import FILE

PEM = b"-----BEGIN " + b"PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n"


pytestmark = pytest.mark.usefixtures("as_engineer")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("sent")
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, storage=folder / "runs") as running:
        yield running


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_bytes(b"ref")
    (folder / "own.py").write_bytes(b"print('mine')\n")
    (folder / "train.yaml").write_text(FILE)
    (folder / "jobs").mkdir()
    (folder / "jobs" / "train.py").write_bytes(b"pass\n")
    return folder


def storage(service: Service) -> Path:
    place: Path = service.app.state.settings.storage
    return place


def submitted(service: Service) -> int:
    with Session(service.engine) as session:
        return len(session.exec(select(QueueEntry)).all())


def test_a_folder_is_sent_and_submitted_by_its_digest(
    run: Run, address: str, service: Service, work: Path, tmp_path: Path
) -> None:
    words = ("--server", address, "train", work / "train.yaml", "--working-dir", work)
    digest = canonical_json.sha256(packed(work))
    assert run(*words, "--check").code == 0
    assert not archive_place(storage(service), digest).exists()
    done = run(*words, "--json")
    assert done.json["archive"] == digest
    assert f"as {digest}" in done.err
    out = open_archive(storage(service), digest, tmp_path / "out")
    assert packed(out) == packed(work)
    assert not (out / ".git").exists()
    again = run(*words, "--json")
    assert "has it already" in again.err
    assert again.json["archive"] == digest
    both = run(*words, "--archive", digest, code=2)
    assert "both name a folder" in both.err


def test_code_that_is_not_sent_is_refused_by_its_file_and_the_option(
    run: Run, address: str, service: Service, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    words = ("--server", address, "train", "train.yaml", "--set", "+entrypoint=own:train_loop")
    before = submitted(service)
    for more in ((), ("--check",)):
        err = run(*words, *more, code=2).err
        assert f"{work / 'own.py'}: entrypoint names own, whose file own.py is not sent" in err
        assert "Say --working-dir ." in err
    (work / ".rayignore").write_text("own.py")
    assert "own.py is not sent" in run(*words, "--working-dir", ".", code=2).err
    (work / ".rayignore").unlink()
    assert submitted(service) == before
    run(*words, "--working-dir", ".")
    run(*words[:-1], "+entrypoint=installed_there:train_loop")  # no file of this folder
    (work / "jobs" / "train.py").unlink()
    err = run(*words, "--working-dir", ".", code=2).err
    assert "the folder that is sent has no jobs/train.py, which starts the job" in err


@pytest.mark.parametrize(("name", "data"), [("key.txt", PEM), (".env", b"TOKEN=1")])
def test_a_secret_does_not_leave_this_machine(
    run: Run, address: str, service: Service, work: Path, name: str, data: bytes
) -> None:
    (work / name).write_bytes(data)
    words = ("--server", address, "train", work / "train.yaml", "--working-dir", work)
    before, kept = submitted(service), sorted(storage(service).rglob("*"))
    err = run(*words, code=1).err
    assert name in err
    assert ".rayignore" in err
    assert (submitted(service), sorted(storage(service).rglob("*"))) == (before, kept)
    (work / ".rayignore").write_text(name)
    assert run(*words).code == 0  # the control


@pytest.mark.parametrize("stalls", [False, True], ids=["cut off", "stalled"])
def test_a_body_that_ends_in_the_middle_leaves_nothing(
    address: str, service: Service, monkeypatch: pytest.MonkeyPatch, stalls: bool
) -> None:
    monkeypatch.setattr(archives, "STALL_SECONDS", 0.3 if stalls else 60.0)
    code, digest = storage(service) / "code", "ab" * 32
    host, _, port = address.removeprefix("http://").partition(":")
    head = (
        f"PUT /v1/archives/sha256:{digest} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 900\r\n"
        f"Authorization: Bearer {service.tokens['engineer']}\r\n\r\n"
    )

    def staged() -> list[Path]:
        return list(code.glob(f".{digest[:48]}.*"))

    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + b"PK")
        if stalls:
            assert b" 503 " in connection.recv(4096).partition(b"\r\n")[0]
        else:
            wait(lambda: bool(staged()))
    wait(lambda: not staged())
    assert not (code / f"{digest}.zip").exists()
    wait(lambda: not service.app.state.archive_uploads.held)


def wait(until: Callable[[], bool]) -> None:
    stop = time.monotonic() + 20
    while not until():
        assert time.monotonic() < stop
        time.sleep(0.02)
