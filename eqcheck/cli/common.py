"""Parts of several commands: the exit codes in words, output that never mixes, folders that can be written."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from eqcheck.contract.errors import INTERNAL, UsageError

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EPILOG = (
    "exit codes: 0 equivalent, 1 violation, 2 inconclusive or interrupted, 3 self-check failed or internal error, "
    "4 usage, 5 nothing was tested"
)


_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")
"""Variables that keep transformers ("Loading weights") and engines from drawing bars of their own over our line."""


own_process = False
"""Whether this process is the command and nothing else, so that no decoder was called in it before."""


def import_models() -> None:
    """Import torch and transformers, which takes most of the time of a short command."""
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
    """Print what a command found; on standard error where standard output is a file on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails again when it ends
        print(f"eqcheck: standard output: {error.strerror}\n{text}", file=sys.stderr)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error whatever is written to standard output, also below Python."""
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
    """Say what is wrong with the checker itself, so that nothing it says of a decoder is taken for true."""
    print("eqcheck: the self-check failed; this says nothing about any decoder", file=sys.stderr)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return INTERNAL


def junit_writable(path: Path | None) -> None:
    """`UsageError` where the XML for a CI server cannot be written."""
    if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UsageError(f"--junit {path}: cannot write there: expected a file in a folder that exists")


def writable(out: Path, name: str) -> None:
    """Make the folder ``out/name``; `UsageError` when that cannot be done."""
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write there: {error}") from error
