"""Packages that an extra of eqcheck brings, and the one line where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from eqcheck.contract.errors import UsageError

EXTRAS = {
    "fsspec": "ray",
    "httpx": "gate",
    "hypothesis": "audit",
    "jinja2": "audit",
    "ray": "ray",
    "rich": "audit",
    "safetensors": "audit",
    "shtab": "completion",
}


def missing(package: str, what: str = "this") -> UsageError:
    """The error where a package of an extra is not installed: what needs it, and the command that brings it.

    >>> str(missing("rich", "eqcheck audit"))
    "eqcheck audit needs rich, which is not installed: pip install 'eqcheck[audit]'"
    """
    return UsageError(f"{what} needs {package}, which is not installed: pip install 'eqcheck[{EXTRAS[package]}]'")


def require(what: str, *packages: str) -> None:
    """Raise `missing` for the first of these packages that is not installed; imports none of them."""
    for package in packages:
        if find_spec(package) is None:
            raise missing(package, what)
