"""``eqcheck history``: audit an adapter against several versions of its engine."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.arguments import natural, positive
from eqcheck.cli.common import say, writable
from eqcheck.contract.errors import EQUIVALENT, NOTHING, UsageError
from eqcheck.contract.escaping import printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands

_EPILOG = (
    "exit codes: 0 at least one version was audited, 2 interrupted (what is audited is kept), 3 internal error, "
    "4 usage, 5 no version was audited"
)
_ABOUT = (
    "Audit an adapter against several versions of a package, each in a temporary environment on top of the one that is "
    "there, and tell in which version a cause appeared or vanished. Only wheels are installed; what is installed is "
    "said before. Torch stays the one that is there. Versions that were audited before are not audited again."
)
_BY_TOKENS = (
    "only decode under each version, on a tiny Llama, and judge by tokens alone: for versions under which eqcheck "
    "itself does not run; engines are always audited so"
)


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    history = commands.add_parser(
        "history",
        help="audit an adapter against versions of its engine",
        description=_ABOUT,
        epilog=_EPILOG,
    )
    history.add_argument("versions", nargs="+", metavar="VERSION", help="released versions of the package")
    history.add_argument("--adapter", required=True, metavar="SPEC", help="as for audit")
    history.add_argument("--package", metavar="NAME", help="the package that has the versions (named as the adapter)")
    history.add_argument("--by-tokens", action="store_true", help=_BY_TOKENS)
    history.add_argument("--cases", type=positive, default=200, metavar="N", help="cases per version and lane (200)")
    history.add_argument("--seed", type=natural, default=0, metavar="N", help="same seed, same cases (0)")
    history.add_argument(
        "--out",
        type=Path,
        default=Path("reports/history"),
        metavar="DIR",
        help="where the table goes, and a folder per version (reports/history)",
    )
    history.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.contract import registry
    from eqcheck.history.auditing import AUDITED, PENDING, Release, Trial, columns
    from eqcheck.history.environments import package, versions
    from eqcheck.history.table import history, to_markdown, write
    from eqcheck.workers.interpreter import environment

    decoder = registry.load(options.adapter)
    named = package(options.package or decoder.name)
    wanted = versions(options.versions)
    if not decoder.name or "/" in decoder.name or decoder.name.startswith("."):
        raise UsageError(f"adapter name {decoder.name!r} cannot name a folder; use letters, digits, '-' and '_'")
    by_tokens = options.by_tokens or decoder.checkpoints
    base = environment(decoder, None)
    asked = Trial(options.adapter, decoder.name, named, options.cases, options.seed, by_tokens)
    writable(options.out, decoder.name)
    folder = options.out / decoder.name
    audited: list[Release] = []

    def keep() -> None:
        """Write what there is; versions still to come are in it."""
        waiting = [Release(version, PENDING) for version in wanted[len(audited) :]]
        write(history(asked, audited + waiting), folder)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the environment is removed then, too
    try:
        for column in columns(asked, base, wanted, folder, lambda text: print(printable(text), file=sys.stderr)):
            audited.append(column)
            keep()
    finally:
        signal.signal(signal.SIGTERM, before)
    text = to_markdown(history(asked, audited))
    say(printable(f"{text}\nWritten to {folder}/history.md and history.json"))
    return EQUIVALENT if any(column.status == AUDITED for column in audited) else NOTHING
