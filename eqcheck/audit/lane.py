"""A lane: one kind of evidence about a decoder, for the length of one audit.

The loop asks a lane for cases, has them decoded, and hands it what failed. `eqcheck.audit.lanes` has the four of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.options import SCORING
from eqcheck.contract.requirements import unmet
from eqcheck.core.result.claims import Claim, Unreached, untested
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import DrawnDecode, Outcome

if TYPE_CHECKING:
    from eqcheck.audit.workers.worker import TryCase, Workers

REPEATS = 3  # so many times a failing case is decoded again before its failure is believed
MOST_LOOKED_AT = 60  # cases that are drawn, and not decoded, to say how many a claim takes


class Lane(ABC):
    """One kind of evidence for one audit: it draws, judges, explains, and concludes. The loop does the rest.

    ``result`` is where the campaign keeps what it finds; ``running`` decodes and judges cases. ``total`` is how many
    cases will be drawn, None where what is seen decides. Cases are drawn in this ``share`` of a time budget, or for
    so many ``seconds`` where neither time nor cases are given. ``sampled``: the answers of a decoder need not repeat.
    ``conditional``: what a finding needs beside its symptom is known only when its case was looked into. ``begun`` is
    when the first case was drawn, on the monotonic clock. ``on_loading`` is called with the name of a checkpoint
    that takes long to be loaded, ``on_loaded`` with the seconds of each start of an engine and each load, ``on_step``
    with each step (`eqcheck.audit.events.Step`) that may take seconds, and what it is about. ``lanes`` are the names of
    all lanes of the audit. All of it, scripts of findings included, has to be done when it ``ends``, on the monotonic
    clock.

    A lane takes from the options what it needs when it is made, and hands them to its result, and to nothing else.
    ``fixed``: a profile says which cases are drawn, whatever is claimed.
    """

    share: float = 1.0
    seconds: float = float("inf")
    sampled: ClassVar[bool] = False
    conditional: ClassVar[bool] = False
    result: Audit
    running: Workers

    def __init__(self, decoder: Decoder, options: Options) -> None:
        from eqcheck.audit.workers.worker import Limits

        self.decoder = decoder
        self.total, self.budget, self.fixed = options.cases, options.budget, options.profile is not None
        self.isolate, self.jobs = options.isolate, options.jobs
        self.limits = Limits(options.case_timeout, options.case_memory if options.isolate else None)
        self.on_loading: Callable[[str], None] = lambda name: None
        self.on_loaded: Callable[[float], None] = lambda seconds: None
        self.on_step: Callable[[str, str], None] = lambda step, subject: None
        self.begun = time.monotonic()
        self.ends: Callable[[], float] = lambda: float("inf")
        self.lanes: tuple[str, ...] = ()

    def decoding(self, task: TryCase, jobs: int = 1, said: list[str] | None = None) -> AbstractContextManager[Workers]:
        """Workers that decode cases and judge them by this ``task``; ``said``, or else the result, gets warnings."""
        from eqcheck.audit.workers.fork import decoding

        return decoding(
            self.decoder,
            self.limits,
            task,
            self.result.warnings if said is None else said,
            isolate=self.isolate,
            jobs=jobs,
        )

    @abstractmethod
    def drawing(self) -> AbstractContextManager[object]:
        """Set the decoder up, for cases to be decoded and judged by ``running``."""

    @abstractmethod
    def cases(self) -> Iterator[Any]:
        """The cases to decode, drawn as they are asked for; the same for the same options."""

    @property
    def evidence(self) -> tuple[int, float]:
        """The sampled tokens so far, and the decimal logarithm of what they say against the target's distribution."""
        return 0, 0.0

    def claimed(self) -> list[Claim]:
        """The claims of the decoder that the cases of this lane are to test, in so far as any of them can."""
        return []

    def goes_on(self, drawn: int) -> bool:
        """Return whether to draw a case after so many, which are all that were to be drawn: what is seen is unclear."""
        return False

    def drawn_anew(self) -> Iterator[Any]:
        """The cases of `cases` from the first one on, whatever was decoded: to count how many a claim takes."""
        return self.cases()

    def unreached(self) -> list[Unreached]:
        """The claims that no drawn case tested, each with the cases of a whole audit that it takes."""
        left = [claim for claim in self.claimed() if not self.result.tally.tested[claim]]
        if not left or self.fixed:
            return [Unreached(claim, None) for claim in left]
        cases = (case for case in self.drawn_anew() if not unmet(case, self.decoder.requires))
        found, name = untested(left, islice(cases, MOST_LOOKED_AT)), self.result.lane
        lanes = self.lanes or (name,)
        return [one if one.cases is None else replace(one, cases=total_for(name, one.cases, lanes)) for one in found]

    def asks(self, case: Any) -> bool:
        """Return whether a stored case is one of this lane that the options allow;
        cases of other checkpoints are not.
        """
        if case.lane != self.result.lane or case.family not in self.result.families:
            return False
        if not case.checkpoint:
            return True
        from eqcheck.engines.checkpoints.folders import known

        return known(case.checkpoint)

    @abstractmethod
    def explain(self, outcome: Outcome, group: list[Outcome], left: Callable[[], float]) -> list[Finding] | None:
        """The findings of a failing case, confirmed and made small; None if it does not fail time and again.

        ``group`` are the cases like it; ``left`` says how many seconds there are.
        """

    @abstractmethod
    def again(self, case: Any, calls: bool) -> tuple[Outcome, DrawnDecode | str]:
        """A stored case decoded by a new instance of the decoder, explained; with ``calls``, every call, or why none.

        Declined is what the decoder does not take, too; raises `UsageError` where the lane cannot decode the case.
        """

    @abstractmethod
    def conclude(self) -> None:
        """Take from all outcomes into ``result`` what its counts do not hold, and what takes decoding."""

    def settling(self, check: Callable[[], None]) -> AbstractContextManager[object]:
        """Set up what confirms failures; ``check`` raises ``KeyboardInterrupt`` where the user wants an end."""
        return nullcontext()

    def condition(self, case: Any) -> tuple[str, ...]:
        """The options of a case that set it apart from other cases of the same symptom."""
        return ()

    def rank(self, outcome: Outcome) -> tuple[int, ...]:
        """The place of a case in its group: a stored case comes first if it is small, and last if it is not."""
        return not outcome.minimal, not outcome.drawn

    def telling(self, group: list[Outcome]) -> list[Outcome]:
        """The cases of a group to look into before all others, as long as none of them `tells` why it fails."""
        return []

    def tells(self, outcome: Outcome) -> bool:
        """Return whether a case says by itself why it fails."""
        return True

    def counted(self, outcome: Outcome) -> int | None:
        """The number of the finding that a failing case counts with; None: it has to be looked into."""
        return self.result.explained_by(outcome)

    def repeats(self, outcome: Outcome) -> bool:
        """Return whether a case gives the same answer each time it is decoded; one that is sampled,
        whether it fails again.
        """
        if self.sampled:
            tried = [self.running.try_case(outcome.case) for _ in range(REPEATS)]
            return any(again.symptom == outcome.symptom for again in tried)
        return all(self.running.try_case(outcome.case).repeats(outcome) for _ in range(REPEATS))

    def unsettled(self, outcome: Outcome, why: str = "") -> Finding:
        """The finding of a failing case that was not looked into, or did not fail again: ``why`` it has no cause."""
        assert outcome.explanation is not None
        return Finding(
            outcome,
            outcome.explanation,
            standing="violation" if self.result.claims(outcome.case) else "discovery",
            seen=(outcome.symptom,),
            stored=not outcome.drawn,
            minimised=outcome.minimal,
        )


