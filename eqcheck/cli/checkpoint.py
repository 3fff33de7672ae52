"""``eqcheck checkpoint``: the built checkpoints, and their folders for an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.contract.errors import EQUIVALENT, UsageError
from eqcheck.explanation.layout import columns, table

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="list the built checkpoints, or write one for an engine",
        description="Checkpoints whose next token is a known function of the tokens before, exact in bfloat16.",
    )
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the names, and the architecture of each")
    listing.set_defaults(run=_list)
    write = actions.add_parser("write", help="write a target, and a draft if asked, as folders of Hugging Face")
    write.add_argument("name", metavar="NAME", help="a name from `eqcheck checkpoint list`")
    write.add_argument("folder", metavar="FOLDER", type=Path, help="where the target goes: a new or empty folder")
    write.add_argument("--draft", metavar="FOLDER", type=Path, help="where a draft of the same architecture goes")
    write.add_argument(
        "--agreement", metavar="SHARE", type=float, help="of contexts the draft is right in (default 0.6)"
    )
    write.add_argument("--dtype", default="float32", help="of the weights: float32 (default), bfloat16 or float16")
    write.set_defaults(run=_write)


def _list(options: argparse.Namespace) -> int:
    from eqcheck.construction.layouts import LAYOUTS

    say(table([[name, layout.about] for name, layout in LAYOUTS.items()], ["name", "architecture"], columns()))
    return EQUIVALENT


def _write(options: argparse.Namespace) -> int:
    from eqcheck.construction.folder import built

    if options.agreement is not None and options.draft is None:
        raise UsageError("--agreement: it is the draft's; say with --draft FOLDER where the draft goes")
    target = built(options.name)
    pairs = [("target", target, options.folder)]
    if options.draft is not None:
        agreement = 0.6 if options.agreement is None else options.agreement
        pairs.append(("draft", target.draft(agreement), options.draft))
    for role, checkpoint, folder in pairs:
        checkpoint.save(folder, options.dtype)
        say(f"{role}: {folder}")
    return EQUIVALENT
