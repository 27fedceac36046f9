"""The picture of the page that ``serve`` opens: ``python -m tools.docs.run_page URL docs/run-page.png``.

URL is what a running ``python -m compare serve`` has printed.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1400, 1000
_RAN_MS = 120_000


def main(url: str, file: str) -> int:
    """Wait for the first visit's run, and write the picture; the exit status."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        page.wait_for_selector("body[data-ran]", timeout=_RAN_MS)
        page.frame_locator("#stages iframe").locator(".column").first.wait_for()
        Path(file).write_bytes(page.screenshot())
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
