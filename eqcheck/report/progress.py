"""Progress on standard error while an audit runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from eqcheck.campaign.events import CaseDone, Event, Finished, Listener, Loading, Settling, Started, ViolationSeen
from eqcheck.contract.escaping import printable
from eqcheck.contract.limits import LOADING
from eqcheck.explanation.records import many

_RATED = 5  # cases after the first that say how long the others take
_PLAIN_EVERY_S = 5.0
_CAUSES, _STORED = "failing case", "stored case"


@contextmanager
def progress(quiet: bool = False, known: Mapping[str, Collection[str]] = {}) -> Iterator[Listener]:
    """A listener that shows how far an audit is.

    ``known`` are the fingerprints of violations that are known, by decoder: they are announced as such.
    """
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        yield from _bars(known)
    else:
        yield _plain(known)


@dataclass(frozen=True)
class _Count:
    """How far an event is with ``noun`` cases: how many are ``done``, of how many, and a note."""

    noun: str
    done: int
    total: int | None
    note: str = ""

    @classmethod
    def of(cls, event: Event) -> _Count | None:
        """The count of an event; None for one that counts nothing."""
        match event:
            case Settling(symptom=symptom, number=number, done=done, total=total):
                note = f"cause {number}: {symptom}" if symptom else many(number, "cause")
                return cls(_CAUSES, done, total, printable(note))
            case CaseDone(stored=True, done=done):
                return cls(_STORED, done, None)
            case CaseDone(done=done, total=total, lane=lane, failing=failing):
                noun = "sampled case" if lane.endswith("sampling") else "case"
                return cls(noun, done, total, f"{failing} in violation" if failing else "")
        return None


def _bars(known: Mapping[str, Collection[str]]) -> Iterator[Listener]:
    """A bar for the cases of each decoder, and one for those of them that fail while their causes are looked for."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    shown: tuple[Any, ...] = (TextColumn("{task.description}", markup=False), BarColumn(8), MofNCompleteColumn())
    shown += (TimeElapsedColumn(Column(min_width=7)), TextColumn("{task.fields[note]}", markup=False))
    tasks: dict[tuple[str, str], Any] = {}
    with Progress(*shown, console=Console(stderr=True)) as bars:

        def listen(event: Event) -> None:
            for line in _announced(event, known):
                bars.console.print(line, markup=False, highlight=False)
            if isinstance(event, Finished):
                for key in [key for key in tasks if key[0] == event.decoder]:
                    bars.remove_task(tasks.pop(key))
            if (count := _Count.of(event)) is None:
                return
            if count.noun != _STORED and (bar := tasks.pop((event.decoder, _STORED), None)) is not None:
                bars.remove_task(bar)  # no more of them come in this lane, and a bar without a total never ends
            if (key := (event.decoder, count.noun)) not in tasks:
                name = "examined" if count.noun == _CAUSES else f"{count.noun}s"
                tasks[key] = bars.add_task(printable(f"{event.decoder} {name}"), total=None, note="")
            bars.update(tasks[key], completed=count.done, total=count.total, note=count.note)

        yield listen


def _plain(known: Mapping[str, Collection[str]]) -> Listener:
    started: dict[str, float] = {}
    printed: dict[tuple[str, str], float] = {}
    ends: dict[str, float] = {}  # where a budget ends the cases before there are as many as were asked
    first: dict[tuple[Any, ...], tuple[float, int]] = {}  # time and count, when a lane has a decoder loaded

    def listen(event: Event) -> None:
        now = time.monotonic()
        for line in _announced(event, known):
            print(line, file=sys.stderr, flush=True)
        begun = started.setdefault(event.decoder, now)
        if isinstance(event, Started) and event.within:
            ends[event.decoder] = now + event.within
        if (count := _Count.of(event)) is None:
            return
        # The first word on causes comes at once, since the next may take long; the last comes always.
        causes, key = count.noun == _CAUSES, (event.decoder, count.noun)
        since, before = first.setdefault((*key, count.total), (now, count.done))
        last = printed.setdefault(key, begun if count.noun == "case" else 0.0)
        if now - last < _PLAIN_EVERY_S and not (causes and count.done == count.total):
            return
        printed[key] = now
        line = many(count.done, count.noun) if count.total is None else f"{count.done} of {count.total} {count.noun}s"
        line += " examined" * causes
        if count.noun == "case" and count.total and count.done >= before + _RATED:
            left = (now - since) / (count.done - before) * (count.total - count.done)
            line += f", about {min(left, max(0.0, ends.get(event.decoder, inf) - now)):.0f} s left"
        print(f"{event.decoder}: {line}{f'; {count.note}' if count.note else ''}", file=sys.stderr, flush=True)

    return listen


def _announced(event: Event, known: Mapping[str, Collection[str]]) -> list[str]:
    """The cases to be drawn, and each kind of failure when it is first seen; it is confirmed at the end alone."""
    match event:
        case Started(decoder=decoder, total=total, families=families, sampled=sampled):
            cases = many(total, "case") if total else "cases for as long as the budget allows"
            drawn = f"draws {cases}{', and sampled ones' if sampled else ''}"
            named = f", {'family' if len(families) == 1 else 'families'} {', '.join(families)}" if families else ""
            return [printable(f"{decoder}: {drawn}{named}")]
        case Loading(decoder=decoder, checkpoint=name):
            return [printable(f"{decoder}: loads {name}; this may take {LOADING:g} s, and no case is charged for it")]
        case ViolationSeen(decoder=decoder, outcome=outcome):
            listed = ", known" if outcome.symptom in known.get(decoder, ()) else ""
            where = f"(case {outcome.case.id})"
            return [printable(f"{decoder}: seen, not confirmed yet: {outcome.symptom}{listed} {where}")]
    return []
