"""Share between commands: help that keeps its lines, exit codes in words, clean output, checks of folders."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from eqcheck.contract.errors import INTERNAL, UsageError

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

        import eqcheck.hashlm.model  # noqa: F401
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
