"""Runs, comparisons and searches by hand in Chromium: ticked, zoomed, smoothed, sent to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.shown import HOSTILE, LIVE, RECORD, SEARCH
from tests.support.site import Site, reading, settled

pytestmark = [pytest.mark.slow, pytest.mark.browser]

BOTH = "/compare?run=run-first&run=run-monitored"


@contextmanager
def without_scripts(site: Site) -> Iterator[Page]:
    context = site.browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def drawn(page: Page) -> str:
    return page.locator("#charts polyline:not(.raw)").first.get_attribute("points") or ""


def drag(page: Page, chart: Locator, start: float, end: float) -> None:
    """Over a chart, from one share of its width to another."""
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=3)
    page.mouse.up()


def test_runs_are_found_ticked_and_compared(site: Site) -> None:
    with reading(site) as page:
        page.goto(f"{site.open}/runs")
        page.get_by_label("Name contains").fill("run-")
        page.get_by_label("Project").fill("research")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Loss").click()
        for part in ("named=run-", "project=research", "sort=loss", "order=up"):
            assert part in page.url
        names = page.locator("tbody th a").all_inner_texts()
        assert names == ["run-first", "run-monitored", LIVE, "run-bad"]
        # By keyboard alone: each box is in the order of reading, and says what it is for.
        page.get_by_label("Compare run-first").focus()
        page.keyboard.press("Space")
        page.get_by_label("Compare run-bad").focus()
        page.keyboard.press("Space")
        page.get_by_role("button", name="Compare").press("Enter")
        expect(page.get_by_role("heading", name="Comparison")).to_be_visible()
        expect(page.locator("#charts polyline")).to_have_count(2)
        expect(page.locator("#settings + .scroll tbody tr").first).to_contain_text("differs")
        assert page.evaluate("window.hacked") is None
        assert page.wrong == []  # type: ignore[attr-defined]


def test_a_chart_is_zoomed_smoothed_and_the_view_is_its_address(site: Site) -> None:
    with reading(site) as page:
        settled(page, site.open + BOTH)
        whole = drawn(page)
        drag(page, page.locator("svg.chart"), 0.25, 0.5)
        first, last = (int(page.locator(f"#{end}").input_value()) for end in ("from", "to"))
        assert 0 < first < last < 299
        assert drawn(page) != whole
        assert f"from={first}&to={last}" in page.url
        zoomed = drawn(page)
        # The slider by keyboard.
        page.get_by_label("Smoothing").focus()
        for _ in range(3):
            page.keyboard.press("PageUp")
        assert float(page.locator("output").inner_text()) > 0.1
        assert drawn(page) != zoomed
        expect(page.locator("#charts polyline.raw")).to_have_count(2)
        page.get_by_label("Logarithmic").check()
        assert "log=1" in page.url
        seen = drawn(page)
        # The address is the view: the server draws the same range from its own numbers.
        settled(page, page.url)
        assert page.get_by_label("Logarithmic").is_checked()
        assert int(page.locator("#from").input_value()) == first
        assert len(drawn(page).split()) == len(seen.split()) == last - first + 1
        page.get_by_role("link", name="Whole range").click()
        expect(page.locator("#from")).to_have_value("")
        assert len(drawn(page).split()) == len(whole.split())
        # A click is no drag, and a range without numbers says so.
        drag(page, page.locator("svg.chart"), 0.5, 0.5)
        expect(page.locator("#from")).to_have_value("")
        page.locator("#from").fill("5000")
        expect(page.locator("svg.chart")).to_contain_text("No number")
        assert page.wrong == []  # type: ignore[attr-defined]


def test_smoothing_is_the_debiased_moving_average(site: Site) -> None:
    with reading(site) as page:
        settled(page, site.open + BOTH)
        points = [[step, value] for step, value in enumerate([3.0, 1.0, 2.0, 8.0])]
        found = page.evaluate(
            "async (points) => (await import('/static/chart.js')).smoothed(points, 0.5)", points
        )
        average, left, expected = 0.0, 1.0, []
        for _, value in points:
            average, left = 0.5 * average + 0.5 * value, left * 0.5
            expected.append(average / (1 - left))
        assert [value for _, value in found] == pytest.approx(expected)
        ticks = page.evaluate(
            "async () => (await import('/static/chart.js')).logTicks(0.0003, 20)", None
        )
        assert ticks[0] <= 0.0003
        assert ticks[-1] >= 20
        assert ticks == sorted(ticks)


def test_the_page_of_a_run_zooms_and_has_a_table(site: Site) -> None:
    with reading(site, width=390) as page:
        settled(page, f"{site.open}/trials/run-first")
        whole = drawn(page)
        page.locator("#from").fill("10")
        page.locator("#to").fill("20")
        assert drawn(page) != whole
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#charts")).to_have_attribute("data-ready", "yes")
        assert len(drawn(page).split()) == 11
        page.get_by_text("Loss as a table").click()
        expect(
            page.get_by_role("cell", name="10", exact=True).or_(
                page.get_by_role("rowheader", name="10", exact=True)
            )
        ).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
        with page.expect_download() as file:
            page.get_by_role("link", name="All numbers, as CSV").click()
        assert file.value.suggested_filename == "run-first-metrics.csv"


def test_pages_work_without_scripts(site: Site) -> None:
    with without_scripts(site) as page:
        page.goto(f"{site.open}/runs?tag=paper")
        expect(page.locator("tbody tr")).to_have_count(9)
        page.get_by_label(f"Compare {SEARCH}-00").check()
        page.get_by_label(f"Compare {SEARCH}-03").check()
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#settings + .scroll")).to_contain_text("lr")
        page.locator("#from").fill("100")
        page.get_by_role("button", name="Show").click()
        assert "from=100" in page.url
        page.goto(f"{site.open}/experiments/{SEARCH}")
        page.get_by_label("Hyperparameter", exact=True).select_option("width")
        page.get_by_role("button", name="Draw").click()
        expect(page.locator("section[aria-labelledby=against] circle")).to_have_count(9)
        page.goto(f"{site.open}/search")
        page.get_by_label("The whole text of the record").fill(RECORD)
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#answer")).to_contain_text("Found in")
        assert page.url == f"{site.open}/search"


def test_tags_are_changed_on_the_page_and_a_wrong_one_is_given_back(site: Site) -> None:
    with reading(site) as page:
        page.goto(f"{site.open}/experiments/hostile")
        page.get_by_text("Change the tags").click()
        field = page.get_by_label("Tags, with spaces between")
        field.fill(f"keep {HOSTILE[:30]}")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("is no tag")
        expect(field).to_have_value(f"keep {HOSTILE[:30]}")
        page.wrong.clear()  # type: ignore[attr-defined]  # the 422 is in the console
        field.fill("keep this")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("link", name="keep").click()
        expect(page.locator("tbody th")).to_have_text(["run-bad"])
        assert page.evaluate("window.hacked") is None
        assert page.wrong == []  # type: ignore[attr-defined]
