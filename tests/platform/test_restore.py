"""A backup of store, queue and register, restored as `docs/queue.md` says, and what follows."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, select

from govray.errors import CouldNotCheck, Refused
from govray.governance.formats.document import format_time
from govray.platform.attestor import register_tables
from govray.platform.attestor.register import Register
from govray.platform.attestor.register_tables import RunOutcome
from govray.platform.indexing.indexer import index_storage
from govray.platform.queue.job import Job, JobState
from govray.platform.store import pools, queue_entries, tables
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry
from govray.train.run_folder.clock import instant
from tests.support.attesting import SECRET, SUBMISSION, Room, ended, forms
from tests.support.databases import BINARIES, Server, postgres
from tests.support.deployment import Deployment
from tests.support.queued import Queued
from tests.support.registered import TRUST_ROOT, acceptance, attempt, committed, digest, started
from tests.support.runs_on_storage import finished_run, settings
from tests.support.tree import ROOT
from tests.support.world import World
from tests.train.conftest import alone, deployment

__all__ = ["alone", "deployment", "postgres"]

PAGE = (ROOT / "docs" / "queue.md").read_text()
AT = "2026-11-24T09:00:00Z"
S = ExperimentState


def statement(begin: str) -> str:
    """The line of the page that begins so."""
    [found] = re.findall(rf"^{re.escape(begin)}.*$", PAGE, re.M)
    return str(found)


def back_up(url: str, to: Path) -> None:
    """A whole copy while others write, by the page's own commands."""
    if (file := make_url(url).database) and url.startswith("sqlite"):
        asked = re.search(r'"(VACUUM INTO .*)"', statement("sqlite3 govray.db"))
        assert asked
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(asked[1].replace("backup/govray.db", str(to)))
        return
    words = statement("pg_dump").replace("backup/govray.dump", str(to)).split()
    _server(url, words)


def restore(url: str, copy: Path) -> None:
    """Put the copy in the place of what is there."""
    if (file := make_url(url).database) and url.startswith("sqlite"):
        for each in Path(file).parent.glob(f"{Path(file).name}*"):
            each.unlink()  # the database that is replaced, and what it has beside itself
        shutil.copy(copy, file)
        return
    _server(url, statement("pg_restore").replace("backup/govray.dump", str(copy)).split())


def _server(url: str, words: list[str]) -> None:
    program, *rest = (each.replace("=govray", f"={make_url(url).database}") for each in words)
    where = ["--host", str(make_url(url).query["host"]), "--username", "govray"]
    subprocess.run([BINARIES[-1] / program, *where, *rest], check=True, timeout=120)


def rows(url: str) -> dict[str, list[Any]]:
    """Everything that a database has."""
    engine, found = create_engine(url), MetaData()
    found.reflect(engine)
    with engine.connect() as connection:
        held = {
            table.name: sorted(map(repr, connection.execute(table.select())))
            for table in found.sorted_tables
        }
    engine.dispose()
    return held


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of the store with its queue, and of the register."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres")
        return server.new("made"), server.new()
    found = f"sqlite:///{tmp_path / 'govray.db'}", f"sqlite:///{tmp_path / 'register.db'}"
    open_store(found[0], create=True).dispose()
    return found


