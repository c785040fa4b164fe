"""A page of each kind in Chromium, over PostgreSQL."""

from __future__ import annotations

import hashlib
import json
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Page, expect

from tests.support.queue_shown import WHY_NOT
from tests.support.shown import RECORD
from tests.support.site import Site, paths, reading, serious, settled

pytestmark = pytest.mark.browser

story = pytest.mark.story

COLOURED = frozenset(
    ("overview", "memorization", "queue", "search", "run", "comparison", "corpus", "ledger")
)
"""Pages with drawings, badges or shades, which are others in the dark. Axe takes longest."""


@pytest.mark.parametrize(
    ("scheme", "width", "all_by_axe"),
    [
        ("light", 1200, False),
        pytest.param("light", 1200, True, marks=story),
        pytest.param("dark", 320, False, marks=story),
    ],
)
def test_pages_are_whole_quiet_and_accessible(
    site: Site, scheme: str, width: int, all_by_axe: bool
) -> None:
    with reading(site, scheme=scheme, width=width) as page:
        for name, path in paths(site).items():
            settled(page, site.open + path)
            assert page.wrong == [], name  # type: ignore[attr-defined]
            assert page.evaluate("window.hacked") is None, name
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} pixels wide"
            found = serious(page) if all_by_axe or name in COLOURED else []
            assert found == [], f"{name}: {json.dumps(found)[:2000]}"


def test_a_submission_says_that_its_model_was_not_signed_and_why(site: Site) -> None:
    with reading(site) as page:
        page.goto(site.open + "/experiments")
        page.get_by_role("link", name="yesterdays").click()
        expect(page.locator("dl.facts").first).to_contain_text(f"NOT_ATTESTED: {WHY_NOT}")


def test_a_models_page_is_short_and_its_chart_says_what_it_draws(site: Site) -> None:
    for width, longest in ((1280, 2500), (390, 6000)):
        with reading(site, width=width) as page:
            settled(page, site.open + paths(site)["memorization"])
            assert page.evaluate("document.documentElement.scrollHeight") <= longest
            assert page.locator(".legend").count() == 1
            chart = page.locator("svg.chart").first
            for said in ("odds, at least", "step", "tolerance 1.5"):
                text = chart.get_by_text(said, exact=True)
                high = text.evaluate(
                    "e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a"
                )
                assert high >= 10, f"{said} is {high} pixels high at {width}"


def test_a_table_that_goes_on_has_a_shadow_on_that_side(site: Site) -> None:
    def shadows(page: Page, left: int, *wanted: float) -> None:
        page.wait_for_function(
            """([left, wanted]) => {
              const table = document.querySelector(".scroll:has(table.heat)");
              table.scrollLeft = left;
              const shadow = (side) => Number(getComputedStyle(table, side).opacity);
              return `${["::before", "::after"].map(shadow)}` === wanted;
            }""",
            arg=[left, ",".join(map(str, wanted))],
        )

    for width, places in ((390, ((0, 0, 1), (60, 1, 1), (9999, 1, 0))), (1200, ((0, 0, 0),))):
        with reading(site, width=width) as page:
            settled(page, site.open + paths(site)["memorization"])
            for place in places:
                shadows(page, *place)


def test_the_digest_of_a_policy_leads_to_its_rules(site: Site) -> None:
    with reading(site) as page:
        page.goto(site.open + paths(site)["run"])
        page.locator("a[href^='/policies/']").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("licences v3")
        expect(page.get_by_role("row", name="strong-copyleft")).to_contain_text("quarantined")
        page.get_by_role("link", name="Policies").first.click()
        expect(page.get_by_role("link", name="licences")).not_to_have_count(0)


def test_axe_finds_what_is_wrong(site: Site) -> None:
    with reading(site) as page:
        page.goto(site.open + "/sign-in")
        page.evaluate("document.querySelector('label').remove()")
        assert serious(page)


def test_a_text_is_searched_by_its_hash_alone(site: Site) -> None:
    sent: list[str] = []
    with reading(site) as page:
        page.on("request", lambda asked: sent.append(f"{asked.url} {asked.post_data or ''}"))
        page.goto(f"{site.open}/search")
        page.get_by_label("The whole text of the record").fill(RECORD)
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#answer")).to_contain_text("Found in", timeout=30_000)
        page.get_by_label("The whole text of the record").fill(RECORD + " ")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#answer")).to_contain_text("Not found in the recorded data")
        digest = hashlib.sha256(RECORD.encode()).hexdigest()
        assert any(f"sha256={digest}" in each for each in sent)
        page.get_by_label("The whole text of the record").fill("é")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#answer")).to_contain_text("Not found in the recorded data")
        forms = [hashlib.sha256(each.encode()).hexdigest() for each in ("\u00e9", "e\u0301")]
        assert any(f"sha256={'%2C'.join(forms)}" in each for each in sent)
        assert not any(part in each for each in sent for part in (RECORD, quote_plus(RECORD)))
        assert page.wrong == []  # type: ignore[attr-defined]


@story
def test_signing_in_by_keyboard_and_out(site: Site) -> None:
    with reading(site) as page:
        page.goto(site.guarded + "/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.goto(site.guarded + "/sign-in?next=/corpora")
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("govr_nonsense")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Token").fill(site.tokens["supplier"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Your corpora")).to_be_visible()
        # A supplier's own corpus and nobody else's.
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("acme")
        [cookie] = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Sign in").first).to_be_visible()
        assert page.context.cookies() == []
