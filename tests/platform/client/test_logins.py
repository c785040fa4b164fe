"""The file of logins: what it keeps, and who may read it."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from govray.errors import Refused
from govray.platform.client import connect
from govray.platform.client.logins import Login, forget_login, keep_login, logins_file, read_login

SERVER = "https://govray.example"
AT = datetime(2026, 11, 24, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GOVRAY_TOKEN", raising=False)
    return tmp_path / "config" / "govray"


def test_a_login_is_its_owners_alone(folder: Path) -> None:
    path = keep_login(SERVER, Login(token="govr_a"))
    assert path == folder / "logins.json" == logins_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    assert read_login(SERVER) == Login(token="govr_a")
    assert connect(SERVER)._token == "govr_a"


def test_each_server_has_its_own() -> None:
    keep_login(SERVER, Login(token="govr_a"))
    keep_login("https://other.example", Login(token="govr_b"))
    assert connect(f"{SERVER}/")._token == "govr_a"
    assert read_login("https://third.example") is None
    keep_login(SERVER, Login(token="govr_c"))
    assert forget_login(SERVER) is True
    assert forget_login(SERVER) is False
    assert read_login(SERVER) is None
    assert read_login("https://other.example") == Login(token="govr_b")


def test_a_token_that_has_ended_is_none() -> None:
    ends = AT + timedelta(minutes=5)
    keep_login(SERVER, Login(token="e", expires=ends.timestamp()))
    assert read_login(SERVER, at=AT) is not None
    assert read_login(SERVER, at=ends) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_read_is_refused(folder: Path, mode: int) -> None:
    path = keep_login(SERVER, Login(token="govr_secret"))
    path.chmod(mode)
    for act in (
        lambda: read_login(SERVER),
        lambda: keep_login(SERVER, Login(token="x")),
        lambda: forget_login(SERVER),
        lambda: connect(SERVER),
    ):
        with pytest.raises(Refused, match="others can read") as caught:
            act()
        assert "govr_secret" not in str(caught.value)
    path.chmod(0o600)  # negative control: the mode alone was in the way
    assert read_login(SERVER) == Login(token="govr_secret")


def test_no_token_is_in_a_repr() -> None:
    assert "govr_a" not in repr(Login(token="govr_a"))
