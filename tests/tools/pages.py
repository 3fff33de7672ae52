"""Reports for tests of pages: real ones with stories, and such with the same text in every field."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eqcheck.core.result.outcome import DrawnCall, DrawnQuery, DrawnRound, DrawnRow, DrawnSlot, Story
from eqcheck.report import load
from eqcheck.report.schema import Report, from_builtins, to_builtins

ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror=alert(1)></p></script></style>\"'><b>\x1b[2J\x07\u202e{{ 7*7 }}\ud800"
_FIXED = ("format", "verdict", "lane")


def a_story(text: str = "", rows: int = 1, slots: int = 15) -> Story:
    """A row whose query in column 0 carries a wrong position, sees a rejected draft, and misses a token."""
    size = slots - 3
    held = (
        *(
            DrawnSlot(f"position {n}{text}", 100 + n, n, True, f"call 1, column {n}{text}", "token")
            for n in range(size)
        ),
        DrawnSlot(f"rejected draft at position {size}{text}", 62, size, None, f"call 2, column 1{text}", "draft"),
        DrawnSlot(f"position {size}{text}", 104, size + 1, False, f"call 3, column 0{text}", "token"),
        DrawnSlot(f"never written{text}", None, None, None, "", "blank"),
    )
    seen, right = "0" + "1" * (size + 1) + "0", "1" * size + "010"
    wrong = DrawnQuery(0, f"position {size}{text}", 104, size + 1, size, seen, right, 73, 12)
    later = DrawnQuery(1, f"draft at position {size + 1}{text}", 7, size + 1, size + 1, right, right, 5, 5)
    drawn = [DrawnRow(row, row, 2, held, (wrong, later)) for row in range(rows)]
    other = DrawnRow(rows, None, 0, held[:2], (DrawnQuery(0, text, 1, 1, None, "11", "", 5, None),))
    call = DrawnCall(3, f"target{text}", False, (*drawn, other), {"0": (104, 73)}, left_out=2)
    rounds = (
        DrawnRound(1, 2, (104, 62), 1, f"correction{text}", 9, (104, 9)),
        DrawnRound(2, 3, (73,), 1, f"bonus{text}", 7, (73, 7)),
    )
    leaves = (DrawnRound(1, 2, (5, 6), 0, f"correction{text}", 3, (3,)),)
    return Story(0, rounds, call, 0, 0, (rounds, leaves))


def told(name: str, story: Story | None = None) -> Report:
    """A committed report, with the story in each of its violations."""
    report = load(ROOT / "reports" / name)
    return replace(report, violations=tuple(replace(one, story=story) for one in report.violations))


def filled(name: str, text: str, kept: tuple[str, ...] = ()) -> Report:
    """A committed report with a story, with the text behind every text in it; ``kept`` are fields left as they are."""
    data = to_builtins(told(name, a_story()))
    return from_builtins(_filled(data, text, (*_FIXED, *kept)))


def _filled(data: Any, text: str, kept: tuple[str, ...], name: str = "", inside_axis: bool = False) -> Any:
    if isinstance(data, str):
        return data if name in kept else data + text
    if isinstance(data, dict):
        free = name in ("versions", "coverage", "declined", "matrix", "cache_states", "reached", "draft_losses")
        free |= name in ("axes", "case", "facts", "regimes", "fingerprints") or inside_axis
        return {key + text * free: _filled(value, text, kept, key, name == "axes") for key, value in data.items()}
    return [_filled(one, text, kept, name) for one in data] if isinstance(data, list) else data


def many_causes(count: int, rows: int = 4, slots: int = 60) -> Report:
    """A report with so many causes, each with the story of a large call."""
    report = told("showcase/bsp", a_story(rows=rows, slots=slots))
    one = report.violations[0]
    return replace(report, violations=tuple(replace(one, fingerprint=f"{one.fingerprint}:{n}") for n in range(count)))


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs), dict(attrs).get("class") or ""))


def elements(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    """Every element of a page in order: its name, the names of its attributes, its classes."""
    parser = _Elements()
    parser.feed(text)
    return parser.found


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """What is printed from here on goes to a terminal so wide."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
