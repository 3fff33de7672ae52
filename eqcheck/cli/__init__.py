"""Run the command ``eqcheck``; each of its commands is a module that adds itself to the parser and runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from eqcheck import __version__
from eqcheck.cli import audit, checkpoint, common, explain, gate, kinds, listing, new, replay, report, selfcheck
from eqcheck.cli import shell_completion as completion
from eqcheck.cli.common import LinedHelp, examples
from eqcheck.cli.plan import configured
from eqcheck.contract.errors import INCONCLUSIVE, INTERNAL, USAGE, UsageError, did_you_mean, printable
from eqcheck.contract.extras import EXTRAS, missing

COMMANDS = (new, audit, gate, replay, report, kinds, explain, listing, checkpoint, selfcheck)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; as a program, exit with it even if a decoder left threads running."""
    common.own_process = argv is None
    code = _run(argv)
    if argv is None and any(not one.daemon and one is not threading.main_thread() for one in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        options = _parsed(_parser(), argv)
        code: int = options.run(options)
        return code
    except (UsageError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in EXTRAS:
            return _internal()
        told = error if isinstance(error, UsageError) else missing(str(error.name))
        print(f"eqcheck: {printable(str(told))}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("eqcheck: interrupted", file=sys.stderr)
        return INCONCLUSIVE
    except BrokenPipeError:
        return INCONCLUSIVE
    except Exception:
        return _internal()


def _internal() -> int:
    traceback.print_exc()
    print("eqcheck: internal error; this says nothing about the decoder", file=sys.stderr)
    return INTERNAL


class _Parser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        super().__init__(**{"formatter_class": LinedHelp, **how})

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; see `{self.prog} --help`")


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options; SPECs may stand anywhere among them, although argparse takes only their first group."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _read(parser, words)
    if options.run is audit.run and (more := configured(options)):
        words[1:1] = more
        try:
            options = _read(parser, words)
        except UsageError as error:
            raise UsageError(f"[tool.eqcheck] of pyproject.toml: {error}") from None
    options.words = words
    return options


def _read(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    options, rest = parser.parse_known_args(words)
    if rest and (not hasattr(options, "specs") or any(word.startswith("-") for word in rest)):
        known = [name for action in completion.actions(parser) for name in action.option_strings]
        wrong = next((word for word in rest if word.startswith("-")), rest[0])
        near = f"; {wrong} is an option of another command;" if wrong in known else did_you_mean(wrong, known)
        raise UsageError(f"unrecognized arguments: {' '.join(rest)}{near or ';'} see `{parser.prog} {words[0]} --help`")
    if rest:
        options.specs = [*options.specs, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="eqcheck",
        description="Check that a batch speculative decoder returns exactly what its target model generates alone.",
        epilog=examples(
            "eqcheck audit                  audit the shipped decoders",
            "eqcheck audit mine.py          audit your decoder",
            "eqcheck explain mask/window    explain a kind of fault",
            codes=True,
        ),
    )
    parser.add_argument("--version", action="version", version=f"eqcheck {__version__}")
    completion.add(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
