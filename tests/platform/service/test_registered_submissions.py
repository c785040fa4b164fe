"""What the service accepts is registered with the attestor first, or is not in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlmodel import Session, col, select

from govray.cli import main
from govray.governance.submission.register_client import RegisterDoor
from govray.platform.attestor.register import Register
from govray.platform.store import tables
from govray.platform.store.database import open_store
from govray.platform.store.run_owners import submission_facts
from tests.support.people import Service, serve
from tests.support.registered import TOKEN, TRUST_ROOT, digest, door
from tests.support.tree import ROOT as TREE

FILE = (TREE / "jobs" / "train.yaml").read_text()


@contextmanager
def served(folder: Path, address: str) -> Iterator[Service]:
    (token := folder / "token").write_text(TOKEN)
    token.chmod(0o600)
    url = f"sqlite:///{folder / 'store.db'}"
    open_store(url, create=True).dispose()
    with serve(url, attestor=RegisterDoor(url=address, token_file=str(token))) as service:
        yield service


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    made = Register(f"sqlite:///{tmp_path / 'register.db'}")
    yield made
    made.close()


def rows(service: Service) -> list[tables.QueueEntry]:
    with Session(service.engine) as session:
        return list(session.exec(select(tables.QueueEntry).order_by(col(tables.QueueEntry.id))))


def test_what_is_accepted_is_registered_as_it_is_then(tmp_path: Path, register: Register) -> None:
    with door(register) as address, served(tmp_path, address) as service:
        with Session(service.engine) as session:
            project = session.get_one(tables.ProjectRow, "default")
            project.settings = {"manifests": [digest("prepared")]}
            session.add(project)
            session.commit()
        body = {"file": FILE, "archive": digest("archive")}
        once = {"Idempotency-Key": "one"}
        told = [
            service.client("engineer").post("/v1/experiments", json=body, headers=once)
            for _ in range(2)
        ]
        [row] = rows(service)
    assert [each.status_code for each in told] == [201, 201], told[0].text
    assert register.submissions() == (row.id,)
    found = register.accepted(row.id)
    assert found.facts_digest == submission_facts(row, "sharedCluster").facts_digest
    assert (found.user, found.archive) == ("engineer", digest("archive"))
    assert (found.own_code, found.pretrained) == (True, False)
    assert (found.manifests, found.trust_root) == ((digest("prepared"),), TRUST_ROOT)


def test_while_the_attestor_does_not_answer_nothing_is_submitted(tmp_path: Path) -> None:
    with served(tmp_path, "http://127.0.0.1:9") as service:
        answer = service.client("engineer").post("/v1/experiments", json={"file": FILE})
        assert rows(service) == []
    assert answer.status_code == 503
    assert answer.json()["title"] == "The attestor does not answer"
    assert "Nothing was submitted" in answer.json()["do"]


def test_an_attestor_is_named_with_its_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    assert main(["serve", "--store", url, "--attestor", "http://127.0.0.1:8686"]) == 2
    assert "--attestor and --attestor-token go together" in capsys.readouterr().err
