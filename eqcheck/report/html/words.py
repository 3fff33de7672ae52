"""Short texts of pages: counts, shares, links; as filters for templates."""

from __future__ import annotations

import json
import re
from typing import Any

from eqcheck.plain import one_line
from eqcheck.verdict import many

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


def permille(part: int, whole: int) -> int:
    """The share of ``part`` in a bar of a thousand; at least 4 where there is any, at most 1000.

    >>> permille(1, 3), permille(0, 3), permille(1, 10**9), permille(3, 0)
    (333, 0, 4, 0)
    """
    if part <= 0 or whole <= 0:
        return 0
    return max(4, 1000 * min(part, whole) // whole)


def as_json(value: Any) -> str:
    """Plain data as JSON, lists of numbers on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return _NUMBERS.sub(lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


_NUMBERS = re.compile(r"\[[\s\d,.eE+-]*\]")


FILTERS = {"short": short, "link": link, "permille": permille, "as_json": as_json, "many": many}
