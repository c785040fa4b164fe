"""The two databases that a store can be in, each real: a file, and a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine

from govray.platform.store.database import connect, open_store, parse_url, to_head

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
INIT = ["-U", "govray", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]


class Server:
    """A running PostgreSQL. ``new(template)`` makes a database and gives its URL.

    Args:
        password: What it asks of its user; without one it trusts everybody.
    """

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self._folder = folder
        self._password = password
        self._numbers = count()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binaries, user = BINARIES[-1], []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._folder, "nobody", "nogroup")
            user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        data = self._folder / "data"
        quiet = {"stdout": subprocess.DEVNULL, "cwd": self._folder}
        asks = ["-A", "trust"]
        if self._password:
            (file := self._folder / "password").write_text(self._password)
            asks = ["-A", "scram-sha-256", "--pwfile", str(file)]
        subprocess.run(
            ["setpriv", *user, binaries / "initdb", "-D", data, *INIT, *asks],
            check=True,
            timeout=120,
            **quiet,
        )
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self._folder,
            "fsync": "off",  # nothing here outlives the tests
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "wal_level": "minimal",
            "max_wal_senders": 0,
            "autovacuum": "off",
            "max_connections": 60,
            "shared_buffers": "32MB",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            # It ends with the tests, however they end.
            ["setpriv", "--pdeathsig", "INT", *user, binaries / "postgres", "-D", data, *words],
            stderr=(self._folder / "log").open("wb"),
            **quiet,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self._say("SELECT 1")
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail((self._folder / "log").read_text())
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            # At once: a connection that a test left open would hold up a polite end.
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(60)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://govray@/{database}?host={self._folder}"

    def new(self, template: str = "template0", encoding: str = "UTF8") -> str:
        name = f"t{next(self._numbers)}"
        # Pages by the log cost thrice as much processor time; before 15 there was no such way.
        copied = " STRATEGY FILE_COPY" if int(BINARIES[-1].parent.name) >= 15 else ""
        kept = f"ENCODING '{encoding}'{copied}"
        self._say(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {kept}')
        return self.url(name)

    def _say(self, statement: str) -> None:
        place = f"host={self._folder} user=govray dbname=postgres"
        with psycopg.connect(place, password=self._password, autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server, with the template database ``made`` at head."""
    if not BINARIES:
        if os.environ.get("CI"):
            pytest.fail("CI tests on PostgreSQL: install the distribution's package")
        pytest.skip("no PostgreSQL here")
    with tempfile.TemporaryDirectory(prefix="govray-pg-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        try:
            server.start()
            server._say("CREATE DATABASE made")
            engine = connect(parse_url(server.url("made")))
            to_head(engine)
            engine.dispose()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def made_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file at head, to copy."""
    path = tmp_path_factory.mktemp("store") / "made.db"
    open_store(f"sqlite:///{path}", create=True).dispose()
    return path


on_both = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
"""For a test whose SQL, locks or order of texts differ between the two."""


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store at head: a file, unless the test runs `on_both`."""
    if getattr(request, "param", "sqlite") == "postgresql":
        server: Server = request.getfixturevalue("postgres")
        return server.new("made")
    path = tmp_path / "govray.db"
    shutil.copy(request.getfixturevalue("made_file"), path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres")
        return server.new()
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def store(store_url: str) -> Iterator[Engine]:
    engine = open_store(store_url)
    yield engine
    engine.dispose()
