"""The rounds of each row: what was fed as drafts, what the row had before, and what it had afterwards.

What a decoder commits is not seen, only what it feeds. Before a round a row has what the draft was first given for it
(`Proposals.begun`), and no less than the first token that the target is fed of it; where the draft was not asked about
the row, it has all that was answered for. After its last round it has what was returned, if that is what was fed.
"""

from __future__ import annotations

from collections import defaultdict

from eqcheck.attribution.labels import Labels
from eqcheck.attribution.proposals import Proposals
from eqcheck.attribution.record import Label, Write
from eqcheck.harness import Run
from eqcheck.story import DrawnRound


class Turns:
    """The rounds of a run. ``number`` has that of each target call, by row and call, from 1."""

    def __init__(self, run: Run, labels: Labels) -> None:
        self.run, self.labels = run, labels
        self._proposals = Proposals(run)
        self._columns: dict[tuple[int, int], list[tuple[Write, Label]]] = defaultdict(list)  # by row and call
        self._asked: dict[tuple[int, int], int] = {}  # by row and index, the first call that asked for a new token
        asking: dict[int, set[int]] = defaultdict(set)
        for write, label in labels.of.items():
            if label.request < 0:
                continue
            if label.what in ("token", "draft"):
                self._columns[label.request, write[0]].append((write, label))
            if (index := label.position + 1 - self._start(label.request)) >= 0:
                asking[label.request].add(write[0])
                if label.what == "token":
                    self._asked.setdefault((label.request, index), write[0])
        self._calls = {row: [n for n in labels.rounds[row] if n in asking[row]] for row in range(len(run.truth.rows))}
        self.number = {(row, n): at for row, calls in self._calls.items() for at, n in enumerate(calls, start=1)}
        self.rounds = {row: self._rounds(row) for row in self._calls}

    def _start(self, row: int) -> int:
        return len(self.run.case.prompts[row])

    def asked(self, row: int, index: int) -> int:
        """The first call in which a query stood for the token before this new one of a row; 0 for none."""
        return self._asked.get((row, index), 0)

    def _had(self, row: int, since: int, call: int) -> int:
        """How many new tokens the row had when a call was made; ``since`` is its call before."""
        start, columns = self._start(row), self._columns[row, call]
        first = min((label.position for _, label in columns if label.what == "token"), default=start - 1)
        end = max((label.position for _, label in columns), default=start - 1)
        begun = self._proposals.begun(row, since, call)
        told = 0
        while 0 < self.asked(row, told) < call:
            told += 1
        if begun is not None:  # one that catches up with its row in a call of its own was given less at first
            told = min(told, max(begun, end + 1 - self.run.case.num_draft_tokens) - start)
        return max(told, first + 1 - start, 0)

    def _rounds(self, row: int) -> tuple[DrawnRound, ...]:
        calls, had = self._calls[row], list[int]()
        for since, call in zip([0, *calls], calls, strict=False):
            had.append(max([self._had(row, since, call), *had]))
        ids, whole = self._committed(row, dict(zip(calls, had, strict=True)))
        had.append(max([len(ids), *had]) if whole else had[-1] if had else 0)
        found = []
        for at, call in enumerate(calls):
            if at and whole and had[at] >= len(ids):
                break  # the row is done, and stays in its batch
            drafted = self._drafted(row, call, had[at])
            committed = tuple(ids[had[at] : had[at + 1]])
            pairs = [a == b for a, b in zip(drafted, committed, strict=False)]
            accepted = pairs.index(False) if False in pairs else len(pairs)
            own = committed[accepted] if accepted < len(committed) else None
            last = "correction" if accepted < len(drafted) else "bonus" if drafted else ""
            found.append(
                DrawnRound(
                    at + 1, call, drafted, accepted, "" if own is None else last, own if last else None, committed
                )
            )
        return tuple(found)

    def _drafted(self, row: int, call: int, had: int) -> tuple[int, ...]:
        """What was fed behind the tokens that a row had, in that batch row of a call which goes furthest."""
        behind = [one for one in self._columns[row, call] if one[1].position >= self._start(row) + had]
        furthest = max(behind, key=lambda one: one[1].position, default=None)
        if furthest is None:
            return ()
        tokens = self.labels.calls[call].tokens
        return tuple(int(tokens[write[1:]]) for write, _ in behind if write[1] == furthest[0][1])

    def _committed(self, row: int, had: dict[int, int]) -> tuple[list[int], bool]:
        """The new tokens that a row had: what was fed of them later, else what was returned. And whether that is all.

        It is not where something else was returned than was fed: then what the last round brought is not known.
        """
        output = list(self.run.outputs[row]) if self.run.outputs is not None else []
        fed: dict[int, set[int]] = defaultdict(set)
        for call, count in had.items():
            for write, label in self._columns[row, call]:
                if 0 <= (index := label.position - self._start(row)) < count:
                    fed[index].add(int(self.labels.calls[call].tokens[write[1:]]))
        ids = []
        for index in range(max([len(output), *had.values()])):
            returned = output[index : index + 1]
            as_fed = bool(returned) and fed[index].issuperset(returned)
            one = returned if as_fed or not fed[index] else sorted(fed[index])[:1]
            if not one:
                break
            ids += one
        whole = self.run.outputs is not None and ids == output
        return (ids if whole else ids[: max(had.values(), default=0)]), whole
