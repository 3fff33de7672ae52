"""Mutants of the reference engines, one small change of the source each, in an order that never changes."""

from __future__ import annotations

import ast
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "reference_impls"
ENGINES = ("eqspec", "exspec", "ragged")
_CACHES = ("serving/pool.py", "serving/rounds.py", "serving/row_cache.py")

_COMPARE = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_TWINS = {  # names that a slip of the hand confuses
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "argmax": "argmin",
    "keys": "values",
    "values": "keys",
    "verifier": "drafter",
    "drafter": "verifier",
    "target": "draft",
    "draft": "target",
    "cumsum": "cumprod",
    "cumprod": "cumsum",
    "before": "after",
    "after": "before",
    "behind": "unfed",
    "unfed": "behind",
    "start": "first",
    "first": "start",
    "rows": "slots",
    "slots": "rows",
    "queries": "keys",
    "row": "rows",
    "proposed": "predicted",
    "source": "destination",
    "destination": "source",
}
_TRANSPARENT = {  # what `x.f(...)` may be without: the value stays of one kind
    *("clamp", "long", "cumsum", "cumprod", "flatten", "expand", "clone", "copy", "index_select", "gather"),
    *("masked_fill_", "argsort", "tolist"),
}
_WRAPPERS = ("list", "sorted", "reversed", "tuple")


@dataclass(frozen=True)
class Mutant:
    """One change: in ``file`` (below `FOLDER`), at ``line``, ``before`` becomes ``after``.

    ``source`` is the whole file with the change; ``engine`` is the one it is tried on.
    """

    id: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    source: str
    engine: str

    @property
    def diff(self) -> str:
        """The changed lines, beside the right ones."""
        old, new = (FOLDER / self.file).read_text(encoding="utf-8").splitlines(), self.source.splitlines()
        top = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        end = next((i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b), 0)
        removed = [f"- {line}" for line in old[top : len(old) - end]]
        return "\n".join(removed + [f"+ {line}" for line in new[top : len(new) - end]])

    @property
    def held_back(self) -> bool:
        """Whether it is among the third that is only counted while explanations are mended."""
        return zlib.crc32(self.id.encode()) % 3 == 0


def files() -> list[str]:
    """The files that are mutated, below `FOLDER`."""
    others = ("__init__.py", "branches.py", "recursive.py")  # the last two are of trees alone
    serving = sorted(path.name for path in (FOLDER / "serving").glob("*.py") if path.name not in others)
    return [f"{name}.py" for name in ENGINES] + [f"serving/{name}" for name in serving]


def engines_of(file: str) -> tuple[str, ...]:
    """The engines that use a file."""
    if "/" not in file:
        return (file.removesuffix(".py"),)
    return ("exspec", "ragged") if file in _CACHES else ENGINES


def mutants(file: str, reached: Mapping[str, set[int]] | None = None) -> tuple[list[Mutant], Counter[str]]:
    """All mutants of a file, and how many changes were discarded, by reason.

    ``reached`` are the lines of the file that each engine runs; a change of any other line shows nothing.

    >>> mutants("ragged.py")[0][0].id
    'ragged.py:40:swap-elements:1'
    """
    source = (FOLDER / file).read_text(encoding="utf-8")
    edits = _Edits(source)
    seen = {f"{edits.at(one)[0]} {ast.dump(ast.Module([one], []))}" for one in ast.parse(source).body}
    numbers = Counter[tuple[int, str]]()
    found: list[Mutant] = []
    discarded = Counter[str]()
    for statement, edit in edits.all():
        changed = source[: edit.begin] + edit.text + source[edit.end :]
        begin, end = edits.at(statement)
        part = source[begin : edit.begin] + edit.text + source[edit.end : end]
        try:
            tree = f"{begin} {ast.dump(ast.parse(part))}"
        except SyntaxError:
            discarded["no Python"] += 1
            continue
        if tree in seen:
            discarded["the same as another"] += 1
            continue
        seen.add(tree)
        line = source.count("\n", 0, edit.begin) + 1
        last = source.count("\n", 0, edit.end) + 1
        numbers[line, edit.operator] += 1
        name = f"{file}:{line}:{edit.operator}:{numbers[line, edit.operator]}"
        engines = engines_of(file)
        if reached is not None:
            engines = tuple(e for e in engines if reached[e] & set(range(line, last + 1)))
        if not engines:
            discarded["never run"] += 1
            continue
        engine = engines[zlib.crc32(name.encode()[::-1]) % len(engines)]
        before = source[edit.begin : edit.end]
        found.append(Mutant(name, file, line, edit.function, edit.operator, before, edit.text, changed, engine))
    return found, discarded


