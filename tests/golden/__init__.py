"""The golden net: what some 400 decoded cases and the commands give, stored as text and compared byte by byte.

    make golden          compares, and prints what differs; exit code 1
    make golden-write    stores what is given now; say in CHANGES.md why that is truer

``cases/`` holds what is decoded, ``net/`` what came of it, a file for each group. The cases were chosen once, greedily,
so that each adds the most kinds, builds, families, padding sides, cache states and sentences of explanations. Left out
is what draws random numbers for greedy rows: there nothing seeds them, and no two audits agree. The net is the same on
every processor: numbers have a few digits, and evidence that is small is no number (`alike`, `golden.access.Shown`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NET, CASES = HERE / "net", HERE / "cases"
HEAD = "=== "  # begins the line that names an entry
WIDTH = 110
MOST, KEPT = 48, 32  # parts of a list that stand there; where there are more, the first ones and a digest of all
SHOWN = 400  # lines of differences
FEW = 1e3  # evidence below this says little, and differs by a percent from processor to processor
DIGITS = 6  # of other numbers: sums of floats end in other digits where a processor adds in another order

# What depends on the day, the place, the speed of the machine and what is installed, and so says nothing of eqcheck.
_PACKAGES = "eqcheck|python|torch|transformers|hypothesis"
_LINE = r"(?<!\\)\\n"  # where a line ends, in JSON
_VOLATILE = (
    (r'("(?:elapsed_s|cases_per_second)": )[0-9.]+', r"\1TIME"),
    (rf'("(?:{_PACKAGES})": )"[^"]*"', r'\1"VERSION"'),
    (rf"\b({_PACKAGES}) \d+\.\d+(?:\.\d+)?[\w.+]*", r"\1 VERSION"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d UTC", "DATE"),
    (r"\b\d+\.\d+ s\b", "TIME s"),
    (r"\b\d+\.\d+s\b(?: \(\d+:\d\d:\d\d\))?", "TIME"),
    (r"\b[0-9.]+ cases a second", "TIME cases a second"),
    (r"(0x)[0-9a-f]{6,}", r"\1ADDRESS"),
    # Of a traceback, frames that are not the decoder's, and what is underlined: in text, and in JSON.
    (r'\n( *)File "(?:(?:ROOT/)?eqcheck|PYTHON|ENV)/.*(?:\n\1 +.*)*', ""),
    (rf'{_LINE}( *)File \\"(?:(?:ROOT/)?eqcheck|PYTHON|ENV)/(?:(?!{_LINE}).)*(?:{_LINE}\1 +(?:(?!{_LINE}).)*)*', ""),
    (r"\n +[~^]+(?=\n)", ""),
    (rf"{_LINE} +[~^]+(?={_LINE})", ""),
)


def plain(text: str, work: Path | None = None) -> str:
    """The text without what differs from day to day and from machine to machine; the only place that changes texts."""
    places = {str(work): "WORK"} if work else {}
    places |= {str(ROOT): "ROOT", sys.prefix: "ENV", sys.base_prefix: "PYTHON"}
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    for pattern, instead in _VOLATILE:
        text = re.sub(pattern, instead, text)
    text = text.replace("\x1b", "\\x1b")  # to be seen
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n") + "\n"


def settled(evidence: float) -> float:
    """Evidence as it is on every processor: 1 where it is small, two digits of it where it is not.

    >>> settled(0.440146), settled(6.127), settled(5.168390810248653e+20)
    (1.0, 1.0, 5.2e+20)
    """
    return float(f"{evidence:.2g}") if evidence >= FEW else 1.0


def alike(data: Any) -> Any:
    """Data as it is on every processor: numbers of a few digits, and `settled` evidence in the report of a sampler.

    >>> alike({"luck": 0.1 + 0.2, "rows": (3, 1.25)})
    {'luck': 0.3, 'rows': [3, 1.25]}
    >>> alike({"evidence": 70265.49318446542, "greatest": 3.1, "course": [[4, -0.027], [8, 4.8462]]})
    {'evidence': 70000.0, 'greatest': 1.0, 'course': [[4, 0.0], [8, 4.8]]}
    """
    if isinstance(data, dict):
        if "greatest" in data and "course" in data:
            course = [[tokens, round(log, 1) if log >= math.log10(FEW) else 0.0] for tokens, log in data["course"]]
            data = {**data, "course": course, **{name: settled(data[name]) for name in ("evidence", "greatest")}}
        return {name: alike(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [alike(value) for value in data]
    return float(f"{data:.{DIGITS}g}") if isinstance(data, float) else data


def as_json(data: Any, indent: str = "") -> str:
    """JSON in which what fits stands in one line and long lists are cut, so that a difference of two is short."""
    whole = json.dumps(data, ensure_ascii=False)
    ids = isinstance(data, list | tuple) and not any(isinstance(one, dict | list | tuple) for one in data)
    if len(whole) + len(indent) <= WIDTH or not data or ids or not isinstance(data, dict | list | tuple):
        return whole
    further = f"{indent} "
    if isinstance(data, dict):
        parts = [f"{json.dumps(name)}: {as_json(value, further)}" for name, value in data.items()]
    else:
        parts = [as_json(value, further) for value in data]
        if len(parts) > MOST:
            digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
            parts = [*parts[:KEPT], f'"and {len(parts) - KEPT} more; all: {digest}"']
    begin, end = "{}" if isinstance(data, dict) else "[]"
    return begin + ",".join(f"\n{further}{part}" for part in parts) + f"\n{indent}{end}"


def joined(entries: Mapping[str, str]) -> str:
    """The entries of a group as the text of its file; no line of an entry looks like the head of another."""
    parts = []
    for name, text in entries.items():
        inside = "\n".join(f" {line}" if line.startswith(HEAD) else line for line in text.split("\n"))
        parts.append(f"{HEAD}{name}\n{inside}")
    return "\n".join(parts)


def split(text: str) -> dict[str, str]:
    """The inverse of `joined`."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith(HEAD):
            found[line.removeprefix(HEAD)] = []
        elif found:
            found[next(reversed(found))].append(line)
    return {name: "\n".join(lines).rstrip("\n") + "\n" for name, lines in found.items()}


def compared(group: str, stored: str, given: str) -> list[str]:
    """How a group differs from what is stored, in lines: entries that are missing or new, and the diff of others."""
    if stored == given:
        return []
    before, now = split(stored), split(given)
    lines = [f"{group}: {name}: missing, it is stored" for name in before if name not in now]
    lines += [f"{group}: {name}: new, it is not stored" for name in now if name not in before]
    for name in (name for name in before if name in now and before[name] != now[name]):
        both = (before[name].splitlines(), now[name].splitlines())
        lines += difflib.unified_diff(*both, f"{group}: {name}, stored", f"{group}: {name}, given", n=1, lineterm="")
    return lines or [f"{group}: the order of the entries differs"]
