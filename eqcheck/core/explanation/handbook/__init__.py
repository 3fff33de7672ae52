"""Read the handbook: for each kind of fault what happens, its usual causes, how to tell it, and how to fix it.

    >>> chapter = about("mask/window")
    >>> print(chapter.causes[0].urls[0])
    https://github.com/huggingface/transformers/issues/48280

Each kind has one Markdown file, named after its fingerprint; it is read on request. The front matter is TOML between
lines of ``+++``: the ``kind``, and ``reports``, the links of each cause by its number (``owner/repository#number`` or
addresses). The body has four sections: `What happens` (a paragraph, and optionally a sample in a fence), Usual causes
(a numbered list), How to tell and How to fix it (a paragraph each).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import EqcheckError

_HERE = Path(__file__).parent
_CAUSE = re.compile(r"(\d+)\. (.+\n(?: {3}.+\n)*)")
_PARAGRAPH = r"(?:[^#\n`](?:.*)\n|`[^`].*\n)+"
_LAYOUT = re.compile(
    r"\+\+\+\n(?P<front>(?:.*\n)+?)\+\+\+\n"
    rf"\n## What happens\n\n(?P<what>{_PARAGRAPH})"
    r"(?:\n```\n(?P<sample>(?:(?!```).*\n)+)```\n)?"
    r"\n## Usual causes\n\n(?P<causes>(?:\d+\. .+\n(?: {3}.+\n)*)+)"
    rf"\n## How to tell\n\n(?P<signs>{_PARAGRAPH})"
    rf"\n## How to fix it\n\n(?P<fix>{_PARAGRAPH})"
)


@dataclass(frozen=True)
class RootCause:
    """Hold one usual cause, and where it was reported; ``links`` are ``owner/repository#number`` or addresses.

    >>> RootCause("A rollback does nothing.", ("ml-explore/mlx-lm#1109",)).urls
    ('https://github.com/ml-explore/mlx-lm/issues/1109',)
    """

    what: str
    links: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the links as addresses; GitHub redirects an issue's address to the pull request of that number."""
        return tuple(
            link if link.startswith("https://") else "https://github.com/" + link.replace("#", "/issues/")
            for link in self.links
        )


@dataclass(frozen=True)
class Chapter:
    """Hold what the handbook says about a kind.

    ``what`` happens, ``signs`` (how to tell it from what looks alike) and ``fix`` are one paragraph each. ``sample`` is
    a table or a pair of outputs to be printed line by line; it may be empty. Causes with reports come first.
    """

    what: str
    causes: tuple[RootCause, ...]
    signs: str
    fix: str
    sample: str = ""


def about(fingerprint: str) -> Chapter:
    """Return the chapter of a kind; raise an `EqcheckError` that names the file if it is malformed.

    >>> len(about("crash/hang").causes)
    3
    """
    try:
        return parsed(fingerprint, (_HERE / f"{fingerprint}.md").read_text(encoding="utf-8"))
    except ValueError as error:  # msgspec raises ValueErrors, too
        raise EqcheckError(f"eqcheck/core/explanation/handbook/{fingerprint}.md: {error}") from error


def parsed(fingerprint: str, text: str) -> Chapter:
    """Parse the text of a file; raise a ValueError if it is malformed."""
    import msgspec  # it takes longer to import than a file takes to read

    layout = _LAYOUT.fullmatch(text)
    if not layout:
        raise ValueError(
            "expected front matter, then the sections What happens, Usual causes, How to tell and How to fix it"
        )
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
    what, signs, fix = (_line(layout[part]) for part in ("what", "signs", "fix"))
    return Chapter(what, causes, signs, fix, (layout["sample"] or "").rstrip("\n"))


def _line(text: str) -> str:
    """Join the lines of a paragraph."""
    return " ".join(text.split())
