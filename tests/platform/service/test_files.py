"""Files of models and checkpoints over HTTP: ranges, rights to adapters, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session, col, select

from govray.governance.attestation import model_folder
from govray.platform.client import Client
from govray.platform.service.http import file_answer
from govray.platform.service.visible import given_files
from govray.platform.store import tables
from govray.platform.store.states import RunState
from govray.platform.store.tables import AuditEntry
from govray.storage.bucket_path import BucketPath
from govray.storage.ranged_file import RangedFile, open_ranged
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.object_store import ObjectStore
from tests.support.happened import experiment, run_row
from tests.support.listening import listening
from tests.support.people import Service, serve_models
from tests.support.shelf_of_models import made_once

WEIGHTS = "model.safetensors"
RIGHTS = "adapters: {acme: {users: [auditor]}}\n"
FILES = {
    "model.safetensors": b"w" * 3_000_000,
    "optimizer.safetensors": b"moments of the adapter too",
    "state.json": b"{}",
    "adapters/acme/adapter_config.json": b"{}",
    "adapters/acme/adapter_model.safetensors": b"a",
}
PATH = "/v1/runs/run-a/checkpoints/100/files"


BASE = {"manifest.json", "model.safetensors", "state.json"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a model with an adapter: who changes it puts it back."""
    source = made_once().models["first"]
    return Path(shutil.copytree(source, tmp_path_factory.mktemp("models") / "first"))


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "rights.yaml").write_text(RIGHTS)
    shelf, rights = made_once(), folder / "rights.yaml"
    verified = shelf.world.verify(model)
    with serve_models(folder, shelf.root, [verified], public=True, rights=rights) as served:
        yield served


@pytest.fixture
def run(service: Service, tmp_path: Path) -> Iterator[Path]:
    """The folder of a run with a checkpoint, indexed."""
    folder = tmp_path / "runs" / "run-a"
    commit_folder.commit(folder / "checkpoint_000000100", FILES)
    with Session(service.engine) as session:
        experiment(session, "e", storage=str(folder.parent))
        row = run_row(session, "run-a", RunState.COMPLETED, experiment="e")
        session.commit()
        yield folder
        session.delete(row)
        session.flush()
        session.delete(session.get_one(tables.ExperimentRow, "e"))
        session.commit()


@pytest.fixture
def attested(service: Service, model: Path) -> str:
    """The address of the model's files."""
    return f"/v1/attestations/{made_once().verified('first').digest}/files"


def names(client: TestClient, path: str) -> set[str]:
    return {each["name"] for each in client.get(path).json()["items"]}


def test_each_file_of_a_listing_has_its_size_and_digest(
    service: Service, attested: str, run: Path, model: Path
) -> None:
    """Of a model, as it lies there; an auditor has the right to the adapter."""
    client = service.client("auditor")
    for path, folder in ((attested, model), (PATH, run / "checkpoint_000000100")):
        listing = client.get(path).json()
        assert listing["whole"]
        there = {each.relative_to(folder).as_posix() for each in folder.rglob("*")}
        assert {each["name"] for each in listing["items"]} == {
            name for name in there if (folder / name).is_file()
        }
        for each in listing["items"]:
            data = (folder / each["name"]).read_bytes()
            answer = client.get(f"{path}/{each['name']}")
            assert answer.content == data
            part = client.get(f"{path}/{each['name']}", headers={"Range": "bytes=0-0"})
            assert (part.status_code, part.content) == (206, data[:1])
            past = client.get(f"{path}/{each['name']}", headers={"Range": f"bytes={len(data)}-"})
            assert past.status_code == 416
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            assert (each["digest"], int(each["bytes"])) == (digest, len(data))
            assert answer.headers["etag"] == f'"{digest}"'
            assert answer.headers["content-length"] == each["bytes"]
            assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "status", "begin", "end"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=5-", 206, 5, None),
        ("bytes=2999999-99999999", 206, 2_999_999, None),
        ("bytes=-7", 206, -7, None),
        ("bytes=-99999999", 206, 0, None),
        ("bytes=0-1,5-6", 200, 0, None),
        ("bytes=9-5", 200, 0, None),
        ("bytes=x-", 200, 0, None),
        ("lines=0-1", 200, 0, None),
        ("bytes=3000000-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
    ],
)
def test_a_range_is_answered_as_rfc_9110_says(
    service: Service, run: Path, asked: str, status: int, begin: int, end: int | None
) -> None:
    client, path, data = service.client("engineer"), f"{PATH}/model.safetensors", FILES[WEIGHTS]
    answer = client.get(path, headers={"Range": asked})
    assert answer.status_code == status
    if status == 416:
        assert answer.headers["content-range"] == f"bytes */{len(data)}"
        assert answer.json()["title"] == "Range not satisfiable"
        return
    assert answer.content == data[begin:end]
    if status == 206:
        start = begin % len(data)
        stop = start + len(answer.content) - 1
        assert answer.headers["content-range"] == f"bytes {start}-{stop}/{len(data)}"
    head = client.head(path, headers={"Range": asked})
    assert head.status_code == status
    assert head.headers["content-length"] == str(len(answer.content))
    tag = answer.headers["etag"]
    same = client.get(path, headers={"Range": asked, "If-Range": tag})
    assert same.status_code == status
    other = client.get(path, headers={"Range": asked, "If-Range": '"sha256:0"'})
    assert (other.status_code, len(other.content)) == (200, len(data))


