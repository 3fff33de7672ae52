"""One case decoded and judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from eqcheck.attribution.rounds import draft_losses
from eqcheck.attribution.witnesses import second_opinion
from eqcheck.case import Case
from eqcheck.contract import Decoder, Generate, Request
from eqcheck.harness import run
from eqcheck.lanes.transparent.coverage import exercised
from eqcheck.lanes.transparent.ids import variants
from eqcheck.oracle import judge
from eqcheck.verdict import Explanation


class History(NamedTuple):
    """What one instance of a decoder had decoded before: the first ``done`` cases of its ``log``."""

    log: list[Case]
    done: int

    @property
    def cases(self) -> tuple[Case, ...]:
        return tuple(self.log[: self.done])


def noted(log: list[Case], outcome: Outcome) -> Outcome:
    """The outcome with its history; its case is added to the log of the instance that decoded it."""
    outcome = replace(outcome, history=History(log, len(log)))
    log += [*outcome.case.before, replace(outcome.case, before=())]
    return outcome


@dataclass(frozen=True)
class Outcome:
    """One case's result, picklable. ``outputs`` is None when the decoder failed, ``explanation`` when it did not.

    ``status`` is ``skipped`` where the decoder ``declined``, which says why.
    ``losses`` are what the draft side lost (`eqcheck.attribution.rounds.draft_losses`) where the output is right.

    ``seconds`` is what decoding and judging took, ``history`` what the decoder had decoded before; two outcomes that
    differ in these alone are equal.
    """

    case: Case
    status: str
    exact_match: float
    prefix_match: float
    coverage: frozenset[str]
    outputs: tuple[tuple[int, ...], ...] | None
    explanation: Explanation | None = None
    traceback: str = ""
    losses: tuple[tuple[str, int], ...] = ()
    seconds: float = field(default=0.0, compare=False)
    declined: str = ""
    history: History | None = field(default=None, compare=False, repr=False)

    @property
    def fingerprint(self) -> str | None:
        return self.explanation.fingerprint if self.explanation else None

    def repeats(self, other: Outcome) -> bool:
        """Whether a second run gave the same answer, or failed in the same way."""
        return (self.fingerprint, self.outputs) == (other.fingerprint, other.outputs)

    @classmethod
    def crashed(cls, case: Case, kind: str, detail: str) -> Outcome:
        """The outcome of a decoder that left nothing to judge."""
        return cls(case, "violation", 0.0, 0.0, frozenset(), None, Explanation("crash", kind, detail=detail))


def try_case(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge one case; with ``opinion``, try by repair whether its explanation holds."""
    start = time.monotonic()
    done = run(generate, case, timeout)
    verdict = judge(done)
    explanation = verdict.explanation
    if opinion and explanation is not None:
        explanation = second_opinion(generate, done, explanation, timeout, variants(case))
    losses = tuple(draft_losses(done).items()) if verdict else ()
    matches = (verdict.exact_match, verdict.prefix_match)
    covered = frozenset[str]() if done.declined else frozenset(exercised(done))
    return Outcome(
        case,
        verdict.status,
        *matches,
        covered,
        done.outputs,
        explanation,
        done.failure_text,
        losses,
        time.monotonic() - start,
        done.declined,
    )


@contextmanager
def set_up(decoder: Decoder, warnings: list[str]) -> Iterator[Generate]:
    """The decoder set up; if that fails, a stand-in that fails every case with the same error."""
    with ExitStack() as stack:
        try:
            generate = stack.enter_context(decoder.running())
        except Exception as error:
            failure = error

            def generate(target: Any, draft: Any, request: Request) -> Any:
                raise failure

        yield generate
        closing = stack.pop_all()
        try:
            closing.close()
        except Exception as error:
            warnings.append(f"the decoder's close() raised {type(error).__name__}: {error}")
