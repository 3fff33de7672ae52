"""The figures of CONTRIBUTING.md, measured now: ``python tests/tools/figures.py [NAME ...]``, or ``make figures``.

A figure that misses its goal says so, and the exit code is 1. Times mean something on two idle cores alone.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from committed import ROOT, committed
from speed.first import first

BEFORE = 47_074  # words of docs/ at commit ba050bc4


@dataclass(frozen=True)
class Figure:
    """What is measured, in a unit, and the most that it may be; None: it is a fact without a goal."""

    said: str
    measured: Callable[[], float]
    unit: str
    most: float | None = None

    def told(self, value: float) -> str:
        goal = "" if self.most is None else f"; goal: at most {self.most:,g}{' - MISSED' * (value > self.most)}"
        return f"{self.said}: {value:,.1f}".removesuffix(".0") + f" {self.unit}{goal}"


def lines(pattern: str) -> float:
    return sum(len(path.read_text().splitlines()) for path in committed(pattern))


def words() -> float:
    return sum(len(path.read_text().split()) for path in committed("docs/**/*.md"))


def minutes(target: str) -> float:
    """The wall minutes of a target of make; what it took of the CPU stands on standard error."""
    subprocess.run(["make", ".venv/.installed"], cwd=ROOT, check=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(["make", target], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    if done.returncode:
        raise RuntimeError(f"make {target} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"make {target}: {used / 60:.1f} minutes of CPU in processes that were waited for", file=sys.stderr)
    return wall / 60


def collection() -> float:
    """CPU seconds of the second of two collections: the first compiles."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def differing() -> float:
    """The lines in which the golden net differs."""
    command = [sys.executable, "-m", "golden"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "tools"), str(ROOT / "tests")))}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if "all as stored" in done.stdout:
        return 0
    return sum(map(int, re.findall(r"(\d+) lines of differences", done.stdout))) or float("inf")


FIGURES = {
    "package-lines": Figure("lines of the package", lambda: lines("eqcheck/**/*.py"), "lines"),
    "package-files": Figure("files of the package", lambda: len(committed("eqcheck/**/*.py")), "files"),
    "readme": Figure("length of README.md", lambda: lines("README.md"), "lines", 130),
    "docs": Figure("length of docs/", words, "words", BEFORE * 2 // 3),
    "first-line": Figure("eqcheck audit bsp, first line", lambda: first(["bsp"])[0], "s", 0.5),
    "first-violation": Figure("eqcheck audit bsp, first violation", lambda: first(["bsp"])[2], "s of CPU", 4),
    "collection": Figure("collection of all tests", collection, "s of CPU"),
    "audit": Figure("make audit", lambda: minutes("audit"), "minutes", 2),
    "test": Figure("make test", lambda: minutes("test"), "minutes", 5),
    "golden": Figure("differences from the golden net", differing, "lines", 0),
}


def main(names: list[str]) -> int:
    """Print these figures, or all; 1 where one misses its goal."""
    if unknown := set(names) - set(FIGURES):
        print(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 4
    missed = False
    for name in names or FIGURES:
        figure = FIGURES[name]
        value = figure.measured()
        missed |= figure.most is not None and value > figure.most
        print(f"{name:16}{figure.told(value)}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
