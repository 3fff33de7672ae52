"""Share between commands: help that keeps its lines, exit codes in words, clean output, checks of folders."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from eqcheck.contract.decoders import FAMILIES
from eqcheck.contract.errors import INTERNAL, UsageError, did_you_mean
from eqcheck.contract.profiles import (
    MOST_DRAFT_TOKENS,
    MOST_ROWS,
    MOST_TOKENS_OF_ROW,
    SERVED,
    TIMEOUTS,
    WIDE,
    Bounds,
)

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


EPILOG = (
    "exit codes: 0 equivalent, 1 violation, 2 inconclusive or interrupted, 3 self-check failed or internal error, "
    "4 usage error, 5 nothing was tested"
)


_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")
"""Variables that keep transformers ("Loading weights") and engines from drawing bars of their own over our line."""


own_process = False
"""Whether this process is the command and nothing else, so that no decoder was called in it before."""


def examples(*lines: str, codes: bool = False) -> str:
    """Return the end of a command's help: example commands, a line each, and the exit codes if wanted.

    >>> print(examples("eqcheck list"))
    examples:
      eqcheck list
    """
    shown = "\n".join(["examples:", *(f"  {line}" for line in lines)])
    return f"{shown}\n\n{EPILOG}" if codes else shown


class LinedHelp(argparse.HelpFormatter):
    """Wrap each line of a description or epilog separately, so that examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for line in text.splitlines():
            lead = indent + " " * (len(line) - len(line.lstrip()))
            hang = lead and lead + "  "  # a long example goes on further to the right
            filled.append(
                textwrap.fill(line.strip(), width, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=False)
            )
        return "\n".join(filled)


def import_models() -> None:
    """Import torch and transformers, which is most of the run time of a short command."""
    if "transformers.generation.utils" in sys.modules:
        return
    for name in _BARS:  # also for the processes in which decoders run
        os.environ.setdefault(name, "1")
    gc.disable()  # their many objects last, and the collector would walk them over and over: a sixth of the time
    try:
        import transformers.generation.utils  # noqa: F401

        import eqcheck.transparent.hashlm.model  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()


def say(text: str) -> None:
    """Print a result; fall back to standard error if standard output cannot be written, as on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails again when it ends
        print(f"eqcheck: standard output: {error.strerror}\n{text}", file=sys.stderr)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, also for code below Python."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def broken(failures: list[str]) -> int:
    """Print that the checker itself failed, so that nobody trusts its verdicts; return the exit code."""
    print("eqcheck: the self-check failed; this says nothing about any decoder", file=sys.stderr)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return INTERNAL


def junit_writable(path: Path | None) -> None:
    """Raise `UsageError` if the JUnit file cannot be written."""
    if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UsageError(f"--junit {path}: cannot write there: expected a file in a folder that exists")


def writable(out: Path, name: str) -> None:
    """Make the folder ``out/name``; raise `UsageError` if that fails."""
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write there: {error}") from error


# Parse the values of command-line options; each error says in one line what was expected and what came.


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer from 1 to {most}, got {text!r}")
        return int(text)

    return number


_BOUNDS = {
    "rows": ("rows per batch", MOST_ROWS),
    "prompt": ("tokens per prompt", MOST_TOKENS_OF_ROW - 1),
    "new_tokens": ("max_new_tokens", MOST_TOKENS_OF_ROW - 1),
    "draft_tokens": ("draft tokens per round (K)", MOST_DRAFT_TOKENS),
}


def add_bounds(parser: argparse._ActionsContainer) -> None:
    """Add the options ``--max-rows`` and so on, which bound the size of cases."""
    for name, (what, most) in _BOUNDS.items():
        usual = f"{getattr(WIDE, name)}; engines {getattr(SERVED, name)}"
        option = f"--max-{name.replace('_', '-')}"
        parser.add_argument(option, type=_up_to(most), metavar="N", help=f"{what}, at most (default {usual})")


def bounded(options: argparse.Namespace) -> tuple[str, ...]:
    """List the bounds that were given."""
    return tuple(name for name in _BOUNDS if getattr(options, f"max_{name}") is not None)


def bounds_of(options: argparse.Namespace) -> Bounds:
    """Return the bounds on the size of cases."""
    return replace(WIDE, **{name: getattr(options, f"max_{name}") for name in bounded(options)})


def seconds(text: str) -> float:
    """Parse a time in seconds, minutes or hours."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"expected a time such as 90, 60s or 5m, got {text!r}")
    return value


def share(text: str) -> float:
    """Parse a share in percent.

    >>> share("2.5%")
    0.025
    """
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 1% or 0.5%, got {text!r}")
    return value


def case_seconds(text: str) -> float:
    """Parse the time limit of a case."""
    found = seconds(text)
    if not TIMEOUTS[0] <= found <= TIMEOUTS[1]:
        raise argparse.ArgumentTypeError(f"expected a time of 1s to 24h, got {text!r}")
    return found


def families(text: str) -> tuple[str, ...]:
    """Parse names of families, or ``all``."""
    names = tuple(dict.fromkeys(text.split(",")))
    if "all" in names:
        return FAMILIES
    for name in names:
        if name not in FAMILIES:
            raise argparse.ArgumentTypeError(
                f"unknown family {name!r}{did_you_mean(name, FAMILIES) or '.'} Known: all, {', '.join(FAMILIES)}"
            )
    return names
