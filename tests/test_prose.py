"""Sentences are made in one place and read back nowhere: no code cuts data out of a field that holds words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(ROOT.glob("eqcheck/**/*.py"))
WORDS = {
    "holds",
    "origin",
    "basis",
    "words",
    "meaning",
    "clause",
    "detail",
    "stands_for",
    "warning",
    "warnings",
    "repair",
}
"""Fields, and variables named like them, that hold English."""
READS = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix"}
OF_RE = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
ALLOWED = {
    ("text.py", "split"),  # the clauses of a detail: `statements.together` joins them
    ("notice.py", "startswith"),  # warnings of eqcheck 0.2, which have no kinds
}


def reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each method that takes a field of words apart, and the field.

    >>> list(reads(ast.parse("slot.holds.startswith('row')\\nre.sub('1', 'n', deviation.origin)")))
    [('startswith', 'holds'), ('sub', 'origin')]
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = node.func.attr
        if name in READS and (field := _name(node.func.value)) in WORDS:
            yield name, field
        if name in OF_RE and _name(node.func.value) == "re":
            yield from ((name, field) for one in node.args if (field := _name(one)) in WORDS)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_the_check_sees_what_it_forbids() -> None:
    source = "d.origin.partition(':')\nre.fullmatch('position 1', slot.holds)\nwarning.startswith('VACUOUS')"
    assert sorted(reads(ast.parse(source))) == [
        ("fullmatch", "holds"),
        ("partition", "origin"),
        ("startswith", "warning"),
    ]
    assert not list(reads(ast.parse("name.partition(':')\nre.sub('a', 'b', fingerprint)")))


def test_no_module_reads_words_back() -> None:
    found = [
        (str(path.relative_to(ROOT)), *one)
        for path in MODULES
        for one in reads(ast.parse(path.read_text()))
        if (path.name, one[0]) not in ALLOWED
    ]
    assert found == []
