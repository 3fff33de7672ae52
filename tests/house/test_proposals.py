"""Proposals are files that can be read: their classes are kits, and what they name is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from eqcheck.contract import known_violations, profiles, registry
from eqcheck.kit import Equivalence

FOLDER = Path(__file__).parents[2] / "proposals"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.py")), ids=lambda path: path.parent.name)
def test_a_class_sets_what_the_kit_has(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (kit,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and ast.unparse(n.bases[0]) == "Equivalence")
    given = {ast.unparse(n.targets[0]): n.value for n in kit.body if isinstance(n, ast.Assign)}
    assert given.keys() <= {*dir(Equivalence), *Equivalence.__annotations__}
    assert profiles.profile(ast.literal_eval(given["profile"]), "0.3.0").name == ast.literal_eval(given["profile"])
    assert "adapter" not in given or ast.literal_eval(given["adapter"]) in registry.names()


def test_what_is_known_can_be_read() -> None:
    (path,) = FOLDER.glob("*/known.toml")
    assert len(known_violations.load(path)) == 2


def test_each_says_what_it_costs_what_it_saw_and_how_it_is_switched_off() -> None:
    for page in FOLDER.glob("*/README.md"):
        text = page.read_text(encoding="utf-8")
        for part in ("**What it costs.**", "**What it would have seen.**", "**How to switch it off.**"):
            assert part in text
        assert f"({page.parent.name}/README.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")
