"""Charts of a comparison by hand in Chromium: zoomed, smoothed, sent to others."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.site import Site, reading, settled

pytestmark = [pytest.mark.story, pytest.mark.browser]

BOTH = "/compare?run=run-first&run=run-monitored"


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
