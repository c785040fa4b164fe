"""``govray serve`` and ``govray token`` as processes and commands, and the page about them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest

from govray.cli import main
from govray.platform.store.database import open_store
from tests.support.process import serving
from tests.support.world import World


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOVRAY_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    open_store("sqlite:///govray.db", create=True).dispose()
    return tmp_path


def token(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", "new", *words, "--json"]) == 0
    text: str = json.loads(capsys.readouterr().out)["token"]
    return text


@pytest.mark.timeout(300)
def test_it_keeps_a_storage_indexed_and_says_who_is_admin(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "govray.db").unlink()  # it makes one
    elsewhere = tmp_path_factory.mktemp("trust") / "root.json"
    elsewhere.write_bytes(World().root)
    storage = folder / "runs"
    record = storage / "broken" / "record"
    record.mkdir(parents=True)
    words = ("--no-auth", "--storage", str(storage), "--trust-root", str(elsewhere))
    with serving(folder, *words) as (process, address):
        (record / "run.json").write_text("no run")
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(4)]
        assert httpx.get(f"{address}/v1/runs").status_code == 200
        assert httpx.get(f"{address}/v1/runs", headers={"Host": "evil"}).status_code == 421
        process.send_signal(signal.SIGINT)  # Ctrl-C
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert "There is no authentication" in said[0]
    assert said[1].startswith(f"Reading {storage}: ")
    assert "broken" in said[2] + said[3]


def test_a_storage_without_a_trust_root_of_its_own_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs").mkdir()
    (folder / "runs" / "root.json").write_bytes(World().root)
    words = ["serve", "--no-auth", "--storage", "runs"]
    assert main([*words, "--trust-root", "runs/root.json"]) == 1
    assert "never trusted" in capsys.readouterr().err
    assert main(["serve", "--no-auth", "--storage", "none", "--trust-root", "x"]) == 2
    assert main(["serve", "--no-auth", "--trust-root", "x"]) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_off_loopback_there_is_no_way_around_authentication(
    folder: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    assert main(["serve", "--no-auth", "--host", host]) == 1
    assert "loopback" in capsys.readouterr().err
