"""``eqcheck new``: write a first adapter, and a workflow for GitHub."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, say
from eqcheck.contract.errors import EQUIVALENT, UsageError
from eqcheck.contract.escaping import printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands

_WORKFLOW = Path(".github/workflows/eqcheck.yml")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_PATH = re.compile(r"[\w/.-]+")  # goes into a command line of the workflow
_IN_THE_WAY = ("eqcheck", "torch", "transformers", "pytest", "numpy")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    new = commands.add_parser(
        "new",
        help="write a first adapter, and a CI workflow if wanted",
        description="Write an adapter that works, for you to change. On a terminal, without options, it asks for the "
        "name and the workflow. It overwrites nothing.",
        epilog=examples("eqcheck new engine.py", "eqcheck new engine.py --name mine --ci"),
    )
    new.add_argument("file", type=Path, metavar="FILE", help="the adapter to write, such as engine.py")
    new.add_argument("--name", metavar="NAME", help="the decoder's name in reports (default: FILE without .py)")
    new.add_argument("--ci", action="store_true", help=f"also write {_WORKFLOW}")
    new.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.cli.scaffold import ADAPTER, REPOSITORY, WORKFLOW

    file: Path = options.file
    _check(file)
    name, ci = options.name or file.stem, options.ci
    if sys.stdin.isatty() and sys.stderr.isatty() and not (options.name or ci):
        name, wanted = _asked("Name of the decoder", name), _asked("A workflow for GitHub, too? y/n", "n").lower()
        if wanted not in ("y", "yes", "n", "no"):
            raise UsageError(f"workflow for GitHub: expected y or n, got {wanted!r}; nothing was written")
        ci = wanted in ("y", "yes")
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name: expected letters, digits, '-' and '_', got {name!r}")
    if ci and (file.is_absolute() or ".." in file.parts or not _PATH.fullmatch(file.as_posix())):
        raise UsageError(
            f"--ci: expected FILE below this folder, its path of letters, digits and . - _ /, got {str(file)!r}"
        )
    if ci and _WORKFLOW.exists():
        raise UsageError(f"{_WORKFLOW} exists and is not overwritten; leave out --ci, or remove the file")
    word = shlex.quote(file.as_posix())
    _write(file, ADAPTER.substitute(name=name, file=word))
    if ci:
        _WORKFLOW.parent.mkdir(parents=True, exist_ok=True)
        _write(_WORKFLOW, WORKFLOW.substitute(file=word, repository=REPOSITORY))
    lines = [f"wrote {file}: a decoder that is right; replace its call with one of your engine"]
    lines += [f"wrote {_WORKFLOW}: it installs eqcheck from {REPOSITORY}; add what your engine needs"] if ci else []
    say(printable("\n".join([*lines, f"next: eqcheck audit {word} --profile ci"])))
    return EQUIVALENT


def _check(file: Path) -> None:
    """Raise `UsageError` if the adapter cannot be written, or could not be used."""
    if file.suffix != ".py" or not str(file).isprintable() or any(mark in str(file) for mark in '"\\$'):
        raise UsageError(f"FILE: expected a Python file such as engine.py, got {str(file)!r}")
    if file.stem in (*_IN_THE_WAY, *sys.stdlib_module_names) or keyword.iskeyword(file.stem):
        raise UsageError(f"FILE: {file.name} would hide the module {file.stem!r}; choose another name")
    if not file.parent.is_dir():
        raise UsageError(f"FILE: there is no folder {str(file.parent)!r}")
    if file.exists() or file.is_symlink():
        raise UsageError(f"{file} exists and is not overwritten; name another file")


def _asked(question: str, usual: str) -> str:
    """Ask a question on the terminal; an empty answer means ``usual``."""
    print(f"{question} [{usual}]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() or usual


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:  # also where somebody else writes it just now
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
