"""The walk from a query with a wrong context back to the first deviation that led to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from eqcheck.attribution.context import FED_WITH, Context, read
from eqcheck.attribution.history import LET_GO
from eqcheck.attribution.record import Record, Write
from eqcheck.contract.family import Family
from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.records import Deviation
from eqcheck.explanation.statements import Statement, state
from eqcheck.hashlm.hashing import Ints


class Step(NamedTuple):
    """One deviation of a query that wrote ``write``, at its place in causal ``order``."""

    order: tuple[int, ...]
    deviation: Deviation
    write: Write


class Chain(NamedTuple):
    """The first deviation, the like ones of its query, and its consequences."""

    root: Step
    alike: tuple[Deviation, ...]
    rest: tuple[Deviation, ...]


class Walk:
    """The contexts of the queries of one run; ``stored`` as of `eqcheck.attribution.context.read`."""

    def __init__(self, labels: Record, stored: Sequence[Ints], family: Family) -> None:
        self.labels, self.stored, self.family = labels, stored, family
        self._contexts: dict[Write, Context] = {}

    def context(self, write: Write) -> Context:
        if write not in self._contexts:
            number, row, column = write
            label, call = self.labels.of[write], self.labels.calls[number]
            self._contexts[write] = read(call, row, column, label, self.labels, self.stored, self.family)
        return self._contexts[write]

    def cause(self, blamed: Sequence[Write]) -> Chain | Statement:
        """The first deviation that led to the first of these queries; a statement where it is not known."""
        steps = self._followed(blamed[:1])
        roots = [step for step in steps if not (KINDS[step.deviation.kind].inherited and self._inherited(step))]
        if not roots:
            return state("no-difference" if blamed else "no-right-query")
        root = roots[0]
        if root.deviation.kind == "poisoned-entry":
            if not any(self.labels.of[writer].exact for writer in self._writers(root)):
                return state("slot-unexplained", slot=root.deviation.slot or 0)
            # Its own query was right when it was written, so it was changed since.
            origin = "layer 1 does not contain what was written to it"
            root = root._replace(deviation=replace(root.deviation, kind="torn-entry", source="layer-1", origin=origin))
        slots = self.context(root.write).displaced
        if root.deviation.component == "mask" and slots:
            return state("displaced", shown_slot=slots[0], own_slot=slots[1])
        if root.deviation.kind == "key-position" and root.deviation.source == FED_WITH:
            root = self._as_fed(root)
        first = root.deviation
        alike = tuple(
            s.deviation for s in roots if s.write == root.write and s.deviation.fingerprint == first.fingerprint
        )
        rest = tuple(step.deviation for step in steps if step.deviation not in (alike or (first,)))
        return Chain(root, alike or (first,), rest)

    def _followed(self, pending: Sequence[Write]) -> list[Step]:
        """The queries that saw something wrongly, the queries that wrote it, and so on, in causal order."""
        left, visited, steps = list(pending), set[Write](), list[Step]()
        while left:
            write = left.pop()
            if write not in visited and write in self.labels.of and self.labels.of[write].what == "token":
                visited.add(write)
                context = self.context(write)
                left += context.follow
                steps += [Step(order_of(deviation, write), deviation, write) for deviation in context.deviations]
        return sorted(steps, key=lambda step: step.order)

    def _writers(self, step: Step) -> list[Write]:
        """The queries that wrote the token which a deviation is about."""
        known = (writer for writer in self.context(step.write).follow if writer in self.labels.of)
        return [writer for writer in known if self.labels.of[writer].position == step.deviation.token_position]

    def _as_fed(self, step: Step) -> Step:
        """A key that was fed with a wrong position: the query that it was then, which carries the position."""
        for writer in self._writers(step):
            if self.labels.calls[writer[0]].positions[writer[1:]] == step.deviation.observed:
                fed = replace(step.deviation, kind="query-position", call=writer[0], column=writer[2], slot=None)
                return step._replace(deviation=replace(fed, origin="", source=""), write=writer)
        return step

    def _inherited(self, step: Step) -> bool:
        """Return whether an entry's deviation comes from an earlier wrong query, which is then read itself."""
        writers = (writer for writer in self._writers(step) if self.labels.of[writer].what == "token")
        return any(self.context(writer).deviations for writer in writers)


def order_of(deviation: Deviation, write: Write) -> tuple[int, ...]:
    """Causal order: earlier calls first; in one call cache before mask before position, then by column.

    Where all that a row had cached is gone and was not fed again, what it sees in its place is an accident.
    """
    rank = -1 if deviation.source == LET_GO else KINDS[deviation.kind].rank
    return write[0], rank, write[2]
