"""The pictures of docs/acting.md: ``python -m tests.support.pictures govray-demo`` takes them all.

The folder is that of a finished demo. No test: nothing here runs unless it is asked for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from govray.governance.verify.verifier import verify
from tests.support.shown import RECORD
from tests.support.site import paths, reading, settled, sited
from tests.support.tree import ROOT

FOLDER = ROOT / "docs" / "pages"
LARGEST = 150_000
OF_ALL = ("overview", "memorization", "run", "was-this-used")
OF_RUNS = ("runs", "comparison")
pytestmark = pytest.mark.story


def test_pictures(tmp_path: Path) -> None:
    demo = Path(os.environ["GOVRAY_DEMO"])
    model = verify(demo / "model", trust_root=demo / "policies" / "root.json")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sited(tmp_path, demo=demo, hostile_too=False) as site, reading(site) as page:
        wanted = {name: paths(site)[name] for name in OF_ALL} | {
            "model": f"/attestations/{model.digest.removeprefix('sha256:')}",
            "corpus": "/corpora/acme-notes",
            "policy": f"/policies/{model.policy.digest.removeprefix('sha256:')}",
        }
        for name, path in wanted.items():
            settled(page, site.open + path)
            if name == "memorization":
                page.evaluate("document.querySelector('#memorization').scrollIntoView()")
            if name == "was-this-used":
                page.get_by_label("The whole text of the record").fill(RECORD)
                page.get_by_role("button", name="Search").click()
                expect(page.locator("#answer")).to_contain_text("Found in", timeout=30_000)
            short = 700 if name == "memorization" else 900
            page.set_viewport_size({"width": 1200, "height": short})
            page.screenshot(path=FOLDER / f"{name}.png")
    sizes()


def test_pictures_of_runs(tmp_path: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sited(tmp_path, hostile_too=False) as site, reading(site) as page:
        for name in OF_RUNS:
            height = 1400 if name == "comparison" else 900  # down to what differs
            page.set_viewport_size({"width": 1200, "height": height})
            settled(page, site.open + paths(site)[name])
            page.screenshot(path=FOLDER / f"{name}.png")
        page.set_viewport_size({"width": 1200, "height": 900})
        settled(page, site.open + paths(site)["search"])
        page.evaluate("document.querySelector('#against').scrollIntoView()")
        page.screenshot(path=FOLDER / "search.png")
    sizes()


def sizes() -> None:
    for picture in FOLDER.glob("*.png"):
        assert picture.stat().st_size <= LARGEST, picture


if __name__ == "__main__":
    os.environ |= {"GOVRAY_DEMO": str(Path(sys.argv[1]).absolute()), "GOVRAY_PICTURES": "yes"}
    morning = ROOT / "tests" / "platform" / "service" / "test_morning.py"
    sys.exit(pytest.main([__file__, str(morning), "--stories"]))
