"""Find the decoder that an adapter spec names.

A spec is ``NAME`` (shipped here, or an ``eqcheck.adapters`` entry point), ``package.module:attr``, or
``path/to/file.py:attr``, where ``:attr`` may be left out when the module registers one decoder.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import find_spec
from os.path import abspath
from pathlib import Path
from types import ModuleType
from typing import Any

from eqcheck.contract.decoders import CLAIMED, Decoder
from eqcheck.contract.errors import UsageError, did_you_mean, printable

# The imports of an adapter file, kept apart from those of other adapters and of the program around them.
#
# Two repositories may each have a top-level ``utils``. Modules that only an adapter can find, in its own folder or in
# one that it puts on ``sys.path``, are in ``sys.modules`` while its code runs and not otherwise, and so are its
# folders on ``sys.path``.

_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class OwnModules:
    """The modules of one adapter file; calling it gives a context in which they are what ``import`` finds.

    Contexts may be nested, also those of several adapters. A module that was imported from elsewhere, under a name that
    the adapter's folders have too, steps aside in the meantime; installed libraries never do. ``late`` says that the
    adapter put a folder on ``sys.path`` for which one should have stepped aside: what it has imported may be wrong.
    """

    def __init__(self, folder: Path) -> None:
        self._path = [str(folder), *sys.path]  # as the adapter's code left it
        self._folders = set() if _installed(str(folder)) else {str(folder)}  # that are its own
        self._modules: dict[str, ModuleType] = {}
        self.late = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        path, homonyms = list(sys.path), self._homonyms()
        aside = {name: sys.modules.pop(name) for name in [*homonyms, *(sys.modules.keys() & self._modules.keys())]}
        sys.modules.update(self._modules)
        sys.path[:] = [*self._path, *(entry for entry in path if entry not in self._path)]
        before = set(sys.modules)
        try:
            yield
        finally:
            self._path = list(sys.path)
            added = {abspath(entry) for entry in self._path} - {abspath(entry) for entry in path}
            self._folders |= {entry for entry in added if not _installed(entry)}
            self._take(sys.modules.keys() - before, path)
            sys.modules.update(aside)
            self.late = not set(self._homonyms()) <= set(homonyms)

    def forget(self) -> None:
        """Import everything anew next time."""
        self._modules.clear()

    def _take(self, new: set[str], path: list[str]) -> None:
        """Take the adapter's modules out of ``sys.modules``, also the ``new`` ones if no other folder has them."""
        homes = {name: _home(_spec(name)) for name in map(_top, new) if name != "eqcheck"}
        tops = {_top(name) for name in self._modules} | {name for name, home in homes.items() if home in self._folders}
        found = {name: sys.modules[name] for name in new | self._modules.keys() if name in sys.modules}
        self._modules = {name: module for name, module in found.items() if _top(name) in tops}
        for name in self._modules:
            del sys.modules[name]
        sys.path[:] = path  # not before, for a package without a file looks up its home there
        shared = {name for name in tops & homes.keys() if _home(_reachable(name)) == homes[name]}
        for name in [name for name in self._modules if _top(name) in shared]:
            sys.modules[name] = self._modules.pop(name)

    def _homonyms(self) -> list[str]:
        """The modules that were taken from elsewhere and hide some of the adapter's folders."""
        names = {name for folder in self._folders for name in _names(folder)} - self._modules.keys() - {"eqcheck"}
        hiding = set()
        for name in names:
            if name in sys.modules and (home := _home(_spec(name))) and home not in self._folders:
                hiding |= set() if _installed(home) else {name}
        return [name for name in sys.modules if _top(name) in hiding] if hiding else []


def _top(name: str) -> str:
    return name.partition(".")[0]


def _spec(name: str) -> ModuleSpec | None:
    return getattr(sys.modules.get(name), "__spec__", None)


def _reachable(name: str) -> ModuleSpec | None:
    """Return how a module that is not imported would be found."""
    try:
        return find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None


def _home(spec: ModuleSpec | None) -> str:
    """The folder in which a top-level module or package was found; empty for what has no file."""
    if spec is None:
        return ""
    if spec.submodule_search_locations is not None:
        return str(Path(next(iter(spec.submodule_search_locations), "")).parent)
    return str(Path(spec.origin).parent) if spec.has_location and spec.origin else ""


def _installed(folder: str) -> bool:
    return folder.startswith(_LIBRARY) or not {"site-packages", "dist-packages"}.isdisjoint(Path(folder).parts)