def test_store_queue_and_register_come_back_as_they_were(
    urls: tuple[str, str], tmp_path: Path
) -> None:
    store, engine = urls[0], open_store(urls[0])
    storage, world = tmp_path / "runs", World()
    finished_run(storage, "tiny-1", world)
    index_storage(engine, storage, settings(world))
    queue = Queued(engine)
    runs, ends = queue.put(slots=2), queue.put(slots=2)
    waits = [queue.put(slots=3, priority=priority) for priority in (0, 0, 0)]
    queue.passed()
    with Session(engine) as session:
        session.get_one(QueueEntry, waits[2]).priority = 0
        session.commit()
    queue.passed()
    register = Register(urls[1])
    register.accept(acceptance(), root=TRUST_ROOT, at=AT)
    register.open("s-1", attempt(1, "one"), at=AT)
    register.post("s-1", "one", started(), at=AT)
    register.post("s-1", "one", committed(1, 5), at=AT)
    signed = RunOutcome(
        submission="s-1", run="tiny-s-1", state="ATTESTED", digest=digest("it"), why=None, at=AT
    )
    register.settle(signed, before=None)

    copies = [tmp_path / "store.copy", tmp_path / "register.copy"]
    for url, copy in zip(urls, copies, strict=True):  # the store first: see the page
        back_up(url, copy)
    before = [rows(url) for url in urls]
    with Session(engine) as session:
        line = queue_entries.places(session, waits)
    late = queue.put()  # after the backup, with all that follows
    queue.ask(waits[0], "kill")
    register.open("s-1", attempt(2, "two"), at=AT)
    assert [rows(url) for url in urls] != before
    engine.dispose()
    register.close()
    for url, copy in zip(urls, copies, strict=True):
        restore(url, copy)
    assert [rows(url) for url in urls] == before

    engine = open_store(store)
    queue = replace(queue, engine=engine)
    with Session(engine) as session:
        assert [row.id for row in session.exec(select(tables.RunRow))] == ["tiny-1"]
        assert session.exec(select(tables.AttestationRow.run)).all() == ["tiny-1"]
        assert queue_entries.places(session, waits) == line
        assert session.get(QueueEntry, late) is None
        assert pools.stated(session)[0].slots == 4
    register = Register(urls[1])
    assert register.attested("s-1", "tiny-s-1") == signed
    assert len(register.attempts("s-1")) == 1
    with pytest.raises(Exception, match=r"(?i)secret"):
        register.standing("s-1", "two", "tiny-s-1")  # that attempt's job begins again
    with create_engine(urls[1]).connect() as connection, pytest.raises(DBAPIError):
        connection.execute(text(f"DELETE FROM {register_tables.posted.name}"))
    # What ended meanwhile is seen to have ended, and what waits goes on in its order.
    for id in (runs, ends):
        job = queue.job(id)
        queue.cluster.jobs[job] = replace(queue.cluster.jobs[job], state=JobState.SUCCEEDED, code=0)
    queue.cluster.jobs["lost-1"] = Job(name="lost-1", submission=late, state=JobState.RUNNING)
    queue.wait(3600)
    assert queue.passed().stray == []  # of a submission that the store forgot
    assert [queue.state(id) for id in (runs, ends)] == [S.COMPLETED] * 2
    assert [queue.state(id) for id in waits] == [S.RUNNING, S.QUEUED, S.QUEUED]
    engine.dispose()
    register.close()


@pytest.fixture
def room(alone: Path, deployment: Deployment, tmp_path: Path) -> Iterator[tuple[Room, Path, Path]]:
    """A run that has ended; backups of the register from before its first post, and from after."""
    early, late = tmp_path / "early.copy", tmp_path / "late.copy"
    url = f"sqlite:///{tmp_path / 'register.db'}"
    with ended(alone, deployment, tmp_path, lambda _: back_up(url, early)) as made:
        back_up(url, late)
        yield made, early, late


def over(room: Room, copy: Path, folder: Path) -> Room:
    """The same room over a register that is restored."""
    url = f"sqlite:///{folder / 'register.db'}"
    restore(url, copy)
    return replace(room, attestor=replace(room.attestor, register=Register(url)))


def test_what_the_register_forgot_is_not_signed(
    room: tuple[Room, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, early, late = room
    made.attestor.register.close()
    before = over(made, early, tmp_path)
    with pytest.raises(CouldNotCheck, match="newest attempt has not ended"):
        before.attest()
    assert list(before.attestor.once()) == []
    # The job that lived through it goes on from a commit that nobody has registered.
    last = list(forms(made.run, AT))[-1]
    with pytest.raises(Refused):
        before.attestor.register.post(SUBMISSION, SECRET, last, at=format_time(instant()))
    assert not before.model.exists()
    before.attestor.register.close()
    after = over(made, late, tmp_path)
    posts = after.attestor.register.posts(SUBMISSION, made.run.name)
    after.attestor.register.close()
    # The control: if the folder's own word counted, it would be signed.
    before = over(made, early, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Register, "ended", lambda *_: posts[-1])
        patch.setattr(Register, "finished", lambda *_: posts[-1].at)
        assert before.attest().state == "ATTESTED"
    before.attestor.register.close()


def test_a_model_that_was_signed_after_the_backup_is_not_signed_twice(
    room: tuple[Room, Path, Path], tmp_path: Path
) -> None:
    made, _, late = room
    signed = made.attest()
    envelope = (made.model / "governance" / "attestation.dsse.json").read_bytes()
    made.attestor.register.close()
    restored = over(made, late, tmp_path)
    assert restored.attestor.register.attested(SUBMISSION, made.run.name) is None
    [again] = restored.attestor.once()
    assert (again.state, again.digest) == ("ATTESTED", signed.digest)
    assert (made.model / "governance" / "attestation.dsse.json").read_bytes() == envelope
    restored.attestor.register.close()
