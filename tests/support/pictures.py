"""The pictures of docs/pages.md: ``python -m tests.support.pictures govray-demo`` takes them all.

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
from tests.support.site import give, open_model, paths, reading, settled, sited
from tests.support.tree import ROOT
from tests.support.view_shelf import ViewShelf

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
            "ledger": f"/ledgers/{model.attestation.run.id}",
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
                expect(page.locator("#answer")).to_contain_text("checked here", timeout=30_000)
            short = 700 if name == "memorization" else 900
            page.set_viewport_size({"width": 1200, "height": short})
            page.screenshot(path=FOLDER / f"{name}.png")
    sizes()


def test_picture_of_the_verification(tmp_path: Path) -> None:
    with sited(tmp_path, hostile_too=False) as site, reading(site) as page:
        open_model(page, site)
        give(page, site, site.shown.folder)
        expect(page.locator("#verdict")).to_contain_text("Nothing failed", timeout=30_000)
        page.evaluate("document.querySelector('#verdict').scrollIntoView()")
        page.screenshot(path=FOLDER / "verification.png")
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


def test_picture_of_a_view(tmp_path: Path) -> None:
    shelf = ViewShelf(tmp_path / "model")
    root, view = tmp_path / "root.json", tmp_path / "buyer.json"
    root.write_bytes(shelf.world.root)
    shown = ("corpora.credentialClass.licenseCategory", "taint")
    view.write_bytes(shelf.view(names=("alpha",), fields=shown).encode())
    with sited(tmp_path, hostile_too=False) as site, reading(site) as page:
        settled(page, site.open + "/views")
        page.locator("#root-file").set_input_files(root)
        page.locator("#view-file").set_input_files(view)
        expect(page.locator("#verdict")).to_contain_text("Verified")
        page.screenshot(path=FOLDER / "view.png")
    sizes()


def sizes() -> None:
    for picture in FOLDER.glob("*.png"):
        assert picture.stat().st_size <= LARGEST, picture


if __name__ == "__main__":
    os.environ |= {"GOVRAY_DEMO": str(Path(sys.argv[1]).absolute()), "GOVRAY_PICTURES": "yes"}
    morning = ROOT / "tests" / "platform" / "service" / "test_morning.py"
    sys.exit(pytest.main([__file__, str(morning), "--stories"]))
