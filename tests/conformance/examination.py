"""How a law is examined: on which cases, what its failure says, and which failures the decoder declares as known.

Each law draws from a shard of its own of one seed and decodes one case for each that it draws, so that ten laws of 20
cases look at 200 and cost what an audit of 200 cases costs. What a law found is kept: whether a declared fault still
shows is asked of all laws together.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import eqcheck
from eqcheck.audit.workers.fork import ForkWorker, forkable
from eqcheck.audit.workers.worker import Limits, LocalWorker, Workers
from eqcheck.contract.decoders import TAKEN, Decoder, Generate
from eqcheck.contract.errors import printable
from eqcheck.contract.profiles import CASE_TIMEOUT, WIDE, Profile
from eqcheck.contract.requirements import refused
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.layout import columns
from eqcheck.core.explanation.notice import InternalError, guarded
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import ENOUGH_TO_CALL_STALE
from eqcheck.core.result.outcome import HANG, HANGS_TO_GIVE_UP, Outcome
from eqcheck.core.store.casefile import StoredViolation, case_of, command
from eqcheck.core.store.corpus import kept
from eqcheck.pytest_plugin import SEED
from eqcheck.transparent.attribution.leak import of_sequence
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.drawing import Chance, Choices
from eqcheck.transparent.search import Source, merged
from eqcheck.transparent.sequences import (
    MINIMISE_S,
    SEARCH_S,
    Fresh,
    SequenceSearch,
    confirmed,
    confirms,
    minimise,
)

Derive = Callable[[Case, Choices, Decoder], Case]
Needs = dict[str, Callable[[Case], bool]]
_LINES = 40  # of a decoder's own traceback


@dataclass(frozen=True)
class Law:
    """Which case a law derives from a drawn one, what a case ``needs`` to test it, and what is looked at.

    ``look``: ``tokens``, or also every target ``query``, or whether they come out the same ``twice``.
    """

    name: str
    derive: Derive
    needs: Needs
    look: str = "tokens"


@dataclass
class Found:
    """What a law's cases gave: how many tested it, those passed over by reason, and failing ones by fingerprint.

    ``elsewhere`` are the faults with the law that fails by them in place of this one. ``internal`` are errors of
    eqcheck itself: those cases are not judged.
    """

    tested: int = 0
    decoded: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    elsewhere: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    internal: list[InternalError] = field(default_factory=list)


def _try_closer(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Find fault also with right tokens, where no query of the target stands behind them."""
    outcome = try_case(generate, case, timeout, opinion=opinion)
    if outcome.explanation or outcome.declined:
        return outcome
    done = run(generate, case, timeout)
    if done.outputs is None:  # it was right, and now it raises: the law of determinism sees that
        return outcome
    unseen = Reader(done).unseen()
    return replace(outcome, status="violation", explanation=unseen) if unseen else outcome


class Examination:
    """One decoder under all laws, ``count`` drawn cases each; a ``profile`` says how large they are."""

    def __init__(self, decoder: Decoder, laws: dict[str, Law], count: int, profile: Profile | None = None) -> None:
        self.decoder, self.laws, self.count, self.profile = decoder, laws, count, profile
        self._found: dict[str, Found] = {}
        self._log: list[Case] = []  # what was decoded in this process
        self._slowest = 0.0
        self._settled: dict[tuple[str | None, bool], Outcome | None] = {}
        self._failing: dict[str, str] = {}  # which law fails by a fault

    def of(self, name: str) -> Found:
        """What the law of this name found; it is examined once."""
        if name not in self._found:
            self._found[name] = self._examine(self.laws[name])
        return self._found[name]

    def shows(self, fingerprint: str) -> int:
        """How many cases of a law show a fault; where no law that was examined does, the others are, too."""
        return next((n for name in (*list(self._found), *self.laws) if (n := self.of(name).seen[fingerprint])), 0)

    def known(self, found: Found) -> dict[str, int]:
        """What the decoder declares of what a law found."""
        return {fingerprint: count for fingerprint, count in found.seen.items() if fingerprint in self.decoder.known}

    @property
    def decoded(self) -> int:
        """How many cases the laws that were examined had decoded."""
        return sum(found.decoded for found in self._found.values())

    def too_few(self) -> str:
        """Why the laws cannot tell that a fault is gone; empty where they can."""
        if self.decoded < ENOUGH_TO_CALL_STALE:
            return f"{self.decoded} cases are too few to tell ({ENOUGH_TO_CALL_STALE} are enough)"
        undrawn = [state for state in self.decoder.cache_states if state not in TAKEN]
        return f"the laws draw no case of the cache states {', '.join(undrawn)}" if undrawn else ""

    def _source(self, law: Law) -> Source:
        decoder = self.decoder
        states = tuple(state for state in decoder.cache_states if state in TAKEN)
        shard = list(self.laws).index(law.name), len(self.laws)
        draw = self.profile.draw("transparent") if self.profile else None
        return Source(
            SEED,
            decoder.families,
            decoder.padding_sides,
            states,
            decoder.requires,
            draw.bounds if draw else WIDE,
            shard=shard,
            capabilities=decoder.capabilities,
        )

    def _examine(self, law: Law) -> Found:
        """Examine a law in a process that can be ended; in this one, where a forked one would lack what is here."""
        task = _try_closer if law.look == "query" else try_case
        if not forkable():
            worker = LocalWorker(self.decoder.function, task, CASE_TIMEOUT, log=self._log)
            return self._examined(law, Workers([worker]))
        with ForkWorker(self.decoder, Limits(CASE_TIMEOUT), task) as worker:
            return self._examined(law, Workers([worker]))

    def _examined(self, law: Law, runner: Workers) -> Found:
        found, source = Found(), self._source(law)
        for number, drawn in enumerate(merged([source], self.count)):
            case = law.derive(drawn, Chance(Random(f"eqcheck {SEED} {law.name} {number}")), self.decoder)
            declined = refused(case, self.decoder.requires)
            outcome = None
            with guarded(found.internal, "judge", case):
                outcome = (
                    Outcome(case, "skipped", declined=declined) if declined else of_sequence(runner.try_case(case))
                )
            if outcome is None:
                continue
            if outcome.declined:
                found.passed_over[outcome.declined] += 1
                continue
            found.decoded += 1
            self._slowest = max(self._slowest, outcome.seconds if outcome.fingerprint != HANG else 0.0)
            found.tested += all(holds(case) for holds in law.needs.values())
            with guarded(found.internal, "explain", case):
                found.failure = (
                    self._differs(law, outcome, runner.try_case(case))
                    if law.look == "twice"
                    else self._fails(law, outcome, source, runner, found)
                )
            if found.failure or found.seen[HANG] >= HANGS_TO_GIVE_UP:
                break
        return found

    def _differs(self, law: Law, first: Outcome, second: Outcome) -> str:
        if first.repeats(second):
            return ""
        answers = [str(one.outputs if one.outputs is not None else one.fingerprint) for one in (first, second)]
        request = f"prompts {first.case.prompts}, max_new_tokens {first.case.max_new_tokens}"
        return f"the same request gave {answers[0]} and then {answers[1]}\n  {request}\n{self._again(law)}"

    def _fails(self, law: Law, outcome: Outcome, source: Source, runner: Workers, found: Found) -> str:
        """What is wrong with an outcome; empty where nothing is, or what is declared, or fails another law."""
        if outcome.explanation is None:
            return ""
        right = outcome.exact_match == 1.0  # and only the calls show that something is wrong
        key = outcome.fingerprint, right
        if key not in self._settled:
            self._settled[key] = outcome  # as it was judged, where eqcheck itself fails
            with guarded(found.internal, "explain", outcome.case):
                self._settled[key] = self._settle(outcome, source, runner)
        settled = self._settled[key]
        fingerprint = str((settled or outcome).fingerprint)
        found.seen.update({fingerprint, str(outcome.fingerprint)})
        if fingerprint in self.decoder.known:
            return ""
        first = self._failing.setdefault(fingerprint, law.name)
        if first != law.name:
            found.elsewhere[fingerprint] = first
            return ""
        if settled is None:
            return (
                "a request failed, and did not fail in the same way when it was decoded again: the decoder is not "
                "deterministic, or keeps state between requests\n"
                f"  `eqcheck audit --adapter {self._spec}` tells which. The first time:\n\n{_told(outcome)}"
            )
        lines = [_told(settled), *(f"  Known, and seen as well: {one}" for one in self.known(found))]
        if right:  # `eqcheck replay` judges tokens, and would call this fixed
            lines.append("  The tokens are right: only the calls of the target show this.")
        return "\n".join([*lines, self._again(law) if right else self._stored(settled)])

    def _settle(self, outcome: Outcome, source: Source, runner: Workers) -> Outcome | None:
        """The smallest case, confirmed as an audit does it: in fresh processes, so that a stored case can be replayed.

        Where the decoder fails only after other requests, the case has them; None where it does not fail again.
        """
        if outcome.exact_match == 1.0 or not self.decoder.spec:
            return self._settle_by(outcome, source, runner, None)
        with Fresh(self.decoder.spec, Limits(CASE_TIMEOUT, None)) as fresh:
            by = (fresh.same, SequenceSearch(fresh, lambda: None, source.claims)) if fresh.usable else (runner, None)
            return self._settle_by(outcome, source, *by)

    def _settle_by(
        self, outcome: Outcome, source: Source, runner: Workers, sequences: SequenceSearch | None
    ) -> Outcome | None:
        again = confirms(outcome, runner, sequences, self._slowest, SEARCH_S)
        if again is None or again.case.before:
            return again
        smallest = minimise(again, source, runner, self.decoder.families, MINIMISE_S)
        return smallest and confirmed(smallest, runner)

    @property
    def _spec(self) -> str:
        """How to name the decoder, without the folders above this one."""
        return (self.decoder.spec or self.decoder.name).removeprefix(f"{Path.cwd()}{os.sep}")

    def _again(self, law: Law) -> str:
        """The line that has a law looked at again, where a case file would not show what is wrong."""
        drawn = f"--eqcheck-profile={self.profile.name}" if self.profile else f"--eqcheck-cases={self.count}"
        words = ["pytest", f"--adapter={self._spec}", drawn, "-k", law.name]
        return f"  Reproduce: {shlex.join(words)}"

    def broken(self, found: Found) -> list[str]:
        """The errors of eqcheck in the cases of a law, each with the line that decodes its case again."""
        decoder, told = self.decoder, []
        for error in found.internal:
            if error.case is None:
                told.append(error.text)
                continue
            stored = StoredViolation(case_of(error.case), decoder.spec or decoder.name, minimised=False)
            again = command(kept(stored, decoder.name), self._spec)
            told.append(replace(error, reproduce=again).text)
        return told

    def _stored(self, outcome: Outcome) -> str:
        """The line that replays the case, which is stored."""
        decoder, text = self.decoder, _told(outcome)
        stored = StoredViolation(outcome.case, decoder.spec or decoder.name, outcome.fingerprint, explanation=text)
        return f"  Reproduce: {command(kept(stored, decoder.name), self._spec)}"


def _told(outcome: Outcome) -> str:
    """The explanation, and where the decoder itself raised."""
    assert outcome.explanation is not None
    frames = re.split(r"(?m)^(?=  File )", outcome.traceback)[1:]
    while len(frames) > 1 and frames[0].startswith(f'  File "{Path(eqcheck.__file__).parent}{os.sep}'):
        frames.pop(0)
    return printable("\n".join([render(outcome.explanation, width=columns()), *"".join(frames).splitlines()[-_LINES:]]))
