"""Write an audit's results for machines: JUnit, events, GitHub's log and step summary."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eqcheck.cli.common import say, stdout_to_stderr
from eqcheck.contract.errors import UsageError, one_line, printable

if TYPE_CHECKING:
    from eqcheck.audit.events import Event, Listener
    from eqcheck.cli.plan import Plan
    from eqcheck.contract.decoders import Decoder
    from eqcheck.report.schema import Report


def add(parser: argparse._ActionsContainer) -> None:
    """Add the options to a parser or a group of one."""
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML for a CI server")
    parser.add_argument(
        "--ndjson",
        type=Path,
        metavar="FILE",
        help="write each event as a line of JSON as it happens; '-' is standard output, and nothing else goes there",
    )


@contextlib.contextmanager
def events(plan: Plan, listen: Listener) -> Iterator[Listener]:
    """A listener that also writes events to where ``--ndjson`` says; ``listen`` hears all."""
    from eqcheck.report.ndjson import EventLog

    if plan.ndjson is None:
        yield listen
        return
    with _stream(plan.ndjson) as stream:
        log = EventLog(stream)

        def heard(event: Event) -> None:
            log(event)
            listen(event)

        yield heard
        if log.error:
            where = printable(str(plan.ndjson))
            print(f"eqcheck: --ndjson {where}: {one_line(log.error)}; events are lost", file=sys.stderr)


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[TextIO]:
    """Open where events are written: a file, or standard output, which nothing else is written to meanwhile."""
    try:
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8") if str(path) == "-" else path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--ndjson {path}: cannot write there: {error.strerror or error}") from error
    try:
        with stdout_to_stderr() if str(path) == "-" else contextlib.nullcontext():
            yield stream
    finally:
        with contextlib.suppress(OSError):  # what could not be written was told
            stream.close()


def tell(reports: Sequence[Report], text: str, plan: Plan) -> None:
    """Print the results of an audit, and hand them on; ``text`` is for people, or the one JSON object."""
    from eqcheck.report.build import as_junit
    from eqcheck.report.checks import commands_of, step_summary, untrusted

    mixed = plan.json or str(plan.ndjson) == "-"  # standard output is for a program
    on_github = os.environ.get("GITHUB_ACTIONS") == "true"
    show: Callable[[str], None] = _to_stderr if mixed else say
    if plan.json:
        say(text)
    else:
        show(untrusted(text, secrets.token_hex(16)) if on_github else text)
    if on_github:
        for command in commands_of(reports, plan.allow_known):
            show(command)
        if page := os.environ.get("GITHUB_STEP_SUMMARY"):
            _appended(Path(page), step_summary(reports, plan.allow_known))
    if plan.junit:
        places = {each.name: _place(each) for each in plan.decoders}
        _written(plan.junit, as_junit(reports, plan.allow_known, places))


def _place(decoder: Decoder) -> tuple[str, int]:
    """The file, as a reader in the working directory names it, and the line where a decoder begins; empty for none."""
    try:
        written = inspect.unwrap(decoder.function)
        file, line = inspect.getsourcefile(written) or "", inspect.getsourcelines(written)[1]
    except (OSError, TypeError):
        return "", 0
    if Path(file).is_relative_to(Path(__file__).parents[1]):  # it stands for a decoder in another process
        file = decoder.spec.rpartition(":")[0] or decoder.spec
        return (file, 0) if file.endswith(".py") else ("", 0)
    here = os.path.relpath(file)
    return (file if here.startswith("..") else here), line


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _appended(page: Path, text: str) -> None:
    try:
        with page.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"eqcheck: the step's summary cannot be written: {error.strerror or error}", file=sys.stderr)


def _written(path: Path, text: str) -> None:
    from eqcheck.core.store.casefile import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        print(f"eqcheck: --junit {printable(str(path))}: {error.strerror or error}", file=sys.stderr)
