"""The pictures of README and site: a report's page, and the page of a replay, made anew with a real browser.

python docs/screenshots.py        writes docs/pictures/*.png; needs Playwright and Debian's Chromium, takes a minute
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from eqcheck.cli import main

PICTURES = Path(__file__).resolve().parent / "pictures"
WIDTH = 1120
CHROMIUM = "/usr/bin/chromium"
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"


def shoot(browser: Any, page: Path, picture: str, *, height: int = 900, of: str = "") -> None:
    """Take a picture of the first screen of a page, or of what a selector finds first, with a margin."""
    opened = browser.new_page(viewport={"width": WIDTH, "height": height})
    opened.goto(page.as_uri())
    box = opened.locator(of).first.bounding_box() if of else None
    if box:
        clip = {"x": 0, "y": box["y"] + 1, "width": WIDTH, "height": box["height"]}
        opened.screenshot(path=PICTURES / picture, full_page=True, clip=clip)
    else:
        opened.screenshot(path=PICTURES / picture)
    opened.close()


def run() -> int:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.chdir(folder)  # so that the commands on the pages are those of a reader
        main(["audit", "bsp", "--cases", "60", "--no-corpus"])
        report = Path("reports/bsp").resolve()
        main(["replay", "-v", "reports/bsp/cases/position-query-position.json", "--html", "replay.html"])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        shoot(browser, report / "report.html", "report.png", height=620)
        shoot(browser, report / "report.html", "finding.png", of="article")
        shoot(browser, Path("replay.html").resolve(), "replay.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(run())
