"""``[tool.eqcheck]`` of ``pyproject.toml``: the choices of a project for audits, for pytest and for the action.

[tool.eqcheck]
adapter = "mine.py"                  # or a list of them
profile = "ci"
known = "known.toml"                 # this file, mine.py and the folder of out lie beside pyproject.toml
out = "reports"
target = "llama"
options = ["--case-timeout", "90s"]  # more options of `eqcheck audit`
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eqcheck import __version__
from eqcheck.contract.errors import UsageError, did_you_mean, one_line
from eqcheck.contract.profiles import profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE, _TABLE = "pyproject.toml", "tool.eqcheck"
_LISTS = ("adapter", "options")


@dataclass(frozen=True)
class Configuration:
    """The values of the file; each is empty where it says nothing. Paths hold from the working directory."""

    adapter: tuple[str, ...] = ()
    profile: str = ""
    known: str = ""
    out: str = ""
    target: str = ""
    options: tuple[str, ...] = ()


def read(folder: Path) -> Configuration:
    """The configuration of the nearest ``pyproject.toml`` with the table, in this folder or above it.

    Raises `UsageError` for a key or a profile that there is not, and for a value of another type.
    """
    for place in (folder, *folder.parents):
        path = place / _FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "[tool.eq" in text and (table := _table(path, text)) is not None:
            return _configuration(path, table)
    return Configuration()


def _table(path: Path, text: str) -> Any:
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {one_line(str(error))}") from error
    tables = tool if isinstance(tool, dict) else {}
    for name in tables:
        if name.startswith("eq") and "eqcheck" not in tables and (near := did_you_mean(name, ["eqcheck"])):
            raise UsageError(f"{path}: there is no table [tool.{one_line(name)}]{near}")
    return tables.get("eqcheck")


def _configuration(path: Path, table: Any) -> Configuration:
    where, keys = f"{path}: [{_TABLE}]", [field.name for field in fields(Configuration)]
    if not isinstance(table, dict):
        raise UsageError(f"{where}: expected a table, got {one_line(repr(table), 100)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in keys:
            raise UsageError(
                f"{where}: unknown key {one_line(key)!r}{did_you_mean(key, keys) or '.'} Known: {', '.join(keys)}"
            )
        listed = [value] if key == "adapter" and isinstance(value, str) else value
        texts: list[Any] = listed if key in _LISTS and isinstance(listed, list) else [listed]
        if isinstance(listed, list) != (key in _LISTS) or not all(isinstance(text, str) for text in texts):
            kind = "a list of strings" if key in _LISTS else "a string"
            raise UsageError(f"{where}: {key}: expected {kind}, got {one_line(repr(value), 100)}")
        found = [_from_here(path.parent, key, text) for text in texts]
        values[key] = tuple(found) if key in _LISTS else found[0]
    if named := values.get("profile"):
        try:
            profile(named, __version__)  # also where the command line says another draw
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return Configuration(**values)


def _from_here(folder: Path, key: str, text: str) -> str:
    """A path of the file as it is from the working directory; other values as they are."""
    file = text.rpartition(":")[0] if ".py:" in text else text
    paths = key in ("known", "out") or (key == "adapter" and file.endswith(".py"))
    if not paths or not text or folder == Path.cwd() or Path(file).is_absolute():
        return text
    return os.path.relpath(folder / file) + text[len(file) :]
