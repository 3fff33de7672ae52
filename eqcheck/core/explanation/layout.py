"""Texts and tables that fit into a terminal, however narrow it is; a pipe or a file gets them whole."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

WHOLE = 10_000  # characters a line, where nothing says how wide the terminal is
_NARROWEST = 30
_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


within = WHOLE  # characters of a line, where the output is caught and shown on a terminal later, as pytest does


def columns() -> int:
    """Return how many characters a line of the terminal has; ``within`` where the output goes elsewhere."""
    # COLUMNS alone says little: GNU readline sets it to 80 for every process that a Python using it starts.
    return max(_NARROWEST, shutil.get_terminal_size((WHOLE, 24)).columns) if sys.stdout.isatty() else within


def lines() -> int:
    """Return how many lines the terminal has; ``WHOLE`` where the output goes elsewhere."""
    return shutil.get_terminal_size((WHOLE, 24)).lines if sys.stdout.isatty() else WHOLE


def wrapped(text: str, width: int) -> str:
    """Text in which no line is longer than ``width``, but for words that are.

    The rest of a line is further in than its beginning, and as far as the line below.

    >>> print(wrapped("  Cause   the row has the prompt 10, pad id 127, K = 1.\\n          It ends.", 34))
      Cause   the row has the prompt
              10, pad id 127, K = 1.
              It ends.
    """
    lines = text.split("\n")
    begins = [len(line) - len(line.lstrip()) for line in [*lines, ""]]
    return "\n".join(filled(line, width, max(begins[n] + 2, begins[n + 1])) for n, line in enumerate(lines))


def filled(line: str, width: int, further: int) -> str:
    """A line in lines of at most ``width`` characters, all but the first so far in."""
    return (
        "\n".join(textwrap.wrap(line, width, subsequent_indent=" " * further, **_WORDS)) if len(line) > width else line
    )


def table(
    rows: Sequence[Sequence[object]],
    headers: Sequence[str],
    width: int,
    short: Sequence[str] = (),
    colalign: Sequence[str] = (),
    tablefmt: str = "simple",
) -> str:
    """A table. Where it is too wide it has ``short`` heads, and columns that are not aligned to the right are wrapped.

    At worst the rows stand one below the other, each with a line for every column.

    >>> print(table([["bsp", "a few words"]], ["decoder", "what to note"], 16, ["decoder", "note"]))
    decoder  note
    -------  -------
    bsp      a few
             words
    """
    whole = tabulate(rows, headers, tablefmt, disable_numparse=True, colalign=colalign or None)
    if _widest(whole) <= width:
        return whole
    cells = [[*map(str, column)] for column in zip(short or headers, *rows, strict=True)]
    room = width - 2 * (len(cells) - 1)
    for at_hyphens in (False, True):
        wrap: dict[str, Any] = {**_WORDS, "break_on_hyphens": at_hyphens}
        widths = [max(map(_widest, column)) for column in cells]
        right = [at for at, where in enumerate(colalign) if where == "right"]
        least = [max(len(word) for cell in column for word in _wrap(cell, 1, **wrap)) for column in cells]
        least = [widths[at] if at in right else size for at, size in enumerate(least)]
        if sum(least) <= room:
            while sum(widths) > room:  # from the widest that can be narrower
                widths[max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))] -= 1
            for at, size in enumerate(widths):
                cells[at] = ["\n".join(_wrap(cell, size, **wrap)) for cell in cells[at]]
            heads, *lines = map(list, zip(*cells, strict=True))
            rule = [["-" * size for size in widths]] if tablefmt == "simple" else []
            return tabulate([heads, *rule, *lines], tablefmt="plain", disable_numparse=True, colalign=colalign or None)
    return _blocks(rows, headers, width)


def _wrap(text: str, width: int, **how: Any) -> list[str]:
    return textwrap.wrap(text, max(1, width), **how) or [""]  # a column may be empty


def _widest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _blocks(rows: Sequence[Sequence[object]], headers: Sequence[str], width: int) -> str:
    gap = max(map(len, headers[1:])) + 4
    blocks = []
    for first, *others in rows:
        block = [str(first)]
        for name, text in zip(headers[1:], others, strict=True):
            begin, *more = _wrap(str(text), width - gap, **_WORDS)
            block += [f"  {name:{gap - 2}}{begin}", *(" " * gap + line for line in more)]
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)
