"""The pictures of README and site: a report's page, and the page of a replay, made anew with a real browser.

python docs/screenshots.py        writes docs/pictures/*.png; needs Playwright and Debian's Chromium, takes a minute
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from eqcheck.cli import main

PICTURES = Path(__file__).resolve().parent / "pictures"
CHROMIUM = "/usr/bin/chromium"
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"


def shoot(browser: Any, page: Path, picture: str, width: int, height: int, selector: str = "") -> None:
    """Take a picture of the first screen of a page, or of what a selector finds first."""
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=1)
    opened = context.new_page()
    opened.goto(page.as_uri())
    what = opened.locator(selector).first if selector else opened
    what.screenshot(path=PICTURES / picture)
    context.close()


def run() -> int:
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder)
        main(["audit", "bsp", "--cases", "60", "--no-corpus", "--out", folder])
        case = out / "bsp" / "cases" / "position-query-position.json"
        main(["replay", "-v", str(case), "--html", str(out / "replay.html")])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        shoot(browser, out / "bsp" / "report.html", "report.png", 1280, 900)
        shoot(browser, out / "replay.html", "replay.png", 1280, 900)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(run())
