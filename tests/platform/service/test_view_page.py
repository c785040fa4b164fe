"""A view checked in Chromium: it shows what `verify_view` shows, and refuses what that refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from govray.evidence.views.disclosure import sign_disclosure, weights_of
from govray.evidence.views.view import View
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import seal
from tests.support.site import Site, reading, serious, settled
from tests.support.view_shelf import ALTERED, SECRET, ViewShelf

pytestmark = [pytest.mark.slow, pytest.mark.browser]

AT = "2026-11-20T00:00:00Z"

CHECK = """async ({view, root, at}) => {
  const {checkView} = await import("/static/view_check.js");
  const {utf8} = await import("/static/bytes.js");
  const known = await (await fetch("/static/kinds.json")).json();
  const found = await checkView(utf8(view), {...known, root: utf8(root), at});
  return {...found, names: Object.fromEntries(found.names)};
}"""


@pytest.fixture(scope="module")
def page(site: Site) -> Page:
    """One that may import the scripts of the pages."""
    made = site.browser.new_page()
    made.goto(f"{site.guarded}/views")
    return made


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> ViewShelf:
    return ViewShelf(tmp_path_factory.mktemp("shelf") / "model")


def checked(page: Page, shelf: ViewShelf, view: View, at: str = AT) -> dict[str, Any]:
    given = {"view": view.encode().decode(), "root": shelf.world.root.decode(), "at": at}
    found: dict[str, Any] = page.evaluate(CHECK, given)
    return found


@pytest.mark.parametrize("names", [(), ("alpha",), ("*",)])
def test_it_shows_what_the_command_shows(
    page: Page, shelf: ViewShelf, names: tuple[str, ...]
) -> None:
    view = shelf.view(names=names, fields=("counts", "coverage", "taint", "adapters", "run"))
    found, stated = checked(page, shelf, view), shelf.verified(view)
    told = [
        {"field": f.field, "corpus": f.corpus, "group": f.group, "value": f.value}
        for f in stated.facts
    ]
    assert found["facts"] == told
    assert found["names"] == stated.names
    assert (found["shown"], found["leaves"]) == (stated.leaves, stated.leaves + stated.withheld)
    assert found["weights"] == [[each.name, each.sha256] for each in stated.disclosure.subjects]
    assert found["keyids"] == sorted(stated.disclosure.keyids)


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_view_is_refused(page: Page, shelf: ViewShelf, what: str) -> None:
    checked(page, shelf, shelf.view())  # control
    with pytest.raises(Error, match=r"not among what the operator signed|stands twice"):
        checked(page, shelf, ALTERED[what](shelf.view()))


def test_only_an_operator_signs(page: Page, shelf: ViewShelf) -> None:
    world, signers = shelf.world, (shelf.world.keys.auditor, LocalSigner.generate())
    for signer in signers:
        signed = sign_disclosure(shelf.model, SECRET, signer)
        with pytest.raises(Error, match="no operator authority of the trust root signed it"):
            checked(page, shelf, shelf.view(by=signed))
    both = seal(shelf.facts.document, [weights_of(shelf.model)], [world.keys.operator, signers[1]])
    with pytest.raises(Error, match="other than the signer's"):
        checked(page, shelf, shelf.view(by=both))
    attestation = shelf.model.path / "governance" / "attestation.dsse.json"
    with pytest.raises(Error, match="of another type"):
        checked(page, shelf, shelf.view(by=attestation.read_bytes()))
    with pytest.raises(Error, match="expired"):
        checked(page, shelf, shelf.view(), at="2999-01-01T00:00:00Z")


@pytest.mark.story
@pytest.mark.browser
def test_an_outsider_checks_a_view_on_the_page(
    site: Site, shelf: ViewShelf, tmp_path: Path
) -> None:
    root, view, altered = tmp_path / "root.json", tmp_path / "buyer.json", tmp_path / "lie.json"
    root.write_bytes(shelf.world.root)
    view.write_bytes(shelf.view(names=("alpha",)).encode())
    altered.write_bytes(ALTERED["value"](shelf.view()).encode())
    with reading(site, width=390) as page:
        settled(page, site.guarded + "/views")  # nobody is signed in
        verdict = page.locator("#verdict")
        expect(verdict).to_contain_text("Waiting for the trust root and a view")
        page.locator("#view-file").set_input_files(view)
        expect(verdict).to_contain_text("Waiting for the trust root.")
        page.locator("#root-file").set_input_files(root)
        expect(verdict).to_contain_text("Verified: operator signed what is shown")
        expect(page.locator("#about")).to_contain_text("alpha")
        expect(page.locator("#facts")).to_contain_text("corpora.credentialClass.licenseCategory")
        assert page.locator("#facts tr").count() == len(shelf.view().leaves)
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#view-file").set_input_files(altered)
        expect(verdict).to_contain_text("Refused.")
        expect(verdict).to_contain_text("not among what the operator signed")
        expect(page.locator("#shown")).to_be_hidden()
        page.locator("#view-file").set_input_files(root)
        expect(verdict).to_contain_text("Refused. view: has the unknown field 'payload'")
        assert page.wrong == []  # type: ignore[attr-defined]
