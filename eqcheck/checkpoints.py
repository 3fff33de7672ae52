"""Checkpoints for engines: tiny models in a folder, their true continuations, and the judge of an engine's rows.

>>> import eqcheck.checkpoints
>>> eqcheck.checkpoints.built("full").next([1, 2, 3]) in range(256)
True
"""

from __future__ import annotations

from eqcheck.engines.construction.folder import Built as Built
from eqcheck.engines.construction.folder import built as built


def __getattr__(name: str) -> object:
    if name == "NAMES":  # what is built is looked up on first use: it needs numpy
        from eqcheck.engines.construction.layouts import LAYOUTS

        return tuple(LAYOUTS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
