"""The Markdown file of a kind, read into its record.

The front matter is TOML between lines of ``+++``: the ``kind``, and ``reports``, the links of each cause by its number.
The body has three sections: a paragraph, a numbered list, and a paragraph.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from eqcheck.contract.errors import EqcheckError
from eqcheck.explanation.handbook.record import Cause, Explained

_HERE = Path(__file__).parent
_CAUSE = re.compile(r"(\d+)\. (.+\n(?: {3}.+\n)*)")
_LAYOUT = re.compile(
    r"\+\+\+\n(?P<front>(?:.*\n)+?)\+\+\+\n"
    r"\n## Example\n\n(?P<example>(?:[^#\n].*\n)+)"
    r"\n## Usual root causes\n\n(?P<causes>(?:\d+\. .+\n(?: {3}.+\n)*)+)"
    r"\n## How to fix it\n\n(?P<fix>(?:[^#\n].*\n)+)"
)


class _Front(msgspec.Struct, forbid_unknown_fields=True):
    """The data of a file; ``reports`` has ``owner/repository#number`` or addresses, by the number of their cause."""

    kind: str
    reports: dict[int, tuple[str, ...]] = {}


def read(fingerprint: str) -> Explained:
    """The record of a kind; an `EqcheckError` says where its file is malformed."""
    try:
        return parsed(fingerprint, (_HERE / f"{fingerprint}.md").read_text(encoding="utf-8"))
    except ValueError as error:  # msgspec raises ValueErrors, too
        raise EqcheckError(f"eqcheck/explanation/handbook/{fingerprint}.md: {error}") from error


def parsed(fingerprint: str, text: str) -> Explained:
    """The record that a file's text holds; a malformed one is a ValueError."""
    found = _LAYOUT.fullmatch(text)
    if not found:
        raise ValueError("expected front matter, then the sections Example, Usual root causes and How to fix it")
    front = msgspec.toml.decode(found["front"], type=_Front)
    if front.kind != fingerprint:
        raise ValueError(f"expected the kind {fingerprint!r}, got {front.kind!r}")
    listed = [(int(number), _line(what)) for number, what in _CAUSE.findall(found["causes"])]
    numbers = [number for number, _ in listed]
    if numbers != [*range(1, len(numbers) + 1)]:
        raise ValueError(f"expected causes numbered from 1, got {numbers}")
    if strange := front.reports.keys() - {*numbers}:
        raise ValueError(f"there are reports of the causes {sorted(strange)}, and the causes {numbers}")
    causes = tuple(Cause(what, front.reports.get(number, ())) for number, what in listed)
    return Explained(_line(found["example"]), causes, _line(found["fix"]))


def _line(text: str) -> str:
    """A paragraph without its line breaks."""
    return " ".join(text.split())
