"""The architecture: imports go one way, nothing is too long, and what reads data imports no model."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "eqcheck").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
HOOKS = {"campaign/apart.py", "cli/audit.py", "cli/bench.py"}  # they say so where there is no `benchmarks/`
# From the bottom to the top: a unit may import those before it, and itself. What stands together may import each other.
LAYERS = (
    "errors plain narrow limits sizes repository architectures family kinds explained trees notice",
    "explanation verdict text statements sampling",
    "requirements options contract modules registry arguments known",
    "case outcome tally findings declining story",
    "hashing families caches trace run hashparts head hashlm draft harness choices drawing tree_drawing ties law alone "
    "spread real",
    "attribution",
    "oracle strategies callview watch",
    "memory",
    "workers",
    "lanes",
    "campaign",
    "compat catalogue",
    "memorycheck selfcheck sampledcheck",
    "report",
    "history",
    "replay cli pytest_plugin",
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units.split()}
LONGEST_MODULE, LONGEST_FUNCTION = 350, 60
# A signature with every claim and its documentation; a parser with every option; a table.
LONG = {("eqcheck/contract.py", "decoder"), ("eqcheck/compat/legacy.py", "_members"), ("eqcheck/hashlm.py", "forward")}


def unit(path: Path) -> str:
    return path.relative_to(ROOT / "eqcheck").parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """What a module imports of eqcheck, at once or later, by unit."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eqcheck."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "eqcheck":
            found |= {alias.name for alias in node.names if alias.name != "__version__"}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    if path.parent == ROOT / "eqcheck" and path.name == "__init__.py":
        return  # its names are imported when they are asked for
    upwards = {name for name in imported(path) if RANK[name] > RANK[unit(path)]}
    assert not upwards, f"{unit(path)} imports {upwards}"


def test_an_import_upwards_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "trace.py"
    module.write_text("from eqcheck import cli\nfrom eqcheck.campaign.loop import audit\n")
    assert {name for name in imported(module) if RANK[name] > RANK["trace"]} == {"cli", "campaign"}


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


def test_no_modules_import_each_other() -> None:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES + BENCHMARKS}
    TopologicalSorter(
        graph({name.removesuffix(".__init__"): path.read_text() for path, name in names.items()})
    ).prepare()


def test_a_circle_is_seen() -> None:
    later = {"eqcheck.a": "def f():\n    from eqcheck import b", "eqcheck.b": "import eqcheck.c", "eqcheck": ""}
    TopologicalSorter(graph(later | {"eqcheck.c": ""})).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter(graph(later | {"eqcheck.c": "from eqcheck.a import f"})).prepare()


def test_three_hooks_import_what_is_not_in_the_wheel() -> None:
    inside = [*MODULES, *(path for name in ("adapters", "reference_impls") for path in (ROOT / name).rglob("*.py"))]
    importing = {path for path in inside if re.search(r"^ *(from|import) benchmarks\b", path.read_text(), re.MULTILINE)}
    assert importing == {ROOT / "eqcheck" / name for name in HOOKS}
    assert all("repository.find(" in path.read_text() for path in importing)


@pytest.mark.parametrize("path", MODULES + BENCHMARKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and (str(path.relative_to(ROOT)), node.name) not in LONG:
            assert int(node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
