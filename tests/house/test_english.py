"""The English of code and docs, as far as it can be checked: three rules, each with a planted breach.

1. No sentence begins with a relative word without its noun: "What ...", "Of what ...", "Those that ...".
2. No variable that lives over more than three lines is named by a word that could stand for anything.
3. No module is named by an adjective or an adverb.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from committed import ROOT, committed

CODE = sorted(path for folder in ("eqcheck", "adapters", "reference_impls") for path in (ROOT / folder).rglob("*.py"))
TEXTS = [*committed("*.md"), *committed("docs/**/*.md"), *committed("eqcheck/**/*.md")]
TEXTS = [path for path in TEXTS if path.name != "CHANGELOG.md"]

HANGING = re.compile(
    r"(?:^|[.:;!?]\s+)(?:What|Of what|Of which|Nothing where|Those that)\b(?![^.]*\?)",
    re.MULTILINE,
)
VAGUE = {"one", "found", "some", "thing", "things", "stuff"}
LONGEST_LIFE = 3
ADJECTIVES = re.compile(
    "alone|apart|declared|dictated|exact|forked|gathered|headed|known|local|narrow|own|packed|paged|plain|pooled|rare|"
    "readable|replaced|reused|right|sampled|shared|shown|smallest|spawned|spread|staged|static|torn|unheard|wrong"
)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, each with its line; doctests and code between backticks are left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (said := ast.get_docstring(node)):
            yield node.body[0].lineno, re.sub(r"(?m)^\s*(?:>>>|\.\.\.).*$|``[^`]*``|`[^`]*`", "code", said)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def hanging(said: str) -> list[str]:
    """The words of a text that hang in the air.

    >>> hanging("What a case holds. Those that are long."), hanging("The content of a case. Which? All.")
    (['What', 'Those that'], [])
    """
    return [match.group().strip(" .:;!?\n") for match in HANGING.finditer(said)]


def vague(text: str) -> list[tuple[int, str]]:
    """The names that say nothing and live long, each with the line where it begins.

    >>> vague("found = look()\\nprint()\\nprint()\\nprint()\\nprint(found)")
    [(1, 'found')]
    >>> vague("[one for one in many]")
    []
    """
    lives: dict[tuple[int, str], list[int]] = {}
    tree = ast.parse(text)
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef | ast.Lambda)]
    inside = [{id(part) for part in ast.walk(scope)} for scope in scopes]
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        if name in VAGUE:
            scope = max(number for number, parts in enumerate(inside) if id(node) in parts)
            lives.setdefault((scope, name), []).append(node.lineno)  # type: ignore[attr-defined]
    return sorted((min(lines), name) for (_, name), lines in lives.items() if max(lines) - min(lines) > LONGEST_LIFE)


def flaws(path: Path, text: str) -> list[str]:
    """The breaches of the three rules in a module.

    >>> flaws(Path("alone.py"), "# What a case holds.")
    ["alone.py:1: ['What']", 'alone.py: the name of the module']
    """
    broken = [f"{path}:{line}: {words}" for line, said in prose(text) if (words := hanging(said))]
    broken += [f"{path}:{line}: the name {name!r}" for line, name in vague(text)]
    return broken + [f"{path}: the name of the module"] * bool(ADJECTIVES.fullmatch(path.stem))


def test_code_has_whole_sentences_and_names() -> None:
    broken = [flaw for path in CODE for flaw in flaws(path.relative_to(ROOT), path.read_text())]
    assert not broken, "\n".join(broken)


def test_docs_have_whole_sentences() -> None:
    said = {path: hanging(re.sub(r"(?s)```.*?```|`[^`\n]*`", "code", path.read_text())) for path in TEXTS}
    broken = [f"{path.relative_to(ROOT)}: {words}" for path, words in said.items() if words]
    assert not broken, "\n".join(broken)
