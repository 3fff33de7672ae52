"""``eqcheck explain``: print what a kind of fault is, its usual causes, how to tell it and how to fix it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, say
from eqcheck.contract.errors import EQUIVALENT, UsageError, did_you_mean
from eqcheck.contract.kinds import FINGERPRINTS, KINDS, Kind
from eqcheck.core.explanation.layout import columns, filled

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands

_WIDEST = 100  # longer lines are hard to read


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    explain = commands.add_parser(
        "explain",
        help="explain a kind of fault, its causes and its fix",
        description="Explain a kind of fault: what happens, usual causes, how to tell it, how to fix it.",
        epilog=examples("eqcheck explain position/query-position", "eqcheck explain stale-entry"),
    )
    explain.add_argument(
        "kind", metavar="COMPONENT/KIND", help="the kind as in a report or in `eqcheck kinds`; KIND alone is enough"
    )
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    width = min(columns(), _WIDEST)
    say(explained(kind_named(options.kind), width))
    return EQUIVALENT


def kind_named(text: str) -> Kind:
    """Return the kind with this fingerprint, or with this last part of one; a part after a colon is ignored.

    >>> kind_named("crash/exception:KeyError").name, kind_named("window").component
    ('exception', 'mask')
    """
    named = text.partition(":")[0]
    kind = KINDS.get(named.rpartition("/")[2])
    if kind is None or named not in (kind.name, kind.fingerprint):
        near = did_you_mean(kind.fingerprint if kind else named, [*FINGERPRINTS, *KINDS]) or "."
        raise UsageError(f"there is no kind {text!r}{near} See `eqcheck kinds`")
    return kind


def explained(kind: Kind, width: int = _WIDEST) -> str:
    """Format the handbook's chapter of a kind in lines of at most ``width`` characters; links are not broken."""
    from eqcheck.core.explanation.handbook import about

    chapter, width = about(kind.fingerprint), max(width, 30)
    lines = [filled(f"{kind.fingerprint}: {kind.meaning}", width, 2), "", "What happens"]
    lines += [filled(f"  {chapter.what}", width, 2)]
    if chapter.sample:
        lines += ["", *(f"    {line}" for line in chapter.sample.splitlines())]
    lines += ["", "Usual causes"]
    for cause in chapter.causes:
        lines += [filled(f"  - {cause.what}", width, 4), *(f"    {url}" for url in cause.urls)]
    lines += ["", "How to tell", filled(f"  {chapter.signs}", width, 2)]
    return "\n".join([*lines, "", "How to fix it", filled(f"  {chapter.fix}", width, 2)])