def test_a_file_is_read_piece_by_piece_and_not_for_nobody(
    service: Service, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(root: Path, name: str) -> RangedFile:
        found = open_ranged(root, name)

        def noted(start: int, stop: int) -> bytes:
            read.append(stop - start)
            return found.read(start, stop)

        return RangedFile(found.size, noted, found.close)

    monkeypatch.setattr(given_files, "open_ranged", counted)
    client = service.client("engineer")
    assert client.get(f"{PATH}/{WEIGHTS}").status_code == 200
    assert max(read) == file_answer.PIECE
    assert sum(read) > 3_000_000
    read.clear()
    assert client.head(f"{PATH}/{WEIGHTS}").headers["content-length"] == "3000000"
    assert sum(read) <= 2 * file_answer.PIECE


def test_who_has_no_right_to_an_adapter_gets_the_rest(
    service: Service, attested: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, staff = service.client("engineer"), service.client("auditor")
    assert not ada.get(attested).json()["whole"]
    without = names(ada, attested)
    adapter = "adapters/acme/adapter_model.safetensors"
    assert names(staff, attested) - without == {*model_folder.adapter_files("acme")}
    assert names(ada, PATH) == BASE
    for path in (f"{attested}/{adapter}", f"{PATH}/{adapter}", f"{PATH}/optimizer.safetensors"):
        assert staff.get(path).status_code == 200
        refused, none = ada.get(path), ada.get(f"{path}-none")
        assert (refused.status_code, none.status_code) == (404, 404)
        assert refused.json()["detail"] == none.json()["detail"].replace("-none", "")
    for kind in ("supplier", "member", "public"):  # the attestation is public, the weights are not
        assert service.client(kind).get(attested).status_code == 404
        assert service.client(kind).get(PATH).status_code in (401, 403, 404)
    # The control: without the rule the adapter would go out.
    monkeypatch.setattr(given_files, "_adapter_allowed", lambda *_: True)
    assert ada.get(f"{attested}/{adapter}").status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "..%2F..%2Fstore.db",
        "%2E%2E/%2E%2E/store.db",
        "/etc/passwd",
        "state.json/",
        "",
    ],
)
def test_no_other_name_is_looked_for(service: Service, run: Path, name: str) -> None:
    (run / "checkpoint_000000100" / "notes.txt").write_text("of nobody")
    assert service.client("auditor").get(f"{PATH}/{name}").status_code == 404


