"""Pages: one self-contained file each, that fetches nothing and is safe whatever its texts hold.

    page("a title", "trace.jinja", calls=calls)

A page is a template of the folder ``html`` that extends ``page.jinja``; ``drawing.jinja`` has the macros that draw
calls and rounds. Texts are escaped by default; scripts only add to the content that is there without them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eqcheck.contract.escaping import one_line, printable
from eqcheck.explanation.records import many
from eqcheck.report.finding import readable
from eqcheck.report.picture import columns, committed, drafts, timeline

_LINK = re.compile(r"https?://[\w.-]+(:\d+)?(/[^\s\"'<>]*)?", re.ASCII)


def page(title: str, template: str, **data: Any) -> str:
    """The page that a template makes of the data, as HTML.

    >>> page("<b>", "page.jinja").startswith("<!doctype html>")
    True
    """
    style, script = (_resource(name) for name in ("style.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    shown = {"title": one_line(title, 200), "style": Markup(style), "script": Markup(script), "policy": policy}
    return _environment().get_template(template).render(data | shown)


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        loader=PackageLoader("eqcheck.report", "html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    plain = (short, link, permille, clipped, capital, many)
    drawn = (columns, drafts, committed, timeline, readable)
    made.filters |= {one.__name__: one for one in (*plain, *drawn)} | {"json": json.dumps}
    return made


@cache
def _resource(name: str) -> str:
    """A text that stands in the page as it is: it has no ``</`` but those of HTML in comments."""
    text = resources.files("eqcheck.report").joinpath("html", name).read_text(encoding="utf-8")
    assert "</" not in text, f"{name} would end its own element"
    return text


def _hash(text: str) -> str:
    """The hash that allows exactly this text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
    return max(least, 1000 * min(part, whole) // whole) if part > 0 and whole > 0 else 0


def clipped(text: str, most: int) -> str:
    """Lines that can be printed, cut after ``most`` characters."""
    shown, more = printable(text), len(printable(text)) - most
    return f"{shown[:most]}\n... {more} characters more are in report.json" if more > 0 else shown


def capital(text: str, begins: bool = True) -> str:
    """The text with a capital letter first where it begins a sentence, and the rest as it is."""
    return text[:1].upper() + text[1:] if begins else text
