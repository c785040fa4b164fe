"""The scripts of the pages in Chromium, without a service: the package's own files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from playwright.sync_api import Browser, Page, Route

from govray.platform.service.pages import site

STATIC = Path(site.__file__).parent / "static"
HOST = "https://pages.test"  # WebCrypto is there for secure contexts only


def modules(browser: Browser) -> Page:
    """A blank page that can import them from ``/static/``."""
    made = browser.new_page()
    made.route(f"{HOST}/**", serve)
    made.goto(f"{HOST}/")
    return made


def serve(route: Route) -> None:
    name = urlparse(route.request.url).path.removeprefix("/static/")
    if name == "/":
        route.fulfill(body="<!doctype html><title>blank</title>", content_type="text/html")
    elif name == "kinds.json":
        route.fulfill(body=site.kinds(), content_type="application/json")
    else:
        route.fulfill(body=(STATIC / name).read_bytes(), content_type="text/javascript")
