"""Packs: drawn cases with the same settings share one batch of an engine, as requests of strangers do in service.

On a tiny model an engine's time goes into steps more than into rows, so eight cases in one batch cost little more than
the longest of them. Each row is judged by its own case, and nothing that a case asks for is changed but the arrival of
its rows. A case with a wrong row is decoded again, alone. Wrong there as well, it is a failing case like any other.
Right there, its company has a part in it: then the whole pack is the case, which is made smaller like any other. A pack
without an answer is halved until the case that ends it is alone.

Cases with a switch, which are decoded twice, with a long prompt or with many rows stay alone. So does the first of
each eight, for some faults need a small batch, and the first cases of an audit, so that a cause is soon told. Frozen
profiles have no packs: their cases are what they were.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from queue import SimpleQueue
from typing import Any

from eqcheck.audit.workers.worker import Decoded, Worker, Workers
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import CaseError
from eqcheck.contract.profiles import WIDE
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.result.outcome import HANG, HANGS_TO_GIVE_UP, Outcome
from eqcheck.engines.engine_outcome import EngineOutcome, part_of

CASES = 8  # that are decoded at one go: one alone, and the others in packs
_FIRST = 12  # cases that are alone
_ROWS = 48  # at most, of an engine that takes many; beyond them a step costs by the row
_SCARCE = 16  # of them where there are few KV blocks: more would only wait
_TOKENS = 160  # of a prompt; a longer one is a case of its own
_LATEST = 12  # steps by which the rows of a later case come late, in every second pack
_GIVEN_UP = 3  # packs that crash, behind which each case is alone; a hang is as bad as three
_SHARED = (("row-limits", "max_new_tokens"), ("row-eos", "eos_token_ids"))  # by all rows, if it is not declared


@dataclass(frozen=True)
class Pack:
    """Cases that share a batch, and the case that their rows are together."""

    cases: tuple[EngineCase, ...]
    joined: EngineCase

    @property
    def places(self) -> Iterator[slice]:
        """The rows of each case among those of the pack."""
        ends = accumulate((len(case.rows) for case in self.cases), initial=0)
        return (slice(start, end) for start, end in pairwise(ends))


def packs(cases: Sequence[EngineCase], decoder: Decoder) -> list[Pack]:
    """The cases in packs, in their order: each as large as the settings, and what the decoder takes, allow.

    >>> from eqcheck.contract.decoders import RowOptions
    >>> from eqcheck.core.case.engine import EngineRow
    >>> def case(limit): return EngineCase((EngineRow((1, 2), RowOptions(limit)),))
    >>> decoder = Decoder("mine", print, capabilities=("row-limits", "row-eos"))
    >>> [len(pack.joined.rows) for pack in packs([case(3), case(5), replace(case(4), kv_blocks=9)], decoder)]
    [2, 1]
    """
    made, together = list[Pack](), list[EngineCase]()
    for case in cases:
        joined = _joined([*together, case], decoder) if together and _joins(case) and _joins(together[0]) else None
        if joined is None:
            together = []
        else:
            made.pop()
        together.append(case)
        made.append(Pack(tuple(together), joined or case))
    return made


def _joins(case: EngineCase) -> bool:
    return not case.switch and len(case.rows) <= WIDE.rows and max(map(len, case.prompts)) <= _TOKENS


def _joined(cases: Sequence[EngineCase], decoder: Decoder) -> EngineCase | None:
    """The cases as one, or None where it is none that the decoder takes."""
    first, takes = cases[0], decoder.capabilities
    rows = sum(len(case.rows) for case in cases)
    most = _ROWS if "many-rows" in takes else WIDE.rows
    if rows > (min(most, _SCARCE) if first.kv_blocks else most) or len(cases) > CASES:
        return None
    if any(replace(case, rows=first.rows) != first for case in cases):
        return None
    options = [options for case in cases for options in case.options]
    shared = [name for capability, name in _SHARED if capability not in takes]
    if len({tuple(getattr(each, name) for name in shared) for each in options}) > 1:
        return None
    try:
        joined = replace(first, rows=tuple(row for case in _arriving(cases, takes) for row in case.rows))
    except CaseError:  # more tokens than a case may have
        return None
    return None if unmet(joined, decoder.requires) else joined


def _arriving(cases: Sequence[EngineCase], takes: Sequence[str]) -> Iterator[EngineCase]:
    """The cases; in every second pack the later ones come while the earlier ones are decoded."""
    rng = random.Random(f"eqcheck pack {cases[0].id}")
    late = "arrivals" in takes and rng.random() < 0.5
    for number, case in enumerate(cases):
        delay = rng.randint(0, _LATEST) if late and number else 0
        yield case.with_options(replace(own, arrival=own.arrival + delay) for own in case.options) if delay else case


class Packed(Workers):
    """The process of an engine that decodes packs; its outcomes are those of the cases, in order.

    Where only the pack fails its outcome takes the place of that of the first case with a wrong row.
    """

    def __init__(self, worker: Worker, decoder: Decoder) -> None:
        super().__init__([worker], batch=CASES, ahead=True)
        self._decoder, self._lost, self._begun = decoder, 0, 0
        self._most_waiting = 2  # a failing case is to be told soon

    def taken(self) -> int:
        """At first one case at a time, so that what fails everywhere is told at once; then several."""
        self._begun += 1
        return 1 if self._begun <= _FIRST else CASES

    def _decode(self, idle: SimpleQueue[Worker], batch: list[Any], over: threading.Event) -> list[Outcome]:
        cases = [case for case in batch if case.family not in self.given_up]
        alone = self._lost >= _GIVEN_UP
        joining = 0 if alone else len(cases) - 1
        waiting = [Pack((case,), case) for case in cases[: len(cases) - joining]]
        waiting += packs(cases[len(cases) - joining :], self._decoder)
        done = self._answers(idle, [pack.joined for pack in waiting], over)
        outcomes = list[Outcome]()
        for pack, decoded in zip(waiting, done, strict=False):
            outcomes += self._outcomes_of(pack, decoded, idle, over)
        return outcomes

    def _answers(self, idle: SimpleQueue[Worker], cases: Sequence[EngineCase], over: threading.Event) -> list[Decoded]:
        """The answers to these cases; fewer where the drawing is over."""
        worker = idle.get()
        try:
            return [worker.decode(case) for case in cases if not over.is_set()]
        finally:
            idle.put(worker)

    def _outcomes_of(
        self, pack: Pack, decoded: Decoded, idle: SimpleQueue[Worker], over: threading.Event
    ) -> list[Outcome]:
        """The outcome of each case of a pack, whose doubtful ones are decoded again."""
        worker = self.workers[0]
        whole = worker.judged(decoded)
        if len(pack.cases) == 1:
            return [whole]
        if not isinstance(whole, EngineOutcome) or not whole.rows:
            return self._unanswered_by(pack, whole, idle, over)
        parts: list[Outcome | None] = [None if one.failed else one for one in parted(pack, whole, decoded, worker)]
        doubtful = [number for number, part in enumerate(parts) if part is None]
        again = self._answers(idle, [pack.cases[number] for number in doubtful], over)
        company: Outcome | None = whole
        for number, alone in zip(doubtful, map(worker.judged, again), strict=False):
            parts[number] = alone
            if not alone.failed and company is not None:
                parts[number], company = company, None
        return [part for part in parts if part is not None]

    def _unanswered_by(
        self, pack: Pack, whole: Outcome, idle: SimpleQueue[Worker], over: threading.Event
    ) -> list[Outcome]:
        """The outcomes of the cases of a pack that was not answered: asked again in halves, or one by one.

        A limit of time is not spent on one half after the other, and an engine that declines says so at once.
        """
        hung = whole.symptom == HANG
        self._lost += _GIVEN_UP if hung else whole.failed
        middle = (len(pack.cases) + 1) // 2
        halves = [pack.cases[:middle], pack.cases[middle:]]
        outcomes, hangs = list[Outcome](), 0
        for cases in halves if whole.failed and not hung else [(case,) for case in pack.cases]:
            if hangs == HANGS_TO_GIVE_UP:
                break
            for part in packs(cases, self._decoder):
                for decoded in self._answers(idle, [part.joined], over):
                    outcomes += self._outcomes_of(part, decoded, idle, over)
            hangs += outcomes[-1].symptom == HANG if outcomes else 0
        if (whole.failed or whole.internal) and outcomes and not any(one.failed for one in outcomes):
            outcomes[-1] = whole
        return outcomes


def parted(pack: Pack, whole: EngineOutcome, decoded: Decoded, worker: Worker) -> list[Outcome]:
    """The outcome of each case of a pack by its own rows.

    Counts of a right batch, such as those of draft tokens, stand in its first case, so that sums are right; features
    of the batch count there, too.
    """
    rows, parts = decoded.answer["outputs"], list[Outcome]()
    told = decoded.answer.get("told") or [None] * len(whole.rows)
    for case, place in zip(pack.cases, pack.places, strict=True):
        own = {"outputs": rows[place], "told": told[place]}
        # A failing batch names the first thing that is told wrongly, and none where a token is wrong.
        parts.append(
            worker.judged(replace(decoded, case=case, answer=own))
            if whole.failed
            else part_of(whole, case, place.start, own)
        )
    if not whole.failed and isinstance(first := parts[0], EngineOutcome):
        parts[0] = replace(
            first,
            coverage=first.coverage | whole.coverage,
            observed=whole.observed,
            dictated=whole.dictated,
            due=whole.due,
        )
    return parts
