"""Working directories over HTTP: who may send one, and what is never kept under a digest."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlmodel import Session, select

from govray.governance.formats import canonical_json
from govray.governance.submission import code_archive, received_archive
from govray.governance.submission.code_archive import archive_place, open_archive, packed
from govray.platform.service.http.problems import MEDIA_TYPE
from govray.platform.service.routes import archives
from govray.platform.store.database import open_store
from govray.platform.store.tables import AuditEntry
from tests.support.people import Service, serve
from tests.support.zips import entry, zipped

JOBS = Path(__file__).parents[3] / "jobs"
PEM = b"-----BEGIN " + b"PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n"


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("archives")
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, storage=folder / "runs", max_body=1000) as running:
        yield running


@pytest.fixture
def storage(sender: Service) -> Path:
    place: Path = sender.app.state.settings.storage
    return place


def sent(files: dict[str, bytes], tmp_path: Path) -> bytes:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return packed(tmp_path)


def url(data: bytes) -> str:
    return f"/v1/archives/{canonical_json.sha256(data)}"


def nothing_new(storage: Path, before: list[Path]) -> bool:
    return sorted(storage.rglob("*")) == before


def test_a_folder_is_sent_once_and_opens_as_it_was(
    sender: Service, storage: Path, tmp_path: Path
) -> None:
    """Larger than other requests may be, in pieces whose number nobody announced."""
    data = sent({"jobs/train.py": b"print()\n", "big.bin": bytes(3 << 20)}, tmp_path / "work")
    client, digest = sender.client("engineer"), canonical_json.sha256(data)
    assert client.get(url(data)).status_code == 404
    assert client.head(url(data)).status_code == 404
    pieces = (data[at : at + 70_000] for at in range(0, len(data), 70_000))
    made = client.put(url(data), content=pieces)
    assert (made.status_code, made.json()) == (201, {"digest": digest, "bytes": str(len(data))})
    assert packed(open_archive(storage, digest, tmp_path / "out")) == data
    # The second sends nothing: a body that is none is not read.
    again = client.put(url(data), content=b"no zip")
    assert (again.status_code, again.json()) == (200, made.json())
    assert client.get(url(data)).json() == made.json()
    assert client.head(url(data)).status_code == 200
    with Session(sender.engine) as session:
        rows = session.exec(select(AuditEntry).where(AuditEntry.subject == digest)).all()
    assert [(row.user, row.action, row.detail) for row in rows] == [
        ("engineer", "archive.upload", {"bytes": len(data)})
    ]
    assert not list(storage.rglob("*.tmp"))
    # One that was damaged since is told as absent, and sent again.
    archive_place(storage, digest).write_bytes(data[:-1])
    assert client.get(url(data)).status_code == 404
    assert client.put(url(data), content=data).status_code == 201


def test_a_submission_names_an_archive_that_is_there(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(address, create=True).dispose()
    with serve(address, storage=tmp_path / "runs") as service:
        _names_an_archive(service, sent({"jobs/train.py": b"pass\n"}, tmp_path / "work"))
        _needs_what_starts_it(service, sent({"jobs/tune.py": b"pass\n"}, tmp_path / "other"))


def _needs_what_starts_it(service: Service, data: bytes) -> None:
    client = service.client("engineer")
    assert client.put(url(data), content=data).status_code == 201
    body = {"file": (JOBS / "train.yaml").read_text(), "archive": canonical_json.sha256(data)}
    refused = client.post("/v1/experiments", json=body)
    assert refused.status_code == 422
    assert "body.archive: The archive has no jobs/train.py" in refused.text
    search = body | {"file": (JOBS / "tune.yaml").read_text()}
    search["set"] = ["+search.max_concurrent_trials=2"]
    assert client.post("/v1/experiments", json=search).status_code == 201


def _names_an_archive(service: Service, data: bytes) -> None:
    digest = canonical_json.sha256(data)
    body = {"file": (JOBS / "train.yaml").read_text(), "archive": digest}
    client = service.client("engineer")
    # A command checks before it sends.
    assert client.post("/v1/experiments:check", json=body).status_code == 200
    absent = client.post("/v1/experiments", json=body)
    assert absent.status_code == 422
    assert f"body.archive: There is no archive {digest}" in absent.text
    assert client.put(url(data), content=data).status_code == 201
    assert client.post("/v1/experiments", json=body).status_code == 201


def directory(entries: int, said: int) -> bytes:
    """A zip of nothing but a directory, which names more files than it says."""
    one = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 16)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, said, said, len(one) * entries, 0, 0)
    return one * entries + end


def larger_zip() -> bytes:
    """The last name holds the record of a larger zip, which `zipfile` would go by."""
    hidden = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1).decode("latin-1")
    data = zipped(entry("a" * len(hidden)))
    return data.replace(b"a" * len(hidden), hidden.encode("latin-1"))


def corrupt() -> bytes:
    """A file whose checksum does not hold, and one whose heads name different files."""
    return zipped(entry("a")).replace(b"/etc/hosts", b"/etc/HOSTS")


GOOD = zipped(entry("a"))
HOSTILE = {
    "nothing": (b"", "no zip"),
    "no zip": (b"no zip at all" * 9, "no zip"),
    "half": (GOOD[: len(GOOD) // 2], "no zip"),
    "behind": (GOOD + b"more", "no zip"),
    "before": (b"#!/bin/sh\n" + GOOD, "of one piece"),
    "comment": (zipped(entry("a"), comment=b"hidden"), "no zip"),
    "up": (zipped(entry("../evil")), "leads out"),
    "root": (zipped(entry("/etc/evil")), "leads out"),
    "backslash": (zipped(entry("..\\evil")), "leads out"),
    "link": (zipped(entry("a", stat.S_IFLNK | 0o777)), "a link"),
    "device": (zipped(entry("a", stat.S_IFBLK | 0o644)), "a link or no file"),
    "setuid folder": (zipped(entry("a/", stat.S_IFDIR | 0o755)), "a link or no file"),
    "bomb": (
        zipped(entry("a", compress_type=zipfile.ZIP_DEFLATED), content=bytes(1 << 20)),
        "compressed",
    ),
    "many unsaid": (directory(100_000, 1), "of no file"),
    "many": (directory(20_001, 20_001), "more than 20000 files"),
    "larger zip": (larger_zip(), "not whole|govray has written"),
    "checksum": (corrupt(), "cannot be read"),
    "other name": (GOOD.replace(b"a/etc", b"b/etc"), "cannot be read"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_no_archive_never_has_a_name(sender: Service, storage: Path, how: str) -> None:
    data, why = HOSTILE[how]
    before = sorted(storage.rglob("*"))
    answer = sender.client("engineer").put(url(data), content=data)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json()["detail"].startswith("archive: ")
    assert re.search(why, answer.json()["detail"]), answer.text
    assert nothing_new(storage, before)


@pytest.mark.parametrize(
    ("how", "module", "check"),
    [
        ("link", received_archive, "check_archive"),
        ("before", code_archive, "_check_directory"),
    ],
)
def test_without_the_checks_it_would_have_a_name(
    sender: Service,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    module: ModuleType,
    check: str,
) -> None:
    data = HOSTILE[how][0]
    monkeypatch.setattr(module, check, lambda *_: None)
    assert sender.client("engineer").put(url(data), content=data).status_code == 201
    archive_place(storage, canonical_json.sha256(data)).unlink()


@pytest.mark.parametrize("how", ["other", "cut", "longer"])
def test_a_digest_is_of_these_bytes_alone(sender: Service, storage: Path, how: str) -> None:
    given = {"other": zipped(entry("b")), "cut": GOOD[:-1], "longer": GOOD + b"\0"}[how]
    before = sorted(storage.rglob("*"))
    answer = sender.client("engineer").put(url(GOOD), content=given)
    assert answer.status_code == 400
    assert "Send all of it" in answer.json()["do"]
    assert nothing_new(storage, before)
    for path in ("/v1/archives/sha256:x", "/v1/archives/..%2F..%2Fetc", url(GOOD).upper()):
        assert sender.client("engineer").put(path, content=GOOD).status_code in (404, 422)


@pytest.mark.parametrize(("name", "content"), [("deep/key.txt", PEM), (".env", b"A=1")])
def test_a_secret_is_not_kept(sender: Service, storage: Path, name: str, content: bytes) -> None:
    data = zipped(entry(name), content=content)
    answer = sender.client("engineer").put(url(data), content=data)
    assert answer.status_code == 409
    assert name in answer.json()["detail"]
    assert not archive_place(storage, canonical_json.sha256(data)).exists()


def test_uploads_have_places(sender: Service, tmp_path: Path) -> None:
    data = sent({"a.py": b"of places"}, tmp_path)
    uploads = sender.app.state.archive_uploads
    uploads.held["engineer"] = archives.AT_ONCE_EACH
    mine = sender.client("engineer").put(url(data), content=data)
    assert (mine.status_code, mine.headers["retry-after"]) == (429, "10")
    uploads.held["others"] = archives.AT_ONCE
    assert sender.client("admin").put(url(data), content=data).status_code == 503
    uploads.held.clear()
    assert sender.client("engineer").put(url(data), content=data).status_code == 201
    assert not uploads.held
