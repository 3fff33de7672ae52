"""The two tiers of tests: together they are all tests, and no name in the list has lost its test."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tiers import REST

ROOT = Path(__file__).parents[1]


def test_every_test_of_the_rest_is_there() -> None:
    functions: dict[str, set[str]] = {}
    for name in json.loads(REST.read_text()):
        file, _, test = name.partition("::")
        if file.endswith(".py") and file not in functions:
            tree = ast.parse((ROOT / file).read_text())
            functions[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if file.startswith("tests/"):
            assert test.partition("[")[0] in functions[file], name


def test_both_tiers_are_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert 'pytest -n 3 -m "not rest and not long"' in makefile
    assert "pytest -n 3 -m rest" in makefile
    assert "pytest -n 3 -m long" in makefile
