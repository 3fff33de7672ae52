"""``eqcheck gate``: compare a server that speculates with a plain server of the same model."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqcheck.cli.common import junit_writable, positive, say, seconds, writable
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, VIOLATION, UsageError, printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands
    from eqcheck.gate.comparison import Gate
    from eqcheck.gate.servers import StoredAnswers

_CODES = {"equivalent": EQUIVALENT, "violation": VIOLATION, "inconclusive": INCONCLUSIVE}


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    gate = commands.add_parser(
        "gate",
        help="compare a server that speculates with a plain server of the same model",
        description="Send the same prompts to a server with speculation and to one without, and fail if their outputs "
        "differ by more than rounding explains. Both serve the OpenAI completions API. The API key is read from "
        "EQCHECK_API_KEY.",
    )
    gate.add_argument(
        "--speculative",
        metavar="URL",
        required=True,
        help="the server with speculation, such as http://a:8000/v1; or a decoder, such as mine.py",
    )
    gate.add_argument(
        "--plain",
        metavar="URL",
        required=True,
        help="a server of the same model without speculation; for a decoder hf:FOLDER, the folder of the model",
    )
    gate.add_argument(
        "--draft",
        metavar="URL",
        help="a server of the draft model (optional; finds wrong sampling about four times sooner and names more "
        "causes); for a decoder the folder of the draft model (required)",
    )
    gate.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help='one prompt per line, or JSON lines {"prompt": text or token ids}; default: drawn prompts',
    )
    gate.add_argument(
        "--requests",
        metavar="N",
        type=positive,
        default=256,
        help="number of requests; doubled while the evidence is in doubt (default 256)",
    )
    gate.add_argument(
        "--max-tokens",
        metavar="N",
        type=positive,
        default=64,
        help="largest max_tokens of a request; each draws N/2 to N (default 64)",
    )
    gate.add_argument(
        "--concurrency",
        metavar="N,N",
        default="1,4,16",
        help="numbers of concurrent requests, used in turn (default 1,4,16)",
    )
    gate.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=0.0,
        help="sample three of four requests at this temperature, 0 to 2 (default 0: all greedy)",
    )
    gate.add_argument("--seed", metavar="N", type=int, default=0, help="seed of prompts, limits and sampling")
    gate.add_argument(
        "--budget", metavar="TIME", type=seconds, help="start no more requests after this time, such as 60s or 10m"
    )
    gate.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="write gate.json, gate.html and a script that reproduces a violation; rerun with the same DIR to continue "
        "an interrupted gate",
    )
    gate.add_argument("--baseline", metavar="FILE", type=Path, help="compare with the gate.json of an earlier gate")
    gate.add_argument("--redact", action="store_true", help="leave prompts out of the report")
    gate.add_argument("--junit", metavar="FILE", type=Path, help="write the verdict as JUnit XML")
    gate.add_argument("--json", action="store_true", help="print the report as JSON")
    gate.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run a gate and return the exit code."""
    from eqcheck.gate.compared_rows import drawn, read
    from eqcheck.gate.comparison import Gate, Settings
    from eqcheck.gate.gate_report import built, checks_of, earlier
    from eqcheck.gate.sentences import beside, progress, text_of

    settings = Settings(
        options.requests,
        options.max_tokens,
        _concurrency(options.concurrency),
        _temperature(options.temperature),
        options.seed,
        options.budget,
    )
    prompts = read(options.prompts) if options.prompts else drawn(settings.requests, settings.seed)
    before = earlier(options.baseline) if options.baseline else None
    named = [url.rstrip("/") for url in (options.speculative, options.plain, options.draft or "")]
    if twice := next((url for url in named if url.startswith("http") and named.count(url) > 1), None):
        raise UsageError(f"--speculative, --plain, --draft: expected different servers, got {printable(twice)} twice")
    if options.out is not None:
        writable(options.out, "")
    junit_writable(options.junit)
    servers, began = _sides(options), time.monotonic()
    speculative, plain, draft = servers
    if draft is None and options.draft:
        print("gate: only the decoder uses --draft: it has another vocabulary or does not load alone", file=sys.stderr)

    def tell(gate: Gate) -> None:
        print(f"gate: {progress(gate)}", file=sys.stderr)

    gate = Gate(speculative, plain, prompts, settings, draft, tell)
    stored = _stored(options, servers)
    try:
        gate.run()
        report = built(gate, options.redact)
        if stored is not None:
            _keep(stored, more=gate.interrupted or (report["lacking"] and gate.speculates is not False))
    finally:
        for each in filter(None, (*servers, stored)):
            each.close()
    if not gate.rows:
        return NOTHING
    if options.out is not None:
        _write_report(options.out, gate, report)
    if options.junit is not None:
        from eqcheck.report.checks import as_xml

        _write(options.junit, as_xml([("gate", checks_of(report), time.monotonic() - began)]))
    say(
        json.dumps(report)
        if options.json
        else printable(text_of(report, printable(str(options.out or ""))) + (beside(report, before) if before else ""))
    )
    return _CODES[report["verdict"]]


