"""Short texts of pages: counts, shares, links; as filters for templates."""

from __future__ import annotations

import re

from eqcheck.contract.escaping import one_line, printable
from eqcheck.explanation.records import many

_LINK = re.compile(r"https?://[\w.-]+(:\d+)?(/[^\s\"'<>]*)?", re.ASCII)


def short(value: object, most: int = 160) -> str:
    """A value in one line that can be printed, cut after ``most`` characters."""
    return one_line(str(value), most)


def link(text: str | None) -> str:
    """The text if it is an address of the web and nothing else; else nothing.

    >>> link("https://example.org/a"), link("javascript:alert(1)"), link("https://x/ y")
    ('https://example.org/a', '', '')
    """
    return text if text and len(text) < 2000 and _LINK.fullmatch(text) else ""


def permille(part: int, whole: int, least: int = 15) -> int:
    """The share of ``part`` in a bar of a thousand; ``least`` where there is any, at most 1000.

    >>> permille(1, 3), permille(0, 3), permille(1, 10**9), permille(3, 0)
    (333, 0, 15, 0)
    """
    if part <= 0 or whole <= 0:
        return 0
    return max(least, 1000 * min(part, whole) // whole)


def clipped(text: str, most: int) -> str:
    """Lines that can be printed, cut after ``most`` characters."""
    shown = printable(text)
    return (
        shown if len(shown) <= most else f"{shown[:most]}\n... {len(shown) - most} characters more are in report.json"
    )


def capital(text: str, begins: bool = True) -> str:
    """The text with a capital letter first where it begins a sentence, and the rest as it is."""
    return text[:1].upper() + text[1:] if begins else text


FILTERS = {
    "short": short,
    "link": link,
    "permille": permille,
    "clipped": clipped,
    "capital": capital,
    "many": many,
}
