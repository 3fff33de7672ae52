"""Check the packages that eqcheck needs: one line where an extra is missing, or transformers is newer than tested."""

from __future__ import annotations

from importlib.metadata import version
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

TRANSFORMERS = "5.24"
"""`.ci/run` tests a release of this series. There is no such line for torch, whose releases have broken nothing yet."""


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


def untested() -> str:
    """One line about an installed transformers that is newer than `TRANSFORMERS`, or nothing.

    Patch releases of the series count as tested.
    """
    from packaging.version import Version

    installed, own = version("transformers"), version("eqcheck")
    if Version(installed).release[:2] <= Version(TRANSFORMERS).release:
        return ""
    return (
        f"transformers {installed} is newer than eqcheck {own} is tested with ({TRANSFORMERS}). Before you act on a "
        f"violation, repeat it with: pip install 'transformers=={TRANSFORMERS}.*'"
    )
