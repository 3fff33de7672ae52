"""The imports of an adapter file, kept apart from those of other adapters and of the program around them.

Two repositories may each have a top-level ``utils``. Modules that only an adapter can find, in its own folder or in one
that it puts on ``sys.path``, are in ``sys.modules`` while its code runs and not otherwise, and so are its folders on
``sys.path``.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from os.path import abspath
from pathlib import Path
from types import ModuleType

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
