"""A real browser for the tests of pages: Debian's Chromium, driven by Playwright; they are skipped where one lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
_FLAGS += "--disable-component-update --disable-sync"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=_FLAGS.split())
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page that is given as text; what the console, dialogs and requests say is in its ``complaints``."""
    contexts: list[Any] = []

    def show(text: str, width: int = 1600, **context: Any) -> Any:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **context))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: asked.url == file.as_uri() or page.complaints.append(asked.url))
        page.goto(file.as_uri())
        return page

    yield show
    for one in contexts:
        one.close()