@cache
def _names(folder: str) -> frozenset[str]:
    """The modules that may be imported from a folder, as it was when first asked."""
    try:
        return frozenset(path.name.partition(".")[0] for path in Path(folder).iterdir())
    except OSError:
        return frozenset()


GROUP = "eqcheck.adapters"
_PACKAGES = ("eqcheck.reference_impls", "eqcheck.adapters")
_own_modules: dict[str, OwnModules] = {}  # of each adapter file, by the name that its own module has here


def shipped() -> dict[str, str]:
    """Map the name of every shipped decoder to its module; a module may register several."""
    modules: dict[str, str] = {}
    for package in _PACKAGES:
        for module in pkgutil.iter_modules(import_module(package).__path__):
            if not module.ispkg:
                name = f"{package}.{module.name}"
                modules |= dict.fromkeys(_registrations(name)[0], name)
    return modules


@lru_cache(maxsize=64)
def _registrations(module: str) -> tuple[dict[str, ast.Call], dict[str, Any]]:
    """Return the calls by which a shipped module registers decoders, by name, and its constants."""
    package, _, stem = module.rpartition(".")
    (path,) = (file for folder in import_module(package).__path__ if (file := Path(folder, f"{stem}.py")).is_file())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value.value if isinstance(node.value, ast.Constant) else node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, (ast.Constant, ast.Dict))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    calls = {
        ast.literal_eval(word.value): call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "eqcheck.decoder"
        for word in call.keywords
        if word.arg == "name"
    }
    return calls, constants


@dataclass(frozen=True)
class Declared:
    """Hold what a decoder declares in its source, read without importing its module, which would be slow."""

    families: tuple[str, ...] = CLAIMED
    padding_sides: tuple[str, ...] = ("left",)
    known: tuple[str, ...] = ()
    origin: str = ""
    checkpoints: bool = False
    dtype: str = "float32"
    kinds: tuple[str, ...] = ("full",)


def declared(name: str) -> Declared:
    """Read what a shipped decoder declares; known violations of some engine versions only are marked.

    >>> declared("hf_pr").known
    ('bookkeeping/premature-stop',)
    """
    calls, constants = _registrations(shipped()[name])
    given: dict[str, ast.expr] = {}
    for word in calls[name].keywords:
        shared = constants.get(word.value.id) if not word.arg and isinstance(word.value, ast.Name) else None
        if isinstance(shared, ast.Dict):  # claims of several decoders, handed over with **
            given |= {
                str(ast.literal_eval(key)): claim for key, claim in zip(shared.keys, shared.values, strict=True) if key
            }
        else:
            given[str(word.arg)] = word.value

    def value(node: ast.expr) -> Any:
        return constants.get(node.id, "") if isinstance(node, ast.Name) else ast.literal_eval(node)

    claims = {
        claim.name: value(given[claim.name])
        for claim in fields(Declared)
        if claim.name in given and claim.name != "known" and not _computed(given[claim.name])
    }
    known = given.get("known")
    versions = " (in some versions)" if isinstance(known, ast.IfExp) else ""
    listed = known.body if isinstance(known, ast.IfExp) else known
    keys = [f"{value(key)}{versions}" for key in listed.keys if key] if isinstance(listed, ast.Dict) else []
    return Declared(**claims, known=tuple(keys))


def _computed(claim: ast.expr) -> bool:
    """Return whether a declared value is known only after the module is imported."""
    return any(isinstance(part, ast.Call) for part in ast.walk(claim))


def self_contained() -> list[str]:
    """List the shipped decoders that need no environment or server of their own."""
    return [name for name in shipped() if not declared(name).checkpoints]


def names() -> list[str]:
    """List every name that `load` accepts: shipped decoders and entry points, sorted.

    >>> {"eqspec", "exspec", "ragged"} <= set(names())
    True
    """
    return sorted({*shipped(), *(point.name for point in entry_points(group=GROUP))})


def names_code(spec: str) -> bool:
    """Return whether a spec is a path or a module, not the name of an installed decoder.

    >>> names_code("eqspec"), names_code("mine.py"), names_code("package.module:attr")
    (False, True, True)
    """
    return (":" in spec or spec.endswith(".py")) and spec not in names()


