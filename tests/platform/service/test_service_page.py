"""docs/service.md: its commands run, and its tables are those of the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from govray.cli import main
from govray.platform.service.http.settings import MIB, Settings
from govray.platform.service.identity import access, oidc, pagination
from govray.platform.service.routes import live_metrics
from tests.support.listening import listening
from tests.support.process import application
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "service.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


@pytest.fixture
def served() -> Iterator[ExitStack]:
    """What the commands left listening, until the test's end."""
    with ExitStack() as stack:
        yield stack


def test_the_commands_of_the_page_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    served: ExitStack,
) -> None:
    """Each ``govray`` line of the page, in its order; ``curl`` asks what ``serve`` would serve."""
    app: Any = None
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOVRAY_STORE", raising=False)
    variables: dict[str, str] = {}
    ran = 0
    for line in "".join(blocks("bash")).replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda name: variables[name[1]], line.partition("  # ")[0])
        words = shlex.split(line)
        if not words:
            continue
        ran += 1
        if words[:2] == ["govray", "serve"]:
            with pytest.MonkeyPatch.context() as during:
                app = application(during, *words[2:])
            address = served.enter_context(listening(app))
        elif words[0] == "export":
            assert words[1] == "GOVRAY_SERVER=http://127.0.0.1:8585"
            monkeypatch.setenv("GOVRAY_SERVER", address)
            monkeypatch.setenv(*words[2].split("=", 1))
        elif words[0] == "curl":
            _curl(app, words[1:])
        elif (assigned := re.fullmatch(r"(\w+)=\$\((.*)\)", line)) is not None:
            capsys.readouterr()
            assert main([*shlex.split(assigned[2])[1:]]) == 0
            variables[assigned[1]] = capsys.readouterr().out.strip()
        else:
            assert words[0] == "govray", line
            assert main(words[1:]) == 0, line
    assert ran >= 8


def _curl(app: Any, words: list[str]) -> None:
    address = next(each for each in words if each.startswith("http"))
    headers = dict(words[at + 1].split(": ", 1) for at, each in enumerate(words) if each == "-H")
    with TestClient(app, base_url="http://127.0.0.1:8585") as client:
        assert client.get(address, headers=headers).status_code == 200, address


def test_the_page_states_the_bounds_that_hold() -> None:
    text = PAGE.read_text()
    default = Settings(store="sqlite:///x")
    for stated in (
        f"| {default.max_body // MIB} MiB | 413 |",
        f"| {default.time_limit:g} s | 503 |",
        f"| {default.burst} at once, then {default.rate:g} a second | 429 |",
        f"| {pagination.MAX_LIMIT} | 422 |",
        f"| {default.max_streams} | 503 |",
        f"| the same of one user | {live_metrics.MOST_OF_ONE} | 429 |",
        f"| {live_metrics.MAX_SECONDS / 60:g} minutes",
        f"for {access.REMEMBERED:g} seconds",
        " or ".join((", ".join(oidc.ALGORITHMS[:-1]), oidc.ALGORITHMS[-1])),
        f"with {oidc.LEEWAY.seconds} seconds",
    ):
        assert stated in text, stated
