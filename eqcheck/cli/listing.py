"""``eqcheck list``: the decoders that can be named."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.errors import EQUIVALENT, UsageError
from eqcheck.narrow import columns, table
from eqcheck.plain import printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    known = commands.add_parser("list", help="list the decoders that can be named")
    known.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck import registry
    from eqcheck.lanes.checkpoint.case import EngineCase

    rows = []
    for name in registry.names():
        try:
            decoder = registry.load(name)
        except UsageError as error:
            rows.append([name, "broken", "-", "-", str(error)])
            continue
        families = (EngineCase.family,) if decoder.checkpoints else decoder.families
        claims = [", ".join(families), ", ".join(decoder.padding_sides), ", ".join(decoder.known) or "-"]
        rows.append([name, *claims, decoder.origin])
    say(printable(table(rows, ["decoder", "families", "padding", "known violations", "origin"], columns())))
    return EQUIVALENT
