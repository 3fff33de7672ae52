"""Every kind of fault explained: an example, what usually causes it, and how it is mended; one Markdown file a kind.

    >>> said = about("mask/window")
    >>> print(said.causes[0].urls[0])
    https://github.com/huggingface/transformers/issues/48280

`eqcheck.contract.kinds` says what a kind means. Its file is named after its fingerprint, and is read when it is asked
for. The front matter is TOML between lines of ``+++``: the ``kind``, and ``reports``, the links of each cause by its
number (``owner/repository#number`` or addresses). The body has three sections: a paragraph, a numbered list, and a
paragraph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import EqcheckError

_HERE = Path(__file__).parent
_CAUSE = re.compile(r"(\d+)\. (.+\n(?: {3}.+\n)*)")
_LAYOUT = re.compile(
    r"\+\+\+\n(?P<front>(?:.*\n)+?)\+\+\+\n"
    r"\n## Example\n\n(?P<example>(?:[^#\n].*\n)+)"
    r"\n## Usual root causes\n\n(?P<causes>(?:\d+\. .+\n(?: {3}.+\n)*)+)"
    r"\n## How to fix it\n\n(?P<fix>(?:[^#\n].*\n)+)"
)


@dataclass(frozen=True)
class RootCause:
    """One usual root cause, and where it was reported; ``links`` are ``owner/repository#number`` or addresses.

    >>> RootCause("A rollback does nothing.", ("ml-explore/mlx-lm#1109",)).urls
    ('https://github.com/ml-explore/mlx-lm/issues/1109',)
    """

    what: str
    links: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """The links as addresses; the site leads from an issue's address to the pull request of that number."""
        return tuple(
            link if link.startswith("https://") else "https://github.com/" + link.replace("#", "/issues/")
            for link in self.links
        )


@dataclass(frozen=True)
class Chapter:
    """A worked example, the usual root causes, those with reports first, and how to mend it; all of it in sentences."""

    example: str
    causes: tuple[RootCause, ...]
    fix: str


def about(fingerprint: str) -> Chapter:
    """The explanation of a kind; a malformed file is an `EqcheckError` that names the kind.

    >>> len(about("crash/hang").causes)
    3
    """
    try:
        return parsed(fingerprint, (_HERE / f"{fingerprint}.md").read_text(encoding="utf-8"))
    except ValueError as error:  # msgspec raises ValueErrors, too
        raise EqcheckError(f"eqcheck/explanation/handbook/{fingerprint}.md: {error}") from error


def parsed(fingerprint: str, text: str) -> Chapter:
    """The chapter that a file's text holds; a malformed one is a ValueError."""
    import msgspec  # it takes longer to import than a file takes to read

    layout = _LAYOUT.fullmatch(text)
    if not layout:
        raise ValueError("expected front matter, then the sections Example, Usual root causes and How to fix it")
    fields: list[Any] = [("kind", str), ("reports", dict[int, tuple[str, ...]], {})]
    shape: Any = msgspec.defstruct("Front", fields, forbid_unknown_fields=True)
    front = msgspec.toml.decode(layout["front"], type=shape)
    if front.kind != fingerprint:
        raise ValueError(f"expected the kind {fingerprint!r}, got {front.kind!r}")
    listed = [(int(number), _line(what)) for number, what in _CAUSE.findall(layout["causes"])]
    numbers = [number for number, _ in listed]
    if numbers != [*range(1, len(numbers) + 1)]:
        raise ValueError(f"expected causes numbered from 1, got {numbers}")
    if strange := front.reports.keys() - {*numbers}:
        raise ValueError(f"there are reports of the causes {sorted(strange)}, and the causes {numbers}")
    causes = tuple(RootCause(what, front.reports.get(number, ())) for number, what in listed)
    return Chapter(_line(layout["example"]), causes, _line(layout["fix"]))


def _line(text: str) -> str:
    """A paragraph without its line breaks."""
    return " ".join(text.split())
