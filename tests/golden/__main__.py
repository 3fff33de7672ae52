"""``python -m golden [--write] [GROUP ...]``: compare what is decoded and printed with what is stored, or store it."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from speed.first import cpu

from golden import CASES, HERE, NET, ROOT, SHOWN, access, alike, as_json, compared, joined, plain

Entries = Iterator[tuple[str, str]]
OWN = "golden.decoders"
FEW = ("--seed", "1", "--no-corpus", "--out", "out")
AUDITS: dict[str, dict[str, list[str]]] = json.loads((HERE / "audits.json").read_text())
ENGINES = ("openvino_genai", "vllm", "llama_cpp", "mlx_vlm", "mlx_lm")  # whose reports are stored here


class Terminal(io.StringIO):
    """A terminal, as far as a command asks; how wide, COLUMNS says."""

    def isatty(self) -> bool:
        return True


def ran(work: Path, *words: str, command: Callable[..., int] = access.run, errors: bool = False) -> str:
    """The exit code of a command and what it prints in a folder; with ``errors`` also what it says beside that."""
    out, aside = Terminal(), io.StringIO()
    os.chdir(work)
    with redirect_stdout(out), redirect_stderr(aside):
        code = command(*words)
    printed = out.getvalue()
    if "--json" in words:
        printed = as_json(alike(json.loads(printed)))
    said = f"{printed}{aside.getvalue() if errors or code > 2 else ''}"
    return plain(f"exit {code}\n{said}", work)


def audits(group: str, work: Path) -> Entries:
    """What audits print, and their reports as data."""
    for name, words in AUDITS[group].items():
        folder = work / f"{group} {len(list(work.iterdir()))}"
        folder.mkdir()
        text = ran(folder, "audit", *words, *FEW)
        for file in sorted([*folder.glob("out/*/report.json"), *folder.glob("events.ndjson"), *folder.glob("*.xml")]):
            content = file.read_text()
            content = as_json(alike(json.loads(content))) if file.suffix == ".json" else content
            text += f"--- {file.relative_to(folder)}\n{plain(content, folder)}"
        yield name, text


def replays(group: str, work: Path) -> Entries:
    """What stored cases print when they are replayed, and what those of the transparent target show as data."""
    (work / "decoders.py").symlink_to(HERE / "decoders.py")  # for those that a process of another Python runs
    for name, entry in json.loads((CASES / f"{group}.json").read_text()).items():
        case, spec = work / "case.json", entry["adapter"]
        limits = {"case_timeout": entry["timeout"]} if "timeout" in entry else {}
        about = {"format": "eqcheck-violation/1", "adapter": spec, "fingerprint": entry["was"], **limits}
        case.write_text(json.dumps(about | {"case": entry["case"]}))
        named = ["--adapter", spec] if ":" in spec else []
        text = ran(work, "replay", "case.json", *named, *entry.get("words", []))
        if entry["case"]["format"].startswith("eqcheck-case/"):
            text += f"--- as data\n{plain(as_json(alike(access.told(spec, case))), work)}"
        yield name, text


def commands(work: Path) -> Entries:
    """What the small commands print, and how misuse is told."""
    said = [["--help"], ["kinds"], ["list"], *(["explain", one] for one in access.FINGERPRINTS)]
    said += [[one, "--help"] for one in ("audit", "replay", "report", "explain", "kinds", "list", "selfcheck", "new")]
    said += [["explain", "window"], ["explain", "mask/stale-entry"], ["replay", "absent.json"], ["report", "absent"]]
    said += [["audit", "eqspecc"], ["audit", "absent.py"], ["audit", "bsp", "--cases", "0"], ["audit", "--sed", "1"]]
    said += [["new", "engine.py", "--name", "mine", "--ci"], ["new", "engine.py", "--name", "mine"]]
    for words in said:
        yield " ".join(words), ran(work, *words, errors=True)
    yield "the file that `new` writes", (work / "engine.py").read_text()


def reports(work: Path) -> Entries:
    """Stored reports of engines as text and Markdown; pages; two audits compared; a case as a test."""
    (work / "reports").symlink_to(ROOT / "reports")  # or how lines are wrapped depends on where this is
    for name in ENGINES:
        yield f"report {name}", ran(work, "report", f"reports/{name}")
        yield f"{name} as Markdown", plain(access.report_as_markdown(work / "reports" / name), work)
    for name, cases in (("before", "3"), ("now", "6")):
        ran(work, "audit", "bsp", "--cases", cases, "--seed", "1", "--no-corpus", "--out", name)
    yield "report.md of bsp", plain((work / "now" / "bsp" / "report.md").read_text(), work)
    yield "report.html of bsp", plain(_body(work / "now" / "bsp" / "report.html"), work)
    yield "report before now", ran(work, "report", "before", "now", "--html", "compared.html")
    yield "the page of before and now", plain(_body(work / "compared.html"), work)
    yield "report now before", ran(work, "report", "now", "before")
    case = next((work / "now" / "bsp" / "cases").glob("position*.json"))
    case = case.rename(work / "case.json")
    yield "replay --as-test", ran(work, "replay", "case.json", "--as-test")
    yield "replay -v --html", ran(work, "replay", "case.json", "-v", "--html", "calls.html")
    yield "the page of the calls", plain(_body(work / "calls.html"), work)
    yield "replay with a right decoder", ran(work, "replay", "case.json", "--adapter", "eqspec")


def _body(page: Path) -> str:
    """What a page shows: without its style, which says nothing, and its script."""
    return page.read_text().partition("<body>")[2].partition("<script>")[0]


def conformance(work: Path) -> Entries:
    """What pytest prints of the laws for a right adapter and for a wrong one."""

    without = [word for name in ("cacheprovider", "warnings", "xdist") for word in ("-p", f"no:{name}")]

    def tested(*words: str) -> int:
        return int(pytest.main([*words, "-q", "--no-header", *without, "--eqcheck-cases", "4"]))

    for name in ("right", "short"):
        yield name, ran(work, f"--adapter={OWN}:{name}", command=tested)


GROUPS: dict[str, Callable[[Path], Entries]] = {
    "commands": commands,
    "reports": reports,
    "conformance": conformance,
    **{f"audits-{group}": partial(audits, group) for group in AUDITS},
    **{f"cases-{file.stem}": partial(replays, file.stem) for file in sorted(CASES.glob("*.json"))},
}


def _alike() -> None:
    """Have nothing depend on where this runs: no display, no CI, 80 columns, nothing to be read from a terminal."""
    for name in (
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "CI",
        "GITHUB_ACTIONS",
        "GITHUB_STEP_SUMMARY",
        "LINES",
        "PYTEST_ADDOPTS",
    ):
        os.environ.pop(name, None)
    os.environ |= {
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "tools", ROOT / "tests", ROOT))),
    }
    sys.stdin = io.StringIO()


def main(argv: list[str] | None = None) -> int:
    """Compare the groups, or store them; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m golden", description="Compare with the golden net.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; without any all")
    parser.add_argument("--write", action="store_true", help="store what is given now")
    asked: Any = parser.parse_args(argv)
    _alike()
    access.ready()
    lines: list[str] = []
    total = 0
    for group in asked.groups or GROUPS:
        start = cpu(os.getpid())
        with tempfile.TemporaryDirectory() as folder:
            entries = dict(GROUPS[group](Path(folder).resolve()))
            os.chdir(ROOT)
        total += len(entries)
        file, given = NET / f"{group}.txt", joined(entries)
        if asked.write:
            file.write_text(given)
        found = compared(group, file.read_text() if file.exists() else "", given)
        lines += found
        differs = f", {len(found)} lines of differences" if found else ""
        print(f"{group}: {len(entries)} entries, {cpu(os.getpid()) - start:.1f} s of CPU{differs}", flush=True)
    left_out = [f"... and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
    print("\n".join([*lines[:SHOWN], *left_out, f"{total} entries, {'some differ' if lines else 'all as stored'}"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
