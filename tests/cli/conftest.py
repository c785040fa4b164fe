"""The command, run in this process, and a deployment to run it on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.cli import main
from govray.governance.formats.document import format_time
from govray.platform.store.database import open_store
from tests.support.command import Done, Run
from tests.support.listening import listening
from tests.support.people import Service, serve
from tests.support.prepared_folder import write_prepared
from tests.support.world import AT, World


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a working and a configuration folder of its own, and no key set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("GOVRAY_KEY", raising=False)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command line and check its exit code. No error may show a traceback."""

    def run(*words: object, code: int = 0) -> Done:
        capsys.readouterr()
        returned = main([str(word) for word in words])
        done = Done(returned, *capsys.readouterr())
        assert done.code == code, done
        assert "Traceback" not in done.err, done
        # An error is one paragraph; a check that failed may show findings instead.
        assert done.err.count("\n") <= 1, done
        return done

    return run


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def untouched(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that verifies; tests only read it."""
    return world.deploy(tmp_path_factory.mktemp("world") / "model")


@pytest.fixture(scope="session")
def prepared(world: World, untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared folder of `untouched` and `model`: its records."""
    return write_prepared(world, untouched, tmp_path_factory.mktemp("prepared") / "p")


@pytest.fixture
def model(untouched: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(untouched, tmp_path / "model"))


@pytest.fixture
def root(world: World, tmp_path: Path) -> Path:
    """The trust root's file, outside the model folder."""
    path = tmp_path / "root.json"
    path.write_bytes(world.root)
    return path


@pytest.fixture
def at() -> str:
    """The time at which the deployment is checked."""
    return format_time(AT)


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    """Where the service of a module answers on a socket."""
    with listening(service.app) as found:
        yield found


@pytest.fixture
def as_engineer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the token of an engineer of a module's service."""
    monkeypatch.setenv("GOVRAY_TOKEN", service.tokens["engineer"])
    monkeypatch.delenv("GOVRAY_SERVER", raising=False)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A new one, whose administrator runs the commands."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    monkeypatch.setenv("GOVRAY_STORE", url)
    with serve(url) as running, listening(running.app) as address:
        monkeypatch.setenv("GOVRAY_SERVER", address)
        monkeypatch.setenv("GOVRAY_TOKEN", running.tokens["admin"])
        yield running
