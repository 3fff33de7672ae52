"""``eqcheck checkpoint``: list the built checkpoints, or write one for an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, say
from eqcheck.contract.errors import EQUIVALENT, UsageError
from eqcheck.core.explanation.layout import columns, table

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="list the built checkpoints, or write one for an engine",
        description="Small Hugging Face folders whose weights compute a known next-token function, with a margin that "
        "bfloat16 rounding cannot cross.",
        epilog=examples("eqcheck checkpoint list", "eqcheck checkpoint write full target --draft draft"),
    )
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the names and architectures", description="List the checkpoints.")
    listing.set_defaults(run=_list)
    write = actions.add_parser(
        "write",
        help="write a target, and a draft if wanted, as Hugging Face folders",
        description="Write a target, and a draft if wanted, as Hugging Face folders.",
    )
    write.add_argument("name", metavar="NAME", help="name from `eqcheck checkpoint list`")
    write.add_argument("folder", metavar="FOLDER", type=Path, help="new or empty folder for the target")
    write.add_argument("--draft", metavar="FOLDER", type=Path, help="folder for a draft of the same architecture")
    write.add_argument(
        "--agreement", metavar="SHARE", type=float, help="share of contexts in which the draft is right (default 0.6)"
    )
    write.add_argument(
        "--dtype", default="float32", help="dtype of the weights: float32 (default), bfloat16 or float16"
    )
    write.set_defaults(run=_write)


def _list(options: argparse.Namespace) -> int:
    from eqcheck.engines.construction.layouts import LAYOUTS

    say(table([[name, layout.about] for name, layout in LAYOUTS.items()], ["name", "architecture"], columns()))
    return EQUIVALENT


def _write(options: argparse.Namespace) -> int:
    from eqcheck.engines.construction.folder import built

    if options.agreement is not None and options.draft is None:
        raise UsageError(
            "--agreement: expected together with --draft FOLDER, got it alone; it is the draft's agreement"
        )
    target = built(options.name)
    pairs = [("target", target, options.folder)]
    if options.draft is not None:
        agreement = 0.6 if options.agreement is None else options.agreement
        pairs.append(("draft", target.draft(agreement), options.draft))
    for role, checkpoint, folder in pairs:
        checkpoint.save(folder, options.dtype)
        say(f"{role}: {folder}")
    return EQUIVALENT
