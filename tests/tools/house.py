"""The shape of the package in numbers: ``python tests/tools/house.py``, or ``make house``.

Each line has a figure, its value at commit ba050bc4, and the goal; what misses its goal says so. The structure test
holds the limits that may not be missed.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from committed import ROOT
from complexipy import file_complexity
from test_prose import misused_facts
from test_structure import graph, texts

TOOL = [path for path in sorted((ROOT / "eqcheck").rglob("*.py")) if "catalogue" not in path.parts]
CATALOGUE = sorted((ROOT / "tests" / "catalogue").rglob("*.py"))  # it is imported as eqcheck.catalogue
PACKAGE = [*TOOL, *CATALOGUE]
TOOLS = sorted((ROOT / "tests" / "tools").rglob("*.py"))
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - {*CATALOGUE})
COMPLEX = 15  # of a function, by complexipy's cognitive complexity
SHORT = 3  # lines of body

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Figure:
    """A figure: its name, how it is counted, its value before, and the most that it may be; the least where ``up``."""

    said: str
    measured: Callable[[], float]
    before: float
    goal: float
    up: bool = False

    @property
    def line(self) -> str:
        value = self.measured()
        missed = value < self.goal if self.up else value > self.goal
        return f"{self.said:<62} {self.before:>8,g} {value:>8,g} {self.goal:>8,g}{'  MISSED' * missed}"


def lines(paths: list[Path]) -> float:
    return sum(len(path.read_text().splitlines()) for path in paths)


def comments() -> float:
    """Own-line comments, in percent of all lines."""
    own = sum(line.lstrip().startswith("#") for path in PACKAGE for line in path.read_text().splitlines())
    return round(100 * own / lines(PACKAGE), 1)


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def confetti() -> float:
    """Private functions that are named once besides their definition, with a few lines of body."""
    named = Counter[str]()
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text())):
            named.update([node.id] if isinstance(node, ast.Name) else [])
            named.update([node.attr] if isinstance(node, ast.Attribute) else [])
    found = 0
    for path in PACKAGE:
        for function in functions(path):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            private = function.name.startswith("_") and not function.name.startswith("__")
            if private and body and named[function.name] == 1 and not function.decorator_list:
                found += (body[-1].end_lineno or 0) - body[0].lineno + 1 <= SHORT
    return found


def complexities() -> list[int]:
    return [one.complexity for path in PACKAGE for one in file_complexity(str(path)).functions]


def twice(names: list[str]) -> float:
    return sum(count > 1 for count in Counter(names).values())


def circles() -> float:
    try:
        TopologicalSorter(graph(texts(PACKAGE))).prepare()
    except CycleError:
        return 1
    return 0


def modules() -> list[str]:
    return [path.stem for path in PACKAGE if path.stem not in ("__init__", "__main__")]


def classes() -> list[str]:
    trees = (ast.parse(path.read_text()) for path in PACKAGE)
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def public_classes() -> list[str]:
    return [name for name in classes() if not name.startswith("_")]


FIGURES = [
    Figure("lines of the tool (without the catalogue)", lambda: lines(TOOL), 46_569, 43_000),
    Figure("files of the tool", lambda: len(TOOL), 290, 185),
    Figure("lines with the catalogue", lambda: lines(PACKAGE), 53_390, 49_500),
    Figure("files with the catalogue", lambda: len(PACKAGE), 326, 215),
    Figure("own-line comments, in percent of the lines", comments, 0.3, 3, up=True),
    Figure("private functions called once, of three lines at most", confetti, 191, 60),
    Figure("functions above a cognitive complexity of 15", lambda: sum(n > COMPLEX for n in complexities()), 148, 60),
    Figure("the greatest cognitive complexity", lambda: max(complexities()), 55, 25),
    Figure("circles of imports", circles, 0, 0),
    Figure("facts that are split or compared as strings", lambda: len(misused_facts()), 70, 0),
    Figure(
        "names of modules that occur twice", lambda: twice([p.stem for p in PACKAGE if p.stem != "__init__"]), 36, 8
    ),
    Figure("names of public classes that occur twice", lambda: twice(public_classes()), 0, 0),
    Figure("lines of tests/, without the catalogue", lambda: lines(TESTS), 44_635, 38_000),
    Figure("of these, lines of tests/tools/", lambda: lines(TOOLS), 11_850, 11_850),
]


def main() -> int:
    print(f"{'':<62} {'before':>8} {'now':>8} {'goal':>8}")
    for figure in FIGURES:
        print(figure.line)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
