"""``eqcheck explain``: what a kind of fault means, with an example, its usual root causes, and how to mend it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.contract.errors import EQUIVALENT, UsageError, did_you_mean
from eqcheck.contract.kinds import FINGERPRINTS, KINDS, Kind
from eqcheck.explanation.layout import columns, filled

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands

_WIDEST = 100  # longer lines are hard to read


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    explain = commands.add_parser(
        "explain",
        help="explain a kind of fault: an example, its usual root causes, how to fix it",
        epilog="example: eqcheck explain position/query-position",
    )
    explain.add_argument(
        "kind", metavar="COMPONENT/KIND", help="as a report or `eqcheck kinds` names it; KIND alone is enough"
    )
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    width = min(columns(), _WIDEST)
    say(explained(kind_named(options.kind), width))
    return EQUIVALENT


def kind_named(text: str) -> Kind:
    """The kind of a fingerprint, or of its last part; what a report adds behind a colon does not matter.

    >>> kind_named("crash/exception:KeyError").name, kind_named("window").component
    ('exception', 'mask')
    """
    named = text.partition(":")[0]
    kind = KINDS.get(named.rpartition("/")[2])
    if kind is None or named not in (kind.name, kind.fingerprint):
        near = did_you_mean(kind.fingerprint if kind else named, [*FINGERPRINTS, *KINDS]) or "."
        raise UsageError(f"there is no kind {text!r}{near} `eqcheck kinds` lists them all")
    return kind


def explained(kind: Kind, width: int = _WIDEST) -> str:
    """All that is known of a kind, in lines of at most ``width`` characters; links are not broken."""
    from eqcheck.explanation.handbook import about

    chapter, width = about(kind.fingerprint), max(width, 30)
    lines = [filled(f"{kind.fingerprint}: {kind.meaning}", width, 2), "", "Example"]
    lines += [filled(f"  {chapter.example}", width, 2), "", "Usual root causes"]
    for cause in chapter.causes:
        lines += [filled(f"  - {cause.what}", width, 4), *(f"    {url}" for url in cause.urls)]
    return "\n".join([*lines, "", "How to fix it", filled(f"  {chapter.fix}", width, 2)])
