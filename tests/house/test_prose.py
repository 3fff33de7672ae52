"""Sentences are made in one place and read back nowhere, and docstrings and comments begin with a whole thought."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
    "symptom",
    "note",
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


# Sentences of causes are made in eqcheck/core/explanation/: producers hand over facts.
#
# A folder may have so many strings of five words or more, and a module that is named so many of its own. The numbers
# may only fall. Those of attribution/ are clues of labels and warnings of draft losses, those of sampling/ the words of
# errors and bets in the tables of samplers; gate/ has a report of its own, whose words need all of the gate.

MOST_SENTENCES = {
    "eqcheck/audit/": 25,
    "eqcheck/audit/coverage_words.py": 126,
    "eqcheck/engines/": 55,
    "eqcheck/engines/abduction/": 188,
    "eqcheck/gate/": 84,
    "eqcheck/sampling/": 26,
    "eqcheck/sampling/betting/": 78,
    "eqcheck/transparent/": 19,
    "eqcheck/transparent/attribution/": 25,
    "eqcheck/transparent/hashlm/": 2,
    "eqcheck/transparent/real/": 1,
    "eqcheck/transparent/truth/": 0,
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


# Facts are no strings. What a counter counts, and what a cause, an edit or a condition is, are enums and records: their
# types are found in the package, and nothing that has such a type is cut, or compared with a text. Nor is any text
# that has a blank in it a key, or compared: it is English, and whoever mends a sentence must not change a verdict.

FORMATS = {
    ("cli/replaying.py", "startswith"): "the beginning of a page of HTML",
    ("gate/servers.py", "NotIn"): "what a server answers that has no list of models",
    ("gate/compared_rows.py", "key"): "the names of counters in the metrics of servers",
    ("report/build.py", "In"): "the head of a script that some eqcheck wrote",
    ("report/terminal.py", "startswith"): "lines of a traceback of Python",
    ("pytest_plugin.py", "Eq"): "names of properties in a JUnit file",
    ("core/explanation/text.py", "NotIn"): "a basis that reports of earlier releases have as text",
}
"""Texts of others, and texts in stored files: where they are read, and what they are."""


class Facts:
    """The types of facts in some modules, by AST: enums and records, the fields that have them, and constants."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self.constants: dict[tuple[str, str], ast.expr] = {}
        self.imported: dict[tuple[str, str], tuple[str, str]] = {}
        self.types: set[tuple[str, str]] = set()
        classes = [(module, node) for module, tree in trees.items() for node in ast.walk(tree)]
        for module, node in classes:
            if isinstance(node, ast.ImportFrom):
                names = {(module, one.asname or one.name): (node.module or "", one.name) for one in node.names}
                self.imported |= names
            if isinstance(node, ast.ClassDef) and {"Enum", "NamedTuple"} & set(map(_name, node.bases)):
                self.types.add((module, node.name))
            if isinstance(node, ast.Assign) and node in trees[module].body:
                self.constants |= {(module, name): value for name, value in _assigned(node)}
        fields = [
            (module, node.name, *field)
            for module, node in classes
            if isinstance(node, ast.ClassDef)
            for field in map(_field, node.body)
            if field
        ]
        self.fields = {name for module, _, name, said in fields if self.typed(said, module)}
        self.fields -= {name for module, _, name, said in fields if not self.typed(said, module)}
        self.counters = {(of, name): key for _, of, name, said in fields if (key := _counted(said))}

    def typed(self, annotation: ast.expr | None, module: str) -> bool:
        """Return whether an annotation is a type of facts, or that or None."""
        match annotation:
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
                return self.typed(left, module)
            case ast.Name(id=name):
                return self.imported.get((module, name), (module, name)) in self.types
        return False

    def texts(self, node: ast.expr, module: str) -> Iterator[str]:
        """Yield the texts that an expression is, or that are in a tuple, a list or a set; constants are looked up."""
        match node:
            case ast.Constant(value=str() as text):
                yield text
            case ast.JoinedStr(values=values):
                yield "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in values)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                for one in elements:
                    yield from self.texts(one, module)
            case ast.Starred(value=value):
                yield from self.texts(value, module)
            case ast.Name(id=name):
                home = self.imported.get((module, name), (module, name))
                if (constant := self.constants.get(home)) is not None:
                    yield from self.texts(constant, home[0])
            case ast.Attribute(value=ast.Name(id=of), attr=name):
                package, last = self.imported.get((module, of), ("", of))
                if (constant := self.constants.get((f"{package}.{last}", name))) is not None:
                    yield from self.texts(constant, f"{package}.{last}")

    def misused(self, module: str) -> Iterator[tuple[str, int]]:
        """Yield each place where a fact is cut, or compared as a text, by what is done there, and its line."""
        yield from self._misused(self.trees[module], module, set())

    def _misused(self, node: ast.AST, module: str, typed: set[str]) -> Iterator[tuple[str, int]]:
        """The same below a node; ``typed`` are the arguments around it that are facts."""

        def english(*parts: ast.expr) -> bool:
            return any(" " in text for one in parts for text in self.texts(one, module))

        def fact(one: ast.expr) -> bool:
            return one.attr in self.fields if isinstance(one, ast.Attribute) else _name(one) in typed

        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            typed = typed - {one.arg for one in given}
            typed |= {one.arg for one in given if self.typed(one.annotation, module)}
        match node:
            case ast.Subscript(value=ast.Name(id="Literal" | "Annotated")):
                return
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args) if name in READS:
                if english(*args) or fact(value):
                    yield name, node.lineno
            case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault"), args=[key, *_]) if english(key):
                yield "key", node.lineno
            case ast.Compare(left=left, ops=ops, comparators=others):
                text = any(True for one in (left, *others) for _ in self.texts(one, module))
                if english(left, *others) or (text and any(map(fact, (left, *others)))):
                    yield type(ops[0]).__name__, node.lineno
            case ast.Subscript(slice=key) if english(key):
                yield "key", node.lineno
        for below in ast.iter_child_nodes(node):
            yield from self._misused(below, module, typed)


