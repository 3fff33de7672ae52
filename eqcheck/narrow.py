"""Texts and tables that fit into a terminal, however narrow it is; a pipe or a file gets them whole."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

WHOLE = 10_000  # characters a line, where nothing says how wide the terminal is
_NARROWEST = 30
_BEGINS = re.compile(r" *((?:Let|Then|However,|-) +)?")  # what later lines of a sentence stand below
_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def columns() -> int:
    """How many characters a line of the terminal has; `WHOLE` where the output goes elsewhere."""
    # COLUMNS alone says little: GNU readline sets it to 80 for every process that a Python using it starts.
    return max(_NARROWEST, shutil.get_terminal_size((WHOLE, 24)).columns) if sys.stdout.isatty() else WHOLE


def wrapped(text: str, width: int) -> str:
    """Text in which no line is longer than ``width``, but for words that are; what goes on is further in.

    >>> print(wrapped("  Let   row 0 have the prompt ids 10, pad id 127, K = 1.", 34))
      Let   row 0 have the prompt ids
            10, pad id 127, K = 1.
    """
    return "\n".join(_filled(line, width) if len(line) > width else line for line in text.split("\n"))


def _filled(line: str, width: int) -> str:
    begin = _BEGINS.match(line)
    assert begin
    further = begin.end() if begin[1] else begin.end() + 2
    return "\n".join(textwrap.wrap(line, width, subsequent_indent=" " * further, **_WORDS))


def table(rows: Sequence[Sequence[object]], headers: Sequence[str], width: int, **options: Any) -> str:
    """A table; where that is too wide, the rows below each other, each with a line for every column.

    >>> print(table([["bsp", "right", "-"]], ["decoder", "padding", "note"], 22))
    bsp
      padding  right
      note     -
    """
    whole = tabulate(rows, headers=headers, disable_numparse=True, **options)
    if max(map(len, whole.split("\n"))) <= width:
        return whole
    gap = max(map(len, headers[1:])) + 4
    blocks = []
    for first, *others in rows:
        block = [str(first)]
        for name, text in zip(headers[1:], others, strict=True):
            begin, *more = textwrap.wrap(str(text), width - gap, **_WORDS) or [""]
            block += [f"  {name:{gap - 2}}{begin}", *(" " * gap + line for line in more)]
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)
