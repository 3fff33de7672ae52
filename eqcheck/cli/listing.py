"""``eqcheck list``: list the installed decoders."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.contract.errors import EQUIVALENT, UsageError, printable
from eqcheck.core.explanation.layout import WHOLE, columns, table, wrapped

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands
    from eqcheck.contract.decoders import Decoder
    from eqcheck.contract.registry import Declared


_HEADS = ["decoder", "families", "padding", "known violations", "dtype", "checkpoints", "origin"]


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    known = commands.add_parser(
        "list", help="list the installed decoders", description="List the installed decoders and what they declare."
    )
    known.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.contract import registry

    rows, shipped = [], registry.shipped()
    known: dict[str, list[str]] = {}
    for name in registry.names():
        try:
            decoder = registry.declared(name) if name in shipped else registry.load(name)
        except UsageError as error:
            rows.append([name, "broken", "-", "-", "-", "-", str(error)])
        else:
            known[name] = list(decoder.known)
            rows.append([name, *_declared(decoder)])
    text = table(rows, _HEADS, WHOLE)
    if max(map(len, text.split("\n"))) > (width := columns()):
        text = _narrow(rows, known, width)
    say(printable(text))
    return EQUIVALENT


def _narrow(rows: list[list[str]], known: Mapping[str, list[str]], width: int) -> str:
    """The table for a narrow terminal: without the last columns, and if that is still too wide, a line per decoder."""
    from eqcheck.contract.decoders import DTYPES

    more = "the dtype and checkpoints of each engine, and where each decoder comes from"
    rows, heads = [row[:4] for row in rows], _HEADS[:4]
    text = table(rows, heads, width)
    if text.count("\n") > len(rows) + 1:  # a line each, so that all decoders are on a screen
        more = f"all known violations, {more}"
        sides = {"left, right": "both"}
        short = [[*row[:2], sides.get(row[2], row[2]), _short(known.get(row[0], []))] for row in rows]
        served = [row[0] for row in rows if row[0].rpartition("_")[2] in DTYPES]
        text = table([row for row in short if row[0] not in served], heads, width)
        text += "\n\n" + wrapped(f"The same engines in other dtypes: {', '.join(served)}", width) if served else ""
    return text + "\n\n" + wrapped(f"`eqcheck list | cat` also shows {more}.", width)


def _declared(decoder: Declared | Decoder) -> list[str]:
    """The columns of a decoder's row, behind its name."""
    from eqcheck.contract.family import LLAMA

    families = (LLAMA,) if decoder.checkpoints else decoder.families
    claims = [", ".join(families), ", ".join(decoder.padding_sides), ", ".join(decoder.known) or "-"]
    served = [decoder.dtype, ", ".join(decoder.kinds)] if decoder.checkpoints else ["-", "-"]
    return [*claims, *served, decoder.origin]


def _short(known: Sequence[str]) -> str:
    """Name the first of several known violations, and how many more there are.

    >>> _short(["mask/window", "cache/wrong-row", "cache/torn-entry"]), _short([])
    ('mask/window +2', '-')
    """
    return f"{known[0]} +{len(known) - 1}" if len(known) > 1 else "".join(known) or "-"
