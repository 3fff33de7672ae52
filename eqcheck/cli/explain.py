"""``eqcheck explain``: what a kind of fault means, with an example, its usual root causes, and how to mend it."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from eqcheck.cli.common import say
from eqcheck.contract.errors import EQUIVALENT, UsageError, did_you_mean
from eqcheck.contract.kinds import FINGERPRINTS, KINDS, Kind
from eqcheck.explanation.terminal import columns

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
    """The handbook's entry for a kind, in lines of at most ``width`` characters; links are not broken."""
    from eqcheck.explanation.handbook import about

    said = about(kind.fingerprint)
    lines = [*_wrapped(f"{kind.fingerprint}: {kind.meaning}", width, "", "  "), "", "Example"]
    lines += [*_wrapped(said.example, width, "  "), "", "Usual root causes"]
    for cause in said.causes:
        lines += _wrapped(cause.what, width, "  - ", "    ")
        lines += [f"    {url}" for url in cause.urls]
    return "\n".join([*lines, "", "How to fix it", *_wrapped(said.fix, width, "  ")])


def _wrapped(text: str, width: int, first: str, later: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 30),
        initial_indent=first,
        subsequent_indent=first if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )
