"""Progress of an audit on standard error: one line that a terminal rewrites, or a line now and then in a log.

The line has the evidence so far (cases done and failing, what sampled tokens say) and what is done at the moment. A log
gets the first line at once, then one each `_EVERY_S`, and the first failing case of each kind as soon as it is seen.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from eqcheck.audit.events import (
    CaseDone,
    Event,
    Finished,
    Listener,
    Loaded,
    Loading,
    Settling,
    Started,
    Step,
    ViolationSeen,
    Working,
)
from eqcheck.contract.errors import printable
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import power_of_ten

_EVERY_S = 10.0  # between the lines of a log
_FIRST_S = 2.0  # the same until the first case is done: so long nobody has to wonder
_RATED = 5  # cases after which the time that is left is estimated
_CLOCK_AFTER_S = 3.0  # a step that takes so long shows its seconds
_LIMIT = 6  # decimal logarithm of the evidence that is a violation

_STEPS: dict[Step, str] = {
    "models": "loading torch",
    "self-check": "self-check",
    "decoder": "loading the decoder",
    "stored": "running stored cases",
    "explain": "explaining {}",
    "shrink": "making the case of {} small",
    "script": "writing the script of {}",
    "name": "looking for the cause in the sampled tokens",
    "report": "writing the report",
}
"""Each step in words."""


@contextmanager
def progress(quiet: bool = False, known: Mapping[str, Collection[str]] = {}) -> Iterator[Listener]:
    """A listener that shows how far an audit is.

    ``known`` are the fingerprints of violations that are known, by decoder: they are announced as such.
    """
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        yield from _rewritten(known)
    else:
        yield from _logged(known)


def _rewritten(known: Mapping[str, Collection[str]]) -> Iterator[Listener]:
    """The line in a terminal, and above it what is announced."""
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    state, spinner = _State(known), Spinner("dots")

    class Line:
        def __rich__(self) -> Text:
            begin = spinner.render(time.monotonic())
            line = begin if isinstance(begin, Text) else Text(str(begin))
            return Text.assemble(line, " ", state.line(), no_wrap=True, overflow="ellipsis")

    console = Console(stderr=True)
    with Live(Line(), console=console, refresh_per_second=5, transient=True, redirect_stdout=False) as live:

        def listen(event: Event) -> None:
            for line in state.heard(event):
                live.console.print(line, markup=False, highlight=False)

        yield listen


def _logged(known: Mapping[str, Collection[str]]) -> Iterator[Listener]:
    """Lines in a log; a thread writes them also while nothing happens that it could hear of."""
    log, over = _Log(_State(known)), threading.Event()
    clock = _Clock(log.due, over)
    clock.start()
    try:
        yield log.heard
    finally:
        over.set()
        clock.join()


class _Clock(threading.Thread):
    """Calls something each second until it is ``over``; no decoder waits for this thread, so it may be forked away."""

    def __init__(self, call: Callable[[], None], over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.call, self.over = call, over

    def run(self) -> None:
        while not self.over.wait(1.0):
            self.call()


class _Log:
    """The lines of a log: which are due, and when the last was written."""

    def __init__(self, state: _State) -> None:
        self.state, self.lock = state, threading.Lock()
        self.last: float | None = None
        self.written = ""

    def heard(self, event: Event) -> None:
        with self.lock:
            for line in self.state.heard(event):
                self._write(line)
                self.last = self.last if isinstance(event, ViolationSeen) else time.monotonic()
        self.due()

    def due(self) -> None:
        with self.lock:
            now, line = time.monotonic(), self.state.line()
            every = _EVERY_S if self.state.begun else _FIRST_S
            if line and line != self.written and (self.last is None or now - self.last >= every):
                self.last, self.written = now, line
                self._write(line)

    def _write(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class _Noun(Enum):
    """Say what kind of cases is counted; the value is its word."""

    STORED = "stored case"
    SAMPLED = "sampled case"
    CASE = "case"


@dataclass
class _Decoder:
    """The progress of the audit of one decoder: its ``counts`` by kind of case, and since when they are counted."""

    counts: dict[_Noun, CaseDone] = field(default_factory=dict)
    since: dict[_Noun, tuple[float, int]] = field(default_factory=dict)
    step: str = ""
    begun: float = 0.0
    ends: float | None = None

    def line(self, now: float) -> str:
        told = [self._counted(noun, event, now) for noun, event in list(self.counts.items())[-1:]]
        if self.step:
            seconds = now - self.begun
            told.append(f"{self.step}, {seconds:.0f} s" if seconds >= _CLOCK_AFTER_S else self.step)
        return "; ".join(told)

    def _counted(self, noun: _Noun, event: CaseDone, now: float) -> str:
        known = event.total is not None and event.done <= event.total  # one that is in doubt goes on
        most = "at most " if noun is _Noun.SAMPLED else ""  # their tokens decide how many there are
        of = f"{event.done} of {most}{event.total} {noun.value}s" if known else many(event.done, noun.value)
        told = [of, *([f"{event.failing} fail" if event.failing > 1 else "1 fails"] if event.failing else [])]
        if event.tokens:
            evidence = f"evidence {power_of_ten(event.evidence)} of {power_of_ten(_LIMIT)}"
            told += [many(event.tokens, "token"), evidence]
        first, before = self.since[noun]
        if noun is _Noun.CASE and event.total and not self.step and event.done >= before + _RATED:
            left = (now - first) / (event.done - before) * (event.total - event.done)
            left = left if self.ends is None else min(left, max(0.0, self.ends - now))
            told.append(f"about {left:.0f} s left")
        return ", ".join(told)


class _State:
    """All that was heard, as one line; `heard` returns what is to be announced at once."""

    def __init__(self, known: Mapping[str, Collection[str]]) -> None:
        self.known = known
        self.decoders: dict[str, _Decoder] = {}  # those whose audits run
        self.step, self.stepped = "", 0.0  # of the whole command
        self.begun = False  # whether a case is done
        self.finished = 0

    def line(self) -> str:
        now = time.monotonic()
        if not self.decoders:
            seconds = now - self.stepped
            return f"{self.step}, {seconds:.0f} s" if self.step and seconds >= _CLOCK_AFTER_S else self.step
        told = [f"{name}: {one.line(now)}" for name, one in list(self.decoders.items()) if one.line(now)]
        done = [f"{many(self.finished, 'decoder')} done"] if self.finished else []
        return printable(" | ".join([*done, *told])) if told else ""

    def heard(self, event: Event) -> list[str]:
        now = time.monotonic()
        if isinstance(event, Working) and not event.decoder:
            self.step, self.stepped = _STEPS[event.step].format(event.subject), now
            return []
        if isinstance(event, Finished):
            self.decoders.pop(event.decoder, None)
            self.finished += 1
            return []
        shown = self.decoders.setdefault(event.decoder, _Decoder())
        match event:
            case Started(within=within):
                shown.ends = now + within if within else None
                return [printable(f"{event.decoder}: {_begun(event)}")]
            case CaseDone(lane=lane, stored=stored):
                noun = _Noun.STORED if stored else _Noun.SAMPLED if lane.endswith("sampling") else _Noun.CASE
                if noun not in shown.counts or shown.counts[noun].total != event.total:
                    shown.since[noun] = now, event.done
                shown.counts.pop(noun, None)  # the last one is shown
                shown.counts[noun] = event
                shown.step, self.begun = "", True
            case Settling(symptom=symptom, number=number, done=done, total=total):
                cause = f"explaining cause {number}: {symptom}" if symptom else f"{many(number, 'cause')} explained"
                shown.step = f"{cause} ({done} of {many(total, 'failing case')} done)"
                shown.begun = now
            case Working(step=step, subject=subject):
                shown.step, shown.begun = _STEPS[step].format(subject), now
            case Loaded(seconds=seconds):
                shown.ends = shown.ends + seconds if shown.ends else None
            case Loading(checkpoint=name):
                shown.step, shown.begun = f"loading checkpoint {name.partition('-')[0] or name}", now
            case ViolationSeen(outcome=outcome):
                listed = " (known)" if outcome.symptom in self.known.get(event.decoder, ()) else ""
                what = f"a case fails with {outcome.symptom}{listed}, not confirmed yet"
                if outcome.explanation is not None and outcome.explanation.component == "state":
                    what = f"a request after an earlier one fails{listed}, not looked into yet"
                return [printable(f"{event.decoder}: {what}: case {outcome.case.id}")]
        return []


def _begun(event: Started) -> str:
    cases = many(event.total, "case") if event.total else "as many cases as the time allows"
    named = f"; {'family' if len(event.families) == 1 else 'families'} {', '.join(event.families)}"
    return f"{cases}{', some of them sampled' if event.sampled else ''}{named if event.families else ''}"
