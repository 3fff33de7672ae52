"""Sentences are made in one place and read back nowhere: no code cuts data out of a field that holds words."""

from __future__ import annotations

import ast
import re
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
    "explanation",
    "headline",
    "message",
    "printed",
    "reason",
    "said",
    "sentence",
    "traceback",
}
"""Fields, and variables named like them, that hold English."""
READS = {
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
}
OF_RE = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
ALLOWED = {
    ("notice.py", "startswith"),  # warnings of eqcheck 0.2, which have no kinds
    ("auditing.py", "splitlines"),  # an eqcheck of an environment ended, and says why in words alone
    ("environments.py", "partition"),  # the messages of an installer
    ("fault.py", "partition"),  # the case of a docstring's first letter
    ("script.py", "splitlines"),  # the last line is JSON
}
TEMPLATES = sorted(ROOT.glob("eqcheck/report/html/*.jinja"))
CUT = re.compile(r"(\w+)(?:\|replace\(|\.(?:split|partition|startswith|removeprefix)\()")
NAMES = {"lane", "state"}  # no words: a lane's name, and the state of a change, which a class of CSS is named after


def reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each method that takes a field of words apart, and the field.

    >>> list(reads(ast.parse("slot.holds.startswith('row')\\nre.sub('1', 'n', deviation.origin)")))
    [('startswith', 'holds'), ('sub', 'origin')]
    """
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Constant(), ops=[ast.In() | ast.NotIn()], comparators=[looked_through]):
                if (field := _name(looked_through)) in WORDS - {"message", "said"}:  # these may be mappings
                    yield "in", field
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
    source = "'WRONG' in printed\nd.origin.partition(':')\n"
    source += "re.fullmatch('position 1', slot.holds)\nwarning.startswith('VACUOUS')"
    assert sorted(reads(ast.parse(source))) == [
        ("fullmatch", "holds"),
        ("in", "printed"),
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


def test_no_template_reads_words_back() -> None:
    assert CUT.findall('{{ warning|replace("VACUOUS:", "") }} {{ one.words.split(";") }}') == ["warning", "words"]
    cuts = [(path.name, name) for path in TEMPLATES for name in CUT.findall(path.read_text())]
    assert [(path, name) for path, name in cuts if name not in NAMES] == []
