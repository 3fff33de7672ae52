"""The architecture: imports go one way, nothing is too long, and what reads data imports no model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "eqcheck").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
# From the bottom to the top, a room each: its modules import each other, and those of rooms before it.
ROOMS = (
    "contract",
    "core.law",
    "audit.coverage_words",
    "core.explanation",
    "core.explanation.handbook",
    "core.shrinking",
    "engines.construction",
    "sampling.betting",
    "core.case",
    "core.result",
    "core",
    "audit.events",
    "transparent.hashlm",
    "transparent.rounds",
    "transparent.real",
    "transparent.truth",
    "audit.workers",
    "core.store",
    "engines.checkpoints",
    "checkpoints",
    "audit.lane",
    "audit.time_budget",
    "engines.abduction",
    "transparent.drafting",
    "transparent.drawing",
    "compat",
    "transparent.decoding",
    "transparent.attribution",
    "transparent.watch",
    "transparent.oracle",
    "transparent.memory",
    "transparent",
    "engines",
    "sampling",
    "audit",
    "report",
    "selfcheck",
    "gate",
    "cli",
)
TOP = ("__init__", "checkpoints", "kit", "pytest_plugin", "strategies")  # these import any room; no room imports them
LONGEST = 900  # lines of a module: one idea takes 200 to 900


def room(module: str) -> str:
    """The room of a module, both as dotted names; ``a package`` is the room of its own ``__init__``.

    >>> room("eqcheck.engines.lane"), room("eqcheck.audit"), room("eqcheck.strategies")
    ('engines', 'audit', '')
    """
    inside = module.removeprefix("eqcheck").removeprefix(".")
    return next((name for name in sorted(ROOMS, key=len, reverse=True) if f"{inside}.".startswith(f"{name}.")), "")


def upwards(modules: Mapping[str, str]) -> list[tuple[str, str]]:
    """The imports from a room to one above it; ``modules`` are texts by dotted name."""
    rank = {name: number for number, name in enumerate(ROOMS)} | {"": len(ROOMS)}
    pairs = [(one, other) for one, others in graph(modules).items() for other in others]
    return [(one, other) for one, other in pairs if rank[room(other)] > rank[room(one)]]


def texts(paths: Iterable[Path]) -> dict[str, str]:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path.read_text() for path, name in names.items()}


def test_every_module_has_a_room() -> None:
    assert {path.stem for path in (ROOT / "eqcheck").glob("*.py")} == set(TOP)
    assert {room(name) for name in texts(MODULES)} == {*ROOMS, ""}


@pytest.mark.rest
def test_imports_go_one_way() -> None:
    modules = texts(MODULES)
    del modules["eqcheck"]  # its names are imported when they are asked for
    assert not upwards(modules)


def test_an_import_upwards_is_seen() -> None:
    above = {"eqcheck.transparent.hashlm.trace": "from eqcheck.audit.loop import audit\n", "eqcheck.audit.loop": ""}
    assert upwards(above) == [("eqcheck.transparent.hashlm.trace", "eqcheck.audit.loop")]
    assert not upwards(
        {"eqcheck.transparent.hashlm.trace": "", "eqcheck.audit.loop": "import eqcheck.transparent.hashlm.trace"}
    )


def graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Which modules each one imports, at once, later, or for types alone; ``modules`` are texts by dotted name."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom):
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                named = [one if one in modules else str(node.module) for one in named]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            found[name] |= {one for one in named if one in modules and one != name}
    return found


@pytest.mark.rest
def test_no_modules_import_each_other() -> None:
    TopologicalSorter(graph(texts(MODULES + BENCHMARKS))).prepare()


def test_a_circle_is_seen() -> None:
    later = {"eqcheck.a": "def f():\n    from eqcheck import b", "eqcheck.b": "import eqcheck.c", "eqcheck": ""}
    TopologicalSorter(graph(later | {"eqcheck.c": ""})).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter(graph(later | {"eqcheck.c": "from eqcheck.a import f"})).prepare()


def test_nothing_imports_what_is_not_in_the_wheel() -> None:
    inside = [*MODULES, *(path for name in ("adapters", "reference_impls") for path in (ROOT / name).rglob("*.py"))]
    wanted = re.compile(r"^ *(from|import) benchmarks\b", re.MULTILINE)
    assert [path for path in inside if wanted.search(path.read_text())] == []
    assert wanted.search("import json\nfrom benchmarks import pair\n")


def too_long(modules: Mapping[str, str]) -> dict[str, int]:
    """The modules of more lines than one idea takes, with their lines; ``modules`` are texts by dotted name."""
    lines = {name: len(text.splitlines()) for name, text in modules.items()}
    return {name: number for name, number in lines.items() if number > LONGEST}


def test_no_module_is_too_long() -> None:
    long = too_long(texts(MODULES + BENCHMARKS))
    assert not long, f"more than {LONGEST} lines: {long}"


def test_a_module_that_is_too_long_is_seen() -> None:
    assert too_long({"eqcheck.a": "x = 1\n" * 900, "eqcheck.b": "x = 1\n" * 901}) == {"eqcheck.b": 901}


def twice(modules: Mapping[str, str]) -> set[str]:
    """The names that two classes at the top of modules share."""
    names = [node.name for text in modules.values() for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {name for name in names if names.count(name) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert not twice(texts(MODULES))
    assert twice({"a": "class Round: ...", "b": "class Round: ...\nclass Rounds: ..."}) == {"Round"}
