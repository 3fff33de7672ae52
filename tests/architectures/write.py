"""The table of architectures as Markdown, made from what was found."""

from __future__ import annotations

from collections.abc import Sequence

from architectures.hold import Held


def table(found: Sequence[Held]) -> str:
    """All of ``benchmarks/architectures.md``."""
    return ""