def _field(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """The name and the annotation of a field or a property."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
            return name, annotation
        case ast.FunctionDef(name=name, returns=ast.expr() as annotation, decorator_list=[ast.Name(id="property")]):
            return name, annotation
    return None


def _counted(annotation: ast.expr) -> str:
    """The type that a counter counts; empty for what is no counter."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Counter"), slice=key):
            return ast.unparse(key)
    return ""


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        match target, node.value:
            case ast.Name(id=name), value:
                yield name, value
            case ast.Tuple(elts=names), ast.Tuple(elts=values):
                yield from ((_name(name), value) for name, value in zip(names, values, strict=False))


def facts_of(root: Path) -> Facts:
    """The facts of the package below a folder, without the catalogue, whose patches are text."""
    paths = [path for path in sorted(root.glob("eqcheck/**/*.py")) if "catalogue" not in path.parts]
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    return Facts({name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()})


def misused_facts(root: Path = ROOT) -> list[tuple[str, str, int]]:
    """Return where facts are cut or compared as strings: the module, what is done, and the line."""
    facts = facts_of(root)
    found = [
        (f"{module.partition('.')[2].replace('.', '/')}.py", *one)
        for module in facts.trees
        for one in facts.misused(module)
    ]
    return [(file, done, line) for file, done, line in found if (file, done) not in FORMATS]


RIGHT = """
class Fate(Enum):
    KEPT = "was kept"

class Count(NamedTuple):
    fate: Fate
    row: int

class Totals:
    counts: Counter[Count]

def kept(totals, one: Count):
    return one.fate is Fate.KEPT and totals.counts[Count(Fate.KEPT, 0)] and KINDS["missing-entry"]
"""
WRONG = """
from module import NEVER
WAITING, DUE = "waiting ", "due"

class Fate(str, Enum):
    KEPT = "kept"

class Slot:
    fate: Fate | None

def read(slot, counts, name, fate: Fate):
    slot.fate == "kept"
    fate.partition(":")
    name.removeprefix(WAITING)
    name.split(" ", 3)
    slot.origin == NEVER
    slot.why in ("", "no call was fed its id")
    counts[f"row {slot.row} {DUE}"]
    counts.get("head rounds", 0)
"""


def test_the_check_of_facts_sees_what_it_forbids() -> None:
    facts = Facts({"module": ast.parse('NEVER = "never fed"'), "wrong": ast.parse(WRONG), "right": ast.parse(RIGHT)})
    assert [done for done, _ in facts.misused("wrong")] == [
        "Eq", "partition", "removeprefix", "split", "Eq", "In", "key", "key"
    ]  # fmt: skip
    assert facts.counters == {("Totals", "counts"): "Count"}
    assert not list(facts.misused("right"))


def test_no_fact_is_cut_or_compared_as_a_string() -> None:
    assert misused_facts() == []


NAMES_ALONE = {"coverage", "observed", "lucky", "slots", "statuses"}
"""Counters of a tally whose keys are names that stand in a table of words, each looked up whole."""


def test_counters_of_an_audit_have_records_as_keys() -> None:
    facts = facts_of(ROOT)
    keys = {name: key for (of, name), key in facts.counters.items() if of == "Tally"}
    assert {name for name, key in keys.items() if key == "str"} == NAMES_ALONE
    assert {"condition", "look", "sign"} <= facts.fields
