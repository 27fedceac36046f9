"""A headless browser for the tests of pages, and what a page complains of or asks for while it is open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class BrowserPage:
    """A page, and all that it complained of or asked for."""

    def __init__(self, tab: Any, file: Path) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("body[data-ready]")

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).first.inner_text())

    def is_dark(self) -> bool:
        """Whether its paper is darker than its ink."""
        paper, ink = (
            self.tab.evaluate(
                "name => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3)"
                ".reduce((sum, part) => sum + Number(part), 0)",
                name,
            )
            for name in ("backgroundColor", "color")
        )
        return bool(paper < ink)


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium, from ``CHROMIUM``, the path or Playwright; the test is skipped where there is none."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        found = found or (path if Path(path := playwright.chromium.executable_path).is_file() else None)
        if found is None:
            pytest.skip(
                "no browser: apt-get install chromium, or playwright install chromium, or set CHROMIUM"
            )
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def tab(browser: Any, width: int, scheme: str = "light") -> Any:
    """An empty page of that width, in pixels, and colour scheme."""
    return browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
