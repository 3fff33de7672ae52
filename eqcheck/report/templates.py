"""Pages: one self-contained file each, that fetches nothing and is safe whatever its texts hold.

    page("a title", "trace.jinja", calls=calls)

A page is a template of this folder that extends ``page.jinja``; ``drawing.jinja`` has the macros that draw calls and
rounds. Texts are escaped by default; scripts only add to what is there without them.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eqcheck.contract.escaping import one_line
from eqcheck.report import picture, words


def page(title: str, template: str, **data: Any) -> str:
    """The page that a template of this folder makes of the data, as HTML.

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
    made.filters |= words.FILTERS | picture.FILTERS
    return made


@cache
def _resource(name: str) -> str:
    """A text of this folder that stands in the page as it is: it has no ``</`` but those of HTML in comments."""
    text = resources.files("eqcheck.report").joinpath("html", name).read_text(encoding="utf-8")
    assert "</" not in text, f"{name} would end its own element"
    return text


def _hash(text: str) -> str:
    """What allows exactly this text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
