"""``eqcheck kinds``: list the kinds of fault, each with its meaning."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.contract.errors import EQUIVALENT
from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.layout import columns, table

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    kinds = commands.add_parser(
        "kinds",
        help="list the kinds of fault",
        description="List the kinds of fault, each with its meaning.",
        epilog="`eqcheck explain KIND` explains one",
    )
    kinds.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    say(table([[kind.fingerprint, kind.meaning] for kind in KINDS.values()], ["kind", "meaning"], columns()))
    return EQUIVALENT
