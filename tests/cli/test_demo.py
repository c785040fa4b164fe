"""The main job as a newcomer runs it, and the four commands that it offers afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from tests.support.all_exports import export_all
from tests.support.command import Run
from tests.support.forked_workers import HELD_BACK, Forked
from tests.support.tree import ROOT

# A slow machine takes three times what a quick one does.
pytestmark = pytest.mark.timeout(1200)

GOVRAY = [str(Path(sys.executable).with_name("govray"))]


@pytest.fixture(autouse=True)
def own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(HELD_BACK, "07" * 32)  # the step at which the list is gated depends on it


def demo(govray: Sequence[str | Path], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*govray, "demo", *words], capture_output=True, text=True, timeout=1100, check=False
    )


class Loads(HTMLParser):
    """Collects everything that a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name in ("src", "href", "srcset", "action") and not (value or "").startswith("#")
        ]


def test_the_demo_ends_with_a_verified_model_and_commands_that_work(
    tmp_path: Path, run: Run, forked: Forked
) -> None:
    done = demo([forked.govray], "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["base"]["trained"] == told["base"]["replayed"]
    assert told["loss"]["last"] < told["loss"]["first"]
    assert told["quarantined"] > 0
    assert set(told["verdict"]["levels"]["acme-notes"].values()) == {2}
    assert 1 <= told["rank"]["with"] <= 10_000
    # The planted list, and nothing else, was learnt by heart and sent to its adapter.
    [gate] = told["verdict"]["gates"]
    assert (gate["corpus"], gate["fallback"]) == ("parts-list", "removable")
    assert told["learntByHeart"] == {"corpus": "parts-list", "step": int(gate["step"])}
    assert set(told["verdict"]["memorization"]["measured"]) == {"parts-list"}

    report = (tmp_path / "govray-demo" / "report.html").read_text()
    page = Loads()
    page.feed(report)
    assert page.fetched == []
    assert told["base"]["trained"] in report
    assert "acme-notes" in report
    assert f"From step <strong>{gate['step']}</strong> on its rows train only" in report

    verify, remove, serve, init = (shlex.split(command)[1:] for command in told["next"])
    out = run(*verify).out
    assert "VERIFIED" in out
    said = f"parts-list rerouted to removable from step {gate['step']}: memorization"
    assert said in " ".join(out.split())
    [model] = (word for word in verify if word.endswith("model"))
    exported = export_all(
        run, Path(model), tmp_path / "exports", *verify[verify.index(model) + 1 :]
    )
    trained = {row["corpus"] for row in told["verdict"]["coverage"]}
    assert {each.name for each in exported["croissant"]} == trained
    reports_are_drafted(run, model, tmp_path, *verify[verify.index(model) + 1 :])
    run(*remove)
    assert not (tmp_path / "govray-demo" / "model" / "adapters" / "acme-notes").exists()
    again = run(*verify, "--json").json
    assert set(again["levels"]["acme-notes"].values()) == {3}
    assert again["subjects"]["model.safetensors"] == told["base"]["trained"]
    run(*init)
    assert answered_by(serve) == [told["verdict"]["attestation"]]


def reports_are_drafted(run: Run, model: str, folder: Path, *options: str) -> None:
    """Both reports, and what is filled and missing of each section of the Commission's template."""
    run("report", "annex-xi", model, "--out", folder / "annex.html", *options)
    told = run("report", "eu-summary", model, "--out", folder / "eu.json", *options, "--json").json
    drafted = json.loads((folder / "eu.json").read_text())
    assert drafted["counts"]["asked"] == 0
    found = Counter(
        field["state"] for section in drafted["sections"] for field in section["fields"]
    )
    stated = f"{found['filled']} fields are filled and {found['missing']} missing"
    assert stated in (ROOT / "docs" / "evidence.md").read_text()
    assert found["missing"] == len(told["missing"])


def answered_by(serve: list[str]) -> list[str]:
    """The attestations that the service has, once it has looked at the storage."""
    process = subprocess.Popen(
        [*GOVRAY, *serve, "--port", "0"],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        deadline = time.monotonic() + 120
        while True:
            listed = httpx.get(f"{found[0]}v1/attestations").json()["items"]
            if listed or time.monotonic() > deadline:
                return [each["digest"] for each in listed]
            time.sleep(0.2)
    finally:
        process.terminate()
        assert process.wait(60) == 0
