"""An extension of griffe: examples in docstrings become blocks of code, where Markdown would take `>>>` for quotes."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

EXAMPLE = re.compile(r"^[ \t]*>>> .*(?:\n[ \t]*\S.*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with each example in a fence.

    >>> fenced("A fact.\\n\\n>>> 1 + 1\\n2")
    'A fact.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{dedent(found.group())}\n```", text)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring that is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value.replace("``", "`"))