def test_what_a_job_does_to_its_folder_leads_nowhere_else(
    service: Service, attested: str, model: Path, run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client, commit = service.client("auditor"), run / "checkpoint_000000100"
    secret = tmp_path / "elsewhere" / "state.json"
    secret.parent.mkdir()
    secret.write_bytes(b"[]")  # of the same size
    (commit / "state.json").unlink()
    (commit / "state.json").symlink_to(secret)
    assert client.get(f"{PATH}/state.json").status_code == 409
    # The control: a service that follows links hands out what its account can read.
    with monkeypatch.context() as patched:
        patched.setattr(os, "O_NOFOLLOW", 0)
        assert client.get(f"{PATH}/state.json").content == b"[]"
    (commit / "state.json").unlink()
    os.mkfifo(commit / "state.json")
    assert client.get(f"{PATH}/state.json").status_code == 409
    shutil.move(commit, tmp_path / "commit")
    commit.symlink_to(tmp_path / "commit")
    assert client.get(PATH).status_code == 409
    commit.unlink()
    assert client.get(PATH).status_code == 404
    shutil.move(tmp_path / "commit", commit)
    (run / "storage.json").write_text(f'{{"commits":"{tmp_path}","storage":"s3://other"}}')
    assert client.get(PATH).status_code == 409
    # A model whose folder has become a link since it was indexed.
    shutil.move(model, tmp_path / "model")
    model.symlink_to(tmp_path / "model")
    try:
        assert client.get(f"{attested}/{WEIGHTS}").status_code == 409
    finally:
        model.unlink()
        shutil.move(tmp_path / "model", model)
    assert client.get(f"{attested}/{WEIGHTS}").status_code == 200


def test_what_is_not_what_was_recorded_is_refused(
    service: Service, attested: str, model: Path, run: Path
) -> None:
    client = service.client("auditor")
    (run / "checkpoint_000000100" / WEIGHTS).write_bytes(b"shorter")
    assert "another size" in client.get(f"{PATH}/{WEIGHTS}").json()["detail"]
    held = (model / model_folder.ATTESTATION).read_bytes()
    other = made_once().models["second"] / model_folder.ATTESTATION
    (model / model_folder.ATTESTATION).write_bytes(other.read_bytes())
    try:
        assert "another attestation" in client.get(attested).json()["detail"]
    finally:
        (model / model_folder.ATTESTATION).write_bytes(held)


def test_the_audit_log_has_who_took_which_file(service: Service, run: Path) -> None:
    service.client("engineer").get(f"{PATH}/state.json", headers={"Range": "bytes=1-"})
    with Session(service.engine) as session:
        statement = select(AuditEntry).where(col(AuditEntry.action) == "file read")
        found = [(each.user, each.subject, each.detail) for each in session.exec(statement)]
    taken = {"file": "state.json", "range": "bytes=1-"}
    assert ("engineer", "run-a step 100", taken) in found


def test_downloads_of_one_caller_are_bounded(service: Service, run: Path) -> None:
    downloads, client = service.app.state.downloads, service.client("engineer")
    downloads.of["engineer"] = 12
    try:
        refused = client.get(f"{PATH}/state.json")
    finally:
        del downloads.of["engineer"]
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
    assert client.get(f"{PATH}/state.json").status_code == 200


def test_files_on_an_object_store_are_streamed_or_fetched_there(
    service: Service, store: BucketPath, attested: str, model: Path,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """By a real server of objects; the URL is good for whoever has it, and for this file alone."""
    commit_folder.commit(ObjectStore(str(store / "run-o")).place(7, (1, 1)), FILES)
    with Session(service.engine) as session:
        experiment(session, "o", storage=str(store))
        run_row(session, "run-o", RunState.COMPLETED, experiment="o")
        session.commit()
    client, path = service.client("engineer"), "/v1/runs/run-o/checkpoints/7/files"
    assert names(client, path) == BASE
    part = client.get(f"{path}/{WEIGHTS}", headers={"Range": "bytes=2999990-"})
    assert (part.status_code, part.content) == (206, FILES[WEIGHTS][2_999_990:])
    assert client.get(f"{path}/{WEIGHTS}").content == FILES[WEIGHTS]
    monkeypatch.setattr(service.app.state, "settings", replace(
        service.app.state.settings, presigned=True
    ))  # fmt: skip
    sent = client.get(f"{path}/{WEIGHTS}", follow_redirects=False)
    assert (sent.status_code, sent.headers["cache-control"]) == (307, "no-store")
    with urlopen(sent.headers["location"]) as answer:
        assert answer.read() == FILES[WEIGHTS]
    with listening(service.app) as address:
        runs = Client(address, service.tokens["engineer"]).runs
        runs.download_checkpoint("run-o", 7, into=tmp_path / "copy")
    assert (tmp_path / "copy" / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    for each in (model_folder.ATTESTATION, WEIGHTS):
        (store / "model" / each).write_bytes((model / each).read_bytes())
    with Session(service.engine) as session:
        row = session.get_one(tables.AttestationRow, made_once().verified("first").digest)
        row.folder, folder = str(store / "model"), row.folder
        session.commit()
        try:
            sent = client.get(f"{attested}/{WEIGHTS}", follow_redirects=False)
        finally:
            row.folder = folder
            session.commit()
    assert sent.status_code == 307
    with urlopen(sent.headers["location"]) as answer:
        assert answer.read() == (model / WEIGHTS).read_bytes()
