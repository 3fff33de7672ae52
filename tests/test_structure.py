"""The architecture: imports go one way, nothing is too long, and what reads data imports no model."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "eqcheck").rglob("*.py"))
# From the bottom to the top: a unit may import those before it, and itself. What stands together may import each other.
LAYERS = (
    "errors plain narrow limits sizes architectures family kinds explained trees notice",
    "verdict text statements sampling",
    "requirements options contract modules registry arguments known",
    "case outcome tally findings declining story",
    "hashing families caches trace hashparts head hashlm draft harness drawing tree_drawing ties pair law alone "
    "spread real",
    "attribution",
    "oracle strategies callview watch",
    "memory",
    "workers",
    "lanes",
    "campaign",
    "compat catalogue bench",
    "memorycheck selfcheck sampledcheck",
    "report",
    "history",
    "replay cli pytest_plugin",
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units.split()}
LONGEST_MODULE, LONGEST_FUNCTION = 350, 60
# A signature with every claim and its documentation; a parser with every option; a table.
LONG = {("contract.py", "decoder"), ("compat/legacy.py", "_members"), ("hashlm.py", "forward")}


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and (str(path.relative_to(ROOT / "eqcheck")), node.name) not in LONG:
            assert int(node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