def _write_report(out: Path, gate: Gate, report: dict[str, Any]) -> None:
    """Write the report as JSON and as a page, and a script for each violation that has one."""
    from eqcheck.gate.gate_report import page_of

    gaps = {
        "plain": [row.gap for row in gate.control],
        "speculative": [row.gap for row in gate.rows if not row.asked.temperature],
    }
    _write(out / "gate.json", json.dumps(report, indent=1) + "\n")
    _write(out / "gate.html", page_of(report, gaps, str(out)))
    for violation in report["violations"]:
        if shown := violation.get("smallest", violation).get("script"):
            _write(out / f"{violation['kind']}.py", shown)


def _sides(options: argparse.Namespace) -> list[Any]:
    """Return the speculative side, the plain one, and the draft or None: servers, or all of them in this process."""
    from eqcheck.gate.servers import Server

    if not options.plain.startswith("hf:"):
        urls = {role: getattr(options, role) for role in ("speculative", "plain", "draft")}
        return [url and Server(url, role) for role, url in urls.items()]
    from eqcheck.contract.registry import load
    from eqcheck.gate.process import sides

    if options.draft is None:
        raise UsageError("--draft: expected the folder of the draft model (a decoder gets both models)")
    folders = (Path(folder.removeprefix("hf:")) for folder in (options.plain, options.draft))
    return sides(load(options.speculative), *folders)


def _stored(options: argparse.Namespace, servers: list[Any]) -> StoredAnswers | None:
    """Return the stored answers of a gate that may continue. They hold prompts, so there are none with --redact."""
    if options.out is None or options.redact or options.plain.startswith("hf:"):
        return None
    from eqcheck.gate.servers import StoredAnswers

    stored = StoredAnswers(options.out)
    if stored.count:
        known = f"{stored.count} answers of an earlier gate in {printable(str(stored.path))}"
        print(f"gate: continues from {known}; remove the file if a server has changed", file=sys.stderr)
    for server in filter(None, servers):
        server.stored = stored
    return stored


def _keep(stored: StoredAnswers, *, more: bool) -> None:
    """Keep the answers if a gate with more requests can continue from them."""
    if not more:
        stored.finish()
    else:
        print(f"gate: a gate with more --requests continues from {printable(str(stored.path))}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    """Write a file at once: a reader sees the old one or the new one."""
    temporary = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _temperature(value: float) -> float:
    if not 0 <= value <= 2:
        raise UsageError(f"--temperature: expected 0 to 2, got {value}")
    return value


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or any(not 1 <= number <= 512 for number in numbers):
        raise UsageError(f"--concurrency: expected numbers from 1 to 512, such as 1,4,16, got {text!r:.80}")
    return numbers
