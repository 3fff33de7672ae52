"""``eqcheck report``: show a stored report, as text and as a page; or compare two audits."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, say
from eqcheck.contract.errors import EQUIVALENT, USAGE, VIOLATION, UsageError, printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands
    from eqcheck.report.schema import Report

_PORT = 8008


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    report = commands.add_parser(
        "report",
        help="show a stored report, or compare two audits",
        description="With one folder, print its reports and open the HTML page if there is a display. With two, "
        "compare the audits; exit code 1 if a violation is new.",
        epilog=examples(
            "eqcheck report reports/bsp",
            "eqcheck report reports --serve",
            "eqcheck report reports.before reports",
            codes=True,
        ),
    )
    report.add_argument(
        "folder", type=Path, metavar="DIR", help="the --out folder of an audit, or one decoder's folder in it"
    )
    report.add_argument("later", type=Path, nargs="?", metavar="DIR2", help="the same of a later audit, to compare")
    report.add_argument("--html", type=Path, metavar="FILE", help="write the page here, and do not open it")
    report.add_argument(
        "--serve",
        type=_port,
        nargs="?",
        const=_PORT,
        metavar="PORT",
        help=f"serve the page on localhost until Ctrl-C (default port {_PORT})",
    )
    report.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.later:
        return _compared(options)
    reports, code = _reports(options.folder)
    from eqcheck.report.page import to_html
    from eqcheck.report.terminal import summary  # which takes longer to import than a wrong folder to be told

    say(printable(summary(list(reports.values()), [str(folder) for folder in reports])))
    if options.serve is not None:
        _serve(to_html(*reports.values()), options.serve)
    elif options.html or _display():
        file = options.html or (options.folder if options.folder.is_dir() else options.folder.parent) / "report.html"
        _written(file, to_html(*reports.values()))
        if not options.html:
            _open(file)
    elif not any((folder / "report.html").is_file() for folder in reports):
        say("\npage: none; write one with --html FILE")
    return code


def _compared(options: argparse.Namespace) -> int:
    before, code = _reports(options.folder)
    now, later = _reports(options.later)
    from eqcheck.report.compare import compare, to_text
    from eqcheck.report.page import compared_to_html

    pairs = _pairs(list(before.values()), list(now.values()))
    comparisons = [compare(*pair) for pair in pairs]
    say(printable(to_text(comparisons)))
    if options.serve is not None:
        _serve(compared_to_html(comparisons), options.serve)
    elif options.html:
        _written(options.html, compared_to_html(comparisons))
    if code or later:
        return code or later
    return VIOLATION if any(one.worse for one in comparisons) else EQUIVALENT


def _pairs(before: Sequence[Report], now: Sequence[Report]) -> list[tuple[Report, Report]]:
    """The reports that belong together: those of one name, or the only two."""
    if len(before) == len(now) == 1:
        return [(before[0], now[0])]
    names = {report.decoder.name: report for report in before}
    pairs = [(names[report.decoder.name], report) for report in now if report.decoder.name in names]
    if not pairs:
        first, second = (", ".join(sorted(report.decoder.name for report in side)) for side in (before, now))
        raise UsageError(
            f"expected a decoder that is in both folders, got {first} in the first and {second} in the second"
        )
    alone = {report.decoder.name for report in (*before, *now)} - {now.decoder.name for _, now in pairs}
    if alone:
        print(
            printable(f"eqcheck: only in one of the folders, not compared: {', '.join(sorted(alone))}"), file=sys.stderr
        )
    return pairs


def _reports(folder: Path) -> tuple[dict[Path, Report], int]:
    """The reports of a folder by the folders that they lie in, and an exit code: some may be unreadable.

    Raises `UsageError` where none can be read.
    """
    from eqcheck.report import load

    if folder.is_file() or (folder / "report.json").is_file():
        return {folder if folder.is_dir() else folder.parent: load(folder)}, EQUIVALENT
    files = sorted(folder.glob("*/report.json"))
    if not files:
        what = "has no report.json, and no folder in it has one" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"report {folder}: {what}; write one with: eqcheck audit --out DIR")
    reports: dict[Path, Report] = {}
    errors: list[UsageError] = []
    for file in files:
        try:
            reports[file.parent] = load(file)
        except UsageError as error:
            errors.append(error)
    if not reports:
        raise errors[0]
    for unread in errors:
        print(f"eqcheck: {printable(str(unread))}", file=sys.stderr)
    return reports, USAGE if errors else EQUIVALENT


def _display() -> bool:
    """Return whether a browser can be opened for whoever reads the output."""
    shown = sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and shown


def _written(file: Path, text: str) -> None:
    from eqcheck.core.store.casefile import write_whole

    try:
        write_whole(file, text)
    except OSError as error:
        raise UsageError(
            f"{file}: cannot write the page: {error.strerror or error}; name another --html FILE"
        ) from error
    say(printable(f"\npage: {file}"))


def _open(file: Path) -> None:
    import webbrowser

    webbrowser.open(file.resolve().as_uri())


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text[:40]!r}")
    return int(text)


def _serve(text: str, port: int) -> None:
    """Serve the page and nothing else on 127.0.0.1 until Ctrl-C; port 0 takes one that is free."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    content = text.encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content) if known else 0))
            self.end_headers()
            self.wfile.write(content if known else b"")

        def log_message(self, *_: object) -> None:
            """Say nothing for each request."""

    try:
        server = HTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise UsageError(
            f"--serve {port}: {error.strerror or error}; name another port, or 0 for a free one"
        ) from error
    with server:
        say(f"\npage: http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
