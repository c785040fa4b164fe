"""The distribution's Chromium, driven by Playwright, for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

# What a page comes to show may take its time on a machine that other work shares.
expect.set_options(timeout=30_000)


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser, closed at the end."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if "CI" in os.environ:
            pytest.fail("no chromium: CI has to install it")
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        # A sandbox needs a user that is not root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=found, args=flags)
        yield opened
        opened.close()
