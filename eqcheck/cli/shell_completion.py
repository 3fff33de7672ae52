"""``eqcheck --print-completion SHELL``: print a script that completes commands, options, decoders and kinds."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from eqcheck.contract.extras import missing

SHELLS = ("bash", "zsh", "tcsh")
_SPECS, _KINDS = "_eqcheck_specs_or_files", "_eqcheck_kinds"
_WORD = re.compile(r"[\w./-]+")  # a shell would obey other names, and who installs a decoder chooses its name
# Completions by argument name; a shell that is not listed completes the argument as it always does.
_COMPLETED = {
    "adapter": {"bash": _SPECS, "zsh": _SPECS, "tcsh": "f"},
    "specs": {"bash": _SPECS, "zsh": _SPECS, "tcsh": "f"},
    "kind": {"bash": _KINDS, "zsh": _KINDS},
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the option to the main parser."""
    parser.add_argument("--print-completion", action=_Print, choices=SHELLS, help="print a shell completion script")


class _Print(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        print(script(parser, values[1]))
        parser.exit()


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell; it completes the names of the decoders installed now."""
    try:
        import shtab
    except ImportError as error:
        raise missing("shtab", "--print-completion") from error
    for action in actions(parser):
        if action.dest in _COMPLETED:
            action.complete = _COMPLETED[action.dest]  # type: ignore[attr-defined]
        elif getattr(action.type, "__name__", "") == "Path":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell, preamble=_preamble().get(shell, "")))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)


def _preamble() -> dict[str, str]:
    from eqcheck.contract import registry
    from eqcheck.contract.kinds import FINGERPRINTS

    specs, kinds = (" ".join(filter(_WORD.fullmatch, words)) for words in (registry.names(), FINGERPRINTS))
    return {
        "bash": f'{_SPECS}() {{\n  compgen -W "{specs}" -- "$1"\n  compgen -f -- "$1"\n}}\n'
        f'{_KINDS}() {{\n  compgen -W "{kinds}" -- "$1"\n}}',
        "zsh": f"{_SPECS}() {{\n  compadd -- {specs}\n  _files\n}}\n{_KINDS}() {{\n  compadd -- {kinds}\n}}",
    }
