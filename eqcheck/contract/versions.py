"""The newest transformers that eqcheck is tested with; a newer one is used all the same, with a word about it."""

from __future__ import annotations

from importlib.metadata import version

from eqcheck import __version__

TRANSFORMERS = "5.24"
"""`.ci/run` tests a release of this series. There is no such line for torch, whose releases have broken nothing yet."""


def untested() -> str:
    """One line about an installed transformers that is newer than `TRANSFORMERS`, or nothing.

    Patch releases of the series count as tested.
    """
    from packaging.version import Version

    installed = version("transformers")
    if Version(installed).release[:2] <= Version(TRANSFORMERS).release:
        return ""
    return (
        f"transformers {installed} is newer than eqcheck {__version__} is tested with ({TRANSFORMERS}). Before you "
        f"act on a violation, repeat it with: pip install 'transformers=={TRANSFORMERS}.*'"
    )