def outside_functions(file: str) -> set[int]:
    """The lines of a file that run when it is imported: all but the bodies of functions."""
    source = (FOLDER / file).read_text(encoding="utf-8")
    lines = set(range(1, source.count("\n") + 2))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            lines -= set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return lines


def spread(population: list[Mutant], seed: int) -> list[Mutant]:
    """The mutants in a random order in which files, functions and operators take turns."""
    draw = random.Random(seed)
    groups: dict[str, dict[tuple[str, str], list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in population:
        groups[mutant.file][mutant.function, mutant.operator].append(mutant)
    queues = []
    for file in sorted(groups):
        cells = [groups[file][key] for key in sorted(groups[file])]
        for cell in cells:
            draw.shuffle(cell)
        queue: list[Mutant] = []
        while any(cells):
            draw.shuffle(cells)
            queue += [cell.pop() for cell in cells if cell]
        queues.append(queue)
    # Each file has its turns evenly over the whole order, so that every part of it has all files in proportion.
    placed = [((n + 0.5) / len(queue), i, mutant) for i, queue in enumerate(queues) for n, mutant in enumerate(queue)]
    return [mutant for _, _, mutant in sorted(placed, key=lambda one: one[:2])]


@dataclass(frozen=True)
class _Edit:
    operator: str
    function: str
    begin: int
    end: int
    text: str


class _Edits:
    """Every edit of a source text."""

    def __init__(self, source: str) -> None:
        assert source.isascii(), "columns of the syntax tree count bytes"
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.function = ""

    def all(self) -> Iterator[tuple[ast.stmt, _Edit]]:
        """Each with the outermost statement that it is in."""
        for statement in ast.parse(self.source).body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for edit in self._below(statement):
                    yield statement, edit

    def _below(self, node: ast.AST) -> Iterator[_Edit]:
        """Edits in a node, annotations, decorators, texts and messages left out."""
        outer = self.function
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.function = f"{outer}.{node.name}".lstrip(".")
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "ctx"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.Raise | ast.JoinedStr | ast.ImportFrom | ast.Import | ast.Assert):
                    continue
                if isinstance(child, ast.keyword) and child.arg == "strict":
                    continue  # lengths are equal in a right engine and in almost every wrong one
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                    continue
                if isinstance(child, ast.AST):
                    yield from self._below(child)
        self.function = outer

    def at(self, node: ast.AST) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        begin, end = self.at(node)
        text = self.source[begin:end]
        atomic = (
            ast.Name | ast.Constant | ast.Call | ast.Subscript | ast.Attribute | ast.List | ast.Tuple | ast.ListComp
        )
        return text if isinstance(node, atomic) else f"({text})"

    def _replace(self, operator: str, node: ast.AST, text: str) -> _Edit:
        return _Edit(operator, self.function, *self.at(node), text)

    def _between(self, operator: str, left: ast.AST, right: ast.AST, old: str, new: str) -> Iterator[_Edit]:
        """Replace the operator that stands between two operands."""
        begin, end = self.at(left)[1], self.at(right)[0]
        gap = self.source[begin:end]
        if old in gap:
            yield _Edit(operator, self.function, begin, end, gap.replace(old, new, 1))

    def _of(self, node: ast.AST) -> Iterator[_Edit]:
        if isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            old, new = _COMPARE[type(node.ops[0])]
            yield from self._between("compare", node.left, node.comparators[0], old, new)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            yield from self._between("arithmetic", node.left, node.right, old, new)
            if isinstance(node.op, ast.Add):
                yield self._replace("swap-operands", node, f"{self._text(node.right)} + {self._text(node.left)}")
            for side, other in ((node.left, "left"), (node.right, "right")):
                yield self._replace(f"drop-{other}", node, self._text(node.right if side is node.left else node.left))
        elif isinstance(node, ast.Slice):
            yield from self._slice(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            for text in (f"{node.slice.id} - 1", "0"):
                yield self._replace("index", node.slice, text)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) == 2:
            text = f"{self._text(node.elts[1])}, {self._text(node.elts[0])}"
            yield self._replace("swap-elements", node, f"[{text}]" if isinstance(node, ast.List) else f"({text})")
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._twin(node)
        yield from self._statement(node)
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        for test in tests:
            yield self._replace("negate", test, f"not {self._text(test)}")
            yield self._replace("always", test, "True")
            if not isinstance(node, ast.While):
                yield self._replace("never", test, "False")
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from self._between("and-or", node.values[0], node.values[1], old, new)
            for value in node.values:
                yield self._replace("drop-condition", node, self._text(value))

    def _constant(self, node: ast.Constant) -> Iterator[_Edit]:
        if isinstance(node.value, bool):
            yield self._replace("true-false", node, str(not node.value))
        elif isinstance(node.value, int):
            yield self._replace("plus-one", node, str(node.value + 1))
            yield self._replace("minus-one", node, str(node.value - 1))

    def _slice(self, node: ast.Slice) -> Iterator[_Edit]:
        for name, bound in (("lower", node.lower), ("upper", node.upper)):
            if bound is not None:
                for step in ("+ 1", "- 1"):
                    yield self._replace(f"slice-{name}", bound, f"{self._text(bound)} {step}")
                yield self._replace(f"no-{name}", bound, "")

    def _call(self, node: ast.Call) -> Iterator[_Edit]:
        if len(node.args) >= 2 and not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
            begin, end = self.at(node.args[0])[0], self.at(node.args[1])[1]
            text = f"{self._text(node.args[1])}, {self._text(node.args[0])}"
            yield _Edit("swap-arguments", self.function, begin, end, text)
        for word in node.keywords:
            if word.arg != "strict":
                begin, end = self.at(word)
                comma = len(self.source[end:]) - len(self.source[end:].lstrip(", \n"))
                yield _Edit("drop-keyword", self.function, begin, end + comma, "")
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TRANSPARENT:
            yield self._replace("drop-call", node, self._text(node.func.value))
        if isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS and node.args:
            yield self._replace("drop-call", node, self._text(node.args[0]))

    def _twin(self, node: ast.Name | ast.Attribute) -> Iterator[_Edit]:
        name = node.id if isinstance(node, ast.Name) else node.attr
        if isinstance(node.ctx, ast.Load) and name in _TWINS:
            end = self.at(node)[1]
            yield _Edit("twin", self.function, end - len(name), end, _TWINS[name])

    def _statement(self, node: ast.AST) -> Iterator[_Edit]:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
            yield self._replace("drop", node, "pass")
        if isinstance(node, ast.Continue | ast.Break):
            yield self._replace("drop", node, "pass")
        if isinstance(node, ast.AugAssign):
            yield self._replace("drop", node, "pass")
            yield from self._between("arithmetic", node.target, node.value, "+=", "-=")
            yield from self._between("assign", node.target, node.value, "+=", "=")
            yield from self._between("assign", node.target, node.value, "|=", "=")
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            yield self._replace("drop", node, "pass")
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name | ast.Call | ast.BinOp):
            yield self._replace("return", node.value, f"{self._text(node.value)} + 1")
