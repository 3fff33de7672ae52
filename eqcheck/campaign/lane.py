"""What a lane is: one kind of evidence about a decoder, behind one protocol; and which lane is asked for what.

A new lane is a folder in `eqcheck.lanes`, a line in `LANES`, and a name in `lanes_of`; its case is named in
`eqcheck.store.casefile`. The campaign imports it when it is needed, so that reading a case or a report imports no
model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from eqcheck.contract.decoder import Decoder
from eqcheck.contract.family import FAMILY
from eqcheck.result.findings import Audit, Finding, Options
from eqcheck.result.outcome import Outcome
from eqcheck.result.story import DrawnDecode
from eqcheck.workers.runner import Runner

LANES = {
    "transparent": "eqcheck.lanes.transparent.lane:TransparentLane",
    "checkpoint": "eqcheck.lanes.checkpoint.lane:CheckpointLane",
    "sampling": "eqcheck.lanes.sampling.lane:SamplingLane",
    "checkpoint-sampling": "eqcheck.lanes.checkpoint.sampled.lane:CheckpointSamplingLane",
}


class Lane(Protocol):
    """One kind of evidence, for one audit.

    ``total`` is how many cases will be drawn, None where what is seen decides. ``result`` is where the campaign keeps
    what it finds; ``running`` decodes and judges cases.
    """

    total: int | None
    result: Audit
    running: Runner

    def __init__(self, decoder: Decoder, options: Options) -> None: ...

    def drawing(self) -> AbstractContextManager[object]:
        """Set the decoder up, for cases to be drawn and decoded."""

    def cases(self) -> Iterator[Any]:
        """The cases to decode, drawn as they are asked for; the same for the same options."""

    def asks(self, case: Any) -> bool:
        """Whether a stored case is one of this lane that the options allow."""

    def draws_until(self, started: float) -> float | None:
        """When to look into what fails so far, on the monotonic clock; None: draw no more cases."""

    def replay(self, case: Any) -> Outcome:
        """The outcome of a stored case."""

    def settling(self, check: Callable[[], None]) -> AbstractContextManager[object]:
        """Set up what confirms failures; ``check`` raises ``KeyboardInterrupt`` where the user wants an end."""

    def settles_until(self, left: int) -> float:
        """When to stop looking into failing cases, of which so many are ``left``, on the monotonic clock."""

    def group(self, outcome: Outcome) -> Hashable:
        """What failing cases have in common of which one stands for all, until more is known."""

    def order(self, groups: list[list[Outcome]]) -> list[list[Outcome]]:
        """The groups, and the cases of each, in the order in which they are looked into."""

    def telling(self, group: list[Outcome]) -> list[Outcome]:
        """The cases of a group to look into before all others, as long as none of them says why it fails."""

    def counted(self, outcome: Outcome) -> int | None:
        """The number of the finding that a failing case counts with; None: it has to be looked into."""

    def look(self, outcome: Outcome, group: list[Outcome], groups: int, eager: bool) -> list[Finding] | None:
        """What is found in a failing case; None if it does not fail time and again.

        ``group`` are those like it; so many ``groups`` still wait for their turn, and share the time. ``eager``: an
        empty list says that it does not tell why it fails.
        """

    def unsettled(self, outcome: Outcome, why: str) -> Finding:
        """The finding of a failing case that was not looked into, or did not fail again: ``why`` it has no cause."""

    def joined(self, earlier: Finding, later: Finding) -> Finding | None:
        """Two findings of one standing as one, where they are one; else None."""

    def filed(self, finding: Finding) -> str:
        """The fingerprint under which the corpus keeps a finding; empty where it is not worth keeping yet."""

    def still(self, stored: str, outcome: Outcome) -> bool:
        """Whether a stored case fails as it did when it was ``stored`` under this fingerprint."""

    def again(self, case: Any, calls: bool) -> tuple[Outcome, DrawnDecode | str]:
        """A stored case decoded by a new instance of the decoder, explained; with ``calls``, every call, or why none.

        Declined is what the decoder does not take, too; raises `UsageError` where the lane cannot decode the case.
        """

    def conclude(self) -> None:
        """Take from all outcomes into ``result`` what its counts do not hold, and what takes decoding."""

    @staticmethod
    def conclusions(result: Audit) -> None:
        """Draw conclusions from the counts and findings of ``result``: of one audit, or of several shards merged."""


def lanes_of(decoder: Decoder, options: Options) -> list[Lane]:
    """The lanes in which a decoder is audited: on checkpoints where it loads them or another Python runs it.

    One that samples is audited in the lane of sampling as well, but on real targets; the two share a time budget.
    """
    names = ("checkpoint", "checkpoint-sampling")
    if not (decoder.checkpoints or options.python):
        names = ("transparent", "sampling")
    if "temperature" not in decoder.capabilities or any(FAMILY[family].target for family in options.families):
        return [lane_named(names[0])(decoder, options)]
    halved = replace(options, budget=options.budget / 2) if options.budget else options
    return [lane_named(name)(decoder, halved) for name in names]


def lane_named(name: str) -> type[Lane]:
    """The class of a lane."""
    module, _, attribute = LANES[name].partition(":")
    lane: type[Lane] = getattr(import_module(module), attribute)
    return lane
