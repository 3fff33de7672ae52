"""Sentences are made in one place and read back nowhere, and docstrings and comments begin with a whole thought."""

from __future__ import annotations

import ast
import io
import re
import tokenize
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


CODE = sorted(path for folder in ("eqcheck", "adapters", "reference_impls") for path in (ROOT / folder).rglob("*.py"))
FRAGMENTS = {"Of", "So", "That", "Those", "What", "Whether", "Which", "Whose", "Who", "Why", "How", "By", "As"}
"""First words of a clause that has lost its verb: "Whether rows differ", "Of the rows the last"."""


def fragments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each docstring or comment that begins with a fragment."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (word := _first(ast.get_docstring(node) or "")) in FRAGMENTS:
            yield node.body[0].lineno, word
    block = -1  # the line of the last comment that had its line to itself: the next line goes on with it
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, alone = token.start[0], not token.line[: token.start[1]].strip()
            if not (alone and line == block + 1) and (word := _first(token.string.lstrip("# "))) in FRAGMENTS:
                yield line, word
            block = line if alone else block


def _first(text: str) -> str:
    return re.split(r"\W", text, maxsplit=1)[0]


def test_a_fragment_is_seen() -> None:
    source = "# Of two rows one is shorter.\n\ndef f():\n    'Whether rows differ.'\n    x = 1  # As it was.\n"
    assert sorted(fragments(source)) == [(1, "Of"), (4, "Whether"), (5, "As")]
    assert not list(fragments("# Two rows\n# As they came.\n\ndef f():\n    'Return whether rows differ.'\n"))


def test_docstrings_and_comments_begin_with_a_whole_thought() -> None:
    found = {(str(path.relative_to(ROOT)), *one) for path in CODE for one in fragments(path.read_text())}
    assert not found


# Sentences of causes are made in eqcheck/explanation/: producers hand over facts.
#
# A folder may have so many strings of five words or more, and a module that is named so many of its own. The numbers
# may only fall. Those of attribution/ are clues of labels and warnings of draft losses, those of sampling/ the words of
# errors and bets in the tables of samplers; gate/ has a report of its own, whose words need all of the gate.

MOST_SENTENCES = {
    "eqcheck/abduction/": 183,
    "eqcheck/attribution/": 25,
    "eqcheck/decoding/": 0,
    "eqcheck/drafting/": 0,
    "eqcheck/drawing/": 0,
    "eqcheck/gate/": 83,
    "eqcheck/hashlm/": 2,
    "eqcheck/lanes/": 5,
    "eqcheck/lanes/about.py": 123,
    "eqcheck/lanes/checkpoint/": 27,
    "eqcheck/lanes/sampling/": 26,
    "eqcheck/lanes/transparent/": 11,
    "eqcheck/memory/": 6,
    "eqcheck/oracle/": 2,
    "eqcheck/real/": 1,
    "eqcheck/sampling/": 78,
    "eqcheck/truth/": 0,
}
WORDS_OF_A_SENTENCE = 5


def sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that reads as a sentence, but for docstrings, errors, warnings and regexes.

    >>> list(sentences(ast.parse('why = f"call {n} feeds the token at the wrong place"')))
    [(1, 'call {} feeds the token at the wrong place')]
    >>> list(sentences(ast.parse('raise ValueError("expected a row of at least one token")')))
    []
    """
    passed: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                passed.add(id(node.value))
            case ast.Raise() | ast.Assert():
                passed |= set(map(id, ast.walk(node)))
            case ast.Call(func=func) if _said_elsewhere(func):
                passed |= set(map(id, ast.walk(node)))
            case ast.JoinedStr():
                passed |= set(map(id, node.values))
    for node in ast.walk(tree):
        text = _text(node)
        if id(node) not in passed and len(re.findall(r"[A-Za-z]{2,}", text)) >= WORDS_OF_A_SENTENCE:
            yield node.lineno, text  # type: ignore[attr-defined]


def _said_elsewhere(func: ast.expr) -> bool:
    """Return whether a call makes an error or a warning, or compiles a regex."""
    if isinstance(func, ast.Attribute) and _name(func.value) in ("re", "warnings"):
        return True
    return _name(func) == "Notice" or _name(func).endswith(("Error", "Violation"))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def counted(sources: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """The sentences by the longest entry of `MOST_SENTENCES` that the path of a source begins with."""
    found: dict[str, list[str]] = {name: [] for name in MOST_SENTENCES}
    for path, source in sources:
        names = [name for name in MOST_SENTENCES if path.startswith(name)]
        if names:
            place = max(names, key=len)
            found[place] += [f"{path}:{line}: {text}" for line, text in sentences(ast.parse(source))]
    return found


def test_a_sentence_of_a_cause_outside_explanation_is_seen() -> None:
    planted = """def cause(slot):
    "Return why the slot that the query saw is wrong."
    return f"slot {slot} holds a token of another row"
"""
    path = next(name for name, most in MOST_SENTENCES.items() if not most)
    assert len(counted(iter([(f"{path}planted.py", planted)]))[path]) == 1 > MOST_SENTENCES[path]
    quiet = "raise UsageError('expected one row of tokens, got none')\nre.compile('one two three four five')\n"
    assert not any(counted(iter([(f"{path}quiet.py", quiet)])).values())


def test_sentences_of_causes_are_made_in_explanation() -> None:
    sources = ((str(path.relative_to(ROOT)), path.read_text()) for path in MODULES)
    found = counted(sources)
    more = {place: said for place, said in found.items() if len(said) > MOST_SENTENCES[place]}
    assert not more, "\n".join(line for said in more.values() for line in said)
