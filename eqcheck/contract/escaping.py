"""Text that decoders and files bring along, made fit to be printed and written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unicodedata import category


def printable(text: str) -> str:
    """Lines of text without what a terminal would obey or UTF-8 cannot hold; each such character becomes ``?``.

    >>> printable("a\\x1b[31mb\\ud800")
    'a?[31mb?'
    """
    if text.isprintable():  # as nearly all are
        return text
    return "\n".join(map(_plain, text.expandtabs(4).split("\n")))


def _plain(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in line)


def one_line(text: str, most: int = 500) -> str:
    """The same in one line, cut after ``most`` characters.

    >>> one_line("two\\nlines", 8)
    'two l...'
    """
    line = printable(re.sub(r"\s*\n\s*", " ", text.strip("\n")))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def cleaned(data: Any) -> Any:
    """Plain data for JSON in which every text, also of keys, is `printable`.

    >>> cleaned({"note": ["\\x07!"], "count": 2})
    {'note': ['?!'], 'count': 2}
    """
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {cleaned(name): cleaned(value) for name, value in data.items()}
    return [cleaned(value) for value in data] if isinstance(data, list | tuple) else data


def inline(text: str) -> str:
    """Text for a line of Markdown: it opens no HTML, and no block.

    >>> inline("<b>\\n# x")
    '&lt;b> # x'
    """
    return re.sub(r"<(?!https?://)", "&lt;", one_line(text, 2000))


def code(text: str) -> str:
    """A span of code in Markdown that the text cannot end.

    >>> code("a`b")
    '``a`b``'
    """
    line = one_line(text, 10**6)
    ticks = _longer(line, 1)
    gap = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{gap}{line}{gap}{ticks}"


def fenced(text: str) -> list[str]:
    """The lines of a block of code in Markdown that the text cannot end.

    >>> fenced("x")
    ['```', 'x', '```']
    """
    fence = _longer(text, 3)
    return [fence, printable(text), fence]


def _longer(text: str, least: int) -> str:
    runs = (len(run) for run in re.findall("`+", text))
    return "`" * max(least, 1 + max(runs, default=0))


def listed(value: Any) -> str:
    """`describe`, and how a tensor, an array or a generator becomes a list."""
    if hasattr(value, "tolist"):
        pads = " and leave out the pads" * (len(value.shape) > 1)
        return f"{describe(value)}; call .tolist() on it{pads}"
    return f"a {type(value).__name__}; call list(...) on it" if isinstance(value, Iterator) else describe(value)


def describe(value: Any) -> str:
    """A value in an error message: its type, and its shape and device or its beginning."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        where = f" on {value.device}" if hasattr(value, "detach") else ""
        return f"a {type(value).__name__} of shape {list(value.shape)}{where}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