def named(spec: str) -> tuple[str, str]:
    """Split a spec into file, module or name, and attribute; raise `UsageError` if there is no such thing.

    Nothing that the spec names is imported.
    """
    if spec != printable(spec):
        raise UsageError(f"adapter {spec!a}: expected printable text")
    source, colon, attr = spec.rpartition(":")
    if not colon or source == "" or "\\" in attr or "/" in attr:
        source, attr = spec, ""
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise UsageError(f"adapter file {Path(source).resolve()}: there is no such file")
    elif not attr and spec not in names():
        raise UsageError(
            f"unknown adapter {spec!r}{did_you_mean(spec, names()) or '.'} Known: {', '.join(names())}; "
            "or give package.module:attr or path/to/file.py:attr"
        )
    return source, attr


def load(spec: str) -> Decoder:
    """Load the decoder that a spec names.

        >>> load("eqspec").name
        'eqspec'

    Raises `UsageError` if nothing has that name, if the module cannot be imported, or if it registers several decoders
    (or none) and the spec has no ``:attr``.
    """
    source, attr = named(spec)
    if source.endswith(".py"):
        path = Path(source).resolve()
        imported = _import_file(path)
        found = _pick(imported, attr, spec).named(f"{path}:{attr}" if attr else str(path))
        return replace(found, inside=_own_modules.get(imported.__name__, nullcontext))
    if attr:
        return _pick(_import_name(source, spec), attr, spec).named(spec)
    modules = shipped()
    if spec in modules:
        registered = vars(_import_name(modules[spec], spec)).values()
        return next(one for one in registered if isinstance(one, Decoder) and one.name == spec).named(spec)
    for point in entry_points(group=GROUP):
        if point.name == spec:
            module, _, attr = point.value.partition(":")
            return _pick(_import_name(module.strip(), spec), attr.strip(), spec).named(spec)
    raise AssertionError(spec)


def _import_name(module: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"adapter {spec!r}: expected package.module:attr, got the module name {module!r}")
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"adapter {spec!r}: cannot import {module}: {type(error).__name__}: {error}") from error


class _Uncached(SourceFileLoader):
    """Read the source and no bytecode.

    On a full disk Python before 3.12.8 and 3.13.1 caches half of the bytecode, and the file cannot be imported again.
    """

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode is kept")


def _import_file(path: Path) -> ModuleType:
    for package in _PACKAGES:  # a shipped module may import its neighbours
        if any(path.parent == Path(folder).resolve() for folder in import_module(package).__path__):
            return _import_name(f"{package}.{path.stem}", str(path))
    name = f"eqcheck_adapter_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path, loader=_Uncached(name, str(path)))
    assert module_spec is not None
    assert module_spec.loader is not None
    if path.stem not in sys.modules and path.stem in _imports(path):
        raise UsageError(
            f"adapter file {path}: it imports {path.stem!r} and gets itself, for it hides the package of this name; "
            f"rename the file, say to {path.stem}_adapter.py"
        )
    own = OwnModules(path.parent)
    for _ in range(2):
        own.forget()
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[name] = module
        failure: BaseException | None = None
        try:
            with own():
                module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            failure = error
        if not own.late:
            break
    if failure is not None:
        del sys.modules[name]
        raise UsageError(f"adapter file {path}: cannot import it: {type(failure).__name__}: {failure}") from failure
    _own_modules[name] = own
    return module


def _imports(path: Path) -> set[str]:
    """Return the top-level names that a file imports, anywhere in it; empty if it is not readable Python."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def _pick(module: ModuleType, attr: str, spec: str) -> Decoder:
    decoders = {key: value for key, value in vars(module).items() if isinstance(value, Decoder)}
    if attr:
        if attr in decoders:
            return decoders[attr]
        if hasattr(module, attr):
            raise UsageError(f"adapter {spec!r}: {attr!r} is not registered as a decoder; put @eqcheck.decoder() on it")
        there = f"{', '.join(decoders) or 'none'}{did_you_mean(attr, decoders)}"
        raise UsageError(f"adapter {spec!r}: no decoder {attr!r}; found: {there}")
    distinct = list({id(value): value for value in decoders.values()}.values())
    if len(distinct) == 1:
        return distinct[0]
    what = (
        "no decoder; put @eqcheck.decoder() on a function (target, draft, request)"
        if not decoders
        else (f"{len(distinct)} decoders; name one with :attr, of {', '.join(decoders)}")
    )
    raise UsageError(f"adapter {spec!r}: the module registers {what}")