OF_SAMPLED_ROWS = ("temperature", "top-k", "top-p", "min-p", "seeds")
"""Capabilities that are tested where rows are sampled."""
LESS = ("float16", "bfloat16")  # than float32
EXACT_LAW = "full"  # the checkpoint on which rows of such engines sample
ROW_OPTIONS = {"row-limits", "row-eos", *(name.replace("_", "-") for name in SCORING)}
"""Capabilities of which cases on the transparent target have none: rows with these options decode a checkpoint."""
BESIDE = 3  # for so many cases of the transparent target one on a checkpoint, which takes as long as some of these
_MOST_SAMPLED = 400  # cases: with fewer of them there are as many tokens as are ever counted


def shares(cases: int, lanes: Sequence[str]) -> list[int]:
    """Return how many of the cases of an audit each of its lanes draws: all of them together, and no more.

    >>> shares(60, ["transparent", "sampling", "engine"]), shares(1, ["transparent", "sampling"])
    ([27, 25, 8], [1, 0])
    """
    first, *others = lanes
    weights = [1 if (lane, first) == ("engine", "transparent") else BESIDE for lane in lanes]
    mine = [max(1, cases * weight // sum(weights)) for weight in weights[1:]]
    mine = [
        min(count, _MOST_SAMPLED) if "sampling" in lane else count for lane, count in zip(others, mine, strict=True)
    ]
    while cases <= sum(mine):  # the first lane has one case at least
        mine[mine.index(max(mine))] -= 1
    return [cases - sum(mine), *mine]


def total_for(lane: str, needed: int, lanes: Sequence[str]) -> int:
    """The smallest number of cases of an audit of which one lane draws as many as are ``needed``.

    >>> total_for("sampling", 25, ["transparent", "sampling", "engine"])
    59
    """
    place, total = lanes.index(lane), needed
    while shares(total, lanes)[place] < needed and total < needed * 1000:
        total += 1
    return total
