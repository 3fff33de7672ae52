"""From an adapter spec to a decoder.

A spec is ``NAME`` (shipped here, or an ``eqcheck.adapters`` entry point), ``package.module:attr``, or
``path/to/file.py:attr``, where ``:attr`` may be left out when the module registers one decoder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pkgutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from eqcheck.contract import Decoder
from eqcheck.errors import UsageError, did_you_mean
from eqcheck.modules import OwnModules
from eqcheck.plain import printable

GROUP = "eqcheck.adapters"
_PACKAGES = ("eqcheck.reference_impls", "eqcheck.adapters")
_own_modules: dict[str, OwnModules] = {}  # of each adapter file, by the name that its own module has here


def shipped() -> dict[str, str]:
    """Name to module of every decoder that comes with eqcheck."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        for module in pkgutil.iter_modules(import_module(package).__path__):
            if not module.ispkg:
                found[module.name] = f"{package}.{module.name}"
    return found


def self_contained() -> list[str]:
    """The shipped decoders that need no environment or server of their own."""
    return [name for name in shipped() if not load(name).checkpoints]


def names() -> list[str]:
    """Every name `load` knows: shipped decoders and entry points, sorted.

    >>> {"eqspec", "exspec", "ragged"} <= set(names())
    True
    """
    return sorted({*shipped(), *(point.name for point in entry_points(group=GROUP))})


def names_code(spec: str) -> bool:
    """Whether a spec is a path or a module: code that nobody installed to be run under a name.

    >>> names_code("eqspec"), names_code("mine.py"), names_code("package.module:attr")
    (False, True, True)
    """
    return (":" in spec or spec.endswith(".py")) and spec not in names()


def load(spec: str) -> Decoder:
    """The decoder a spec names.

        >>> load("eqspec").name
        'eqspec'

    Raises `UsageError` when nothing has that name, the module cannot be imported, or it does not register
    exactly one decoder and ``:attr`` is missing.
    """
    if spec != printable(spec):
        raise UsageError(f"adapter {spec!a}: expected printable text")
    source, colon, attr = spec.rpartition(":")
    if not colon or source == "" or "\\" in attr or "/" in attr:
        source, attr = spec, ""
    if source.endswith(".py"):
        path = Path(source).resolve()
        imported = _import_file(path)
        found = _pick(imported, attr, spec).named(f"{path}:{attr}" if attr else str(path))
        return replace(found, inside=_own_modules.get(imported.__name__, nullcontext))
    if attr:
        return _pick(_import_name(source, spec), attr, spec).named(spec)
    modules = shipped()
    if spec in modules:
        return _pick(_import_name(modules[spec], spec), "", spec).named(spec)
    for point in entry_points(group=GROUP):
        if point.name == spec:
            module, _, attr = point.value.partition(":")
            return _pick(_import_name(module.strip(), spec), attr.strip(), spec).named(spec)
    raise UsageError(
        f"unknown adapter {spec!r}{did_you_mean(spec, names()) or '.'} Known: {', '.join(names())}; "
        "or give package.module:attr or path/to/file.py:attr"
    )


def _import_name(module: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"adapter {spec!r}: expected package.module:attr, got the module name {module!r}")
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"adapter {spec!r}: cannot import {module}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"adapter file {path}: there is no such file")
    for package in _PACKAGES:  # a shipped module may import its neighbours
        if any(path.parent == Path(folder).resolve() for folder in import_module(package).__path__):
            return _import_name(f"{package}.{path.stem}", str(path))
    name = f"eqcheck_adapter_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
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


def _pick(module: ModuleType, attr: str, spec: str) -> Decoder:
    found = {key: value for key, value in vars(module).items() if isinstance(value, Decoder)}
    if attr:
        if attr in found:
            return found[attr]
        if hasattr(module, attr):
            raise UsageError(f"adapter {spec!r}: {attr!r} is not registered as a decoder; put @eqcheck.decoder() on it")
        raise UsageError(
            f"adapter {spec!r}: no decoder {attr!r}; found: {', '.join(found) or 'none'}{did_you_mean(attr, found)}"
        )
    distinct = list({id(value): value for value in found.values()}.values())
    if len(distinct) == 1:
        return distinct[0]
    what = (
        "no decoder; put @eqcheck.decoder() on a function (target, draft, request)"
        if not found
        else (f"{len(distinct)} decoders; name one with :attr, of {', '.join(found)}")
    )
    raise UsageError(f"adapter {spec!r}: the module registers {what}")
