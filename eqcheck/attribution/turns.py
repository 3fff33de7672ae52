"""The rounds of each row: the draft tokens that were fed, and the row's tokens before and after the round.

The tokens that a decoder commits are not seen, only the tokens that it feeds. Before a round, a row has the tokens that
the draft was first given for it (`Rounds.begun`), and at least the first token that the target is fed of it. Where the
draft was not asked about the row, the row has every token that was answered for it. After its last round it has the
tokens that were returned, if these were fed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from eqcheck.attribution.labels import Labels
from eqcheck.attribution.record import Label, Write, self_hidden
from eqcheck.decoding.run import Run
from eqcheck.result.story import DrawnRound
from eqcheck.result.verdict import common_start


def ids_of(rounds: Sequence[DrawnRound]) -> tuple[int, ...]:
    """The tokens that rounds committed, put together."""
    return tuple(token for one in rounds for token in one.committed)


class Turns:
    """The rounds of a run as they are drawn, also where contexts were wrong.

    ``number`` has that of each target call, by row and call, from 1. ``blamed`` is the query whose context was
    wrong, as reading says.
    """

    def __init__(self, run: Run, labels: Labels, blamed: Write | None = None) -> None:
        self.run, self.labels, self._blamed = run, labels, blamed
        self._answered = {int(digest) for call in labels.calls.values() for digest in call.digests.ravel()}
        self._told = {(write[:2], label.request) for write, label in labels.of.items() if self._tells(write, label)}
        self._columns: dict[tuple[int, int], list[tuple[Write, Label]]] = defaultdict(list)  # by row and call
        self._asked: dict[tuple[int, int], int] = {}  # by row and index, the first call that asked for a new token
        asking: dict[int, set[int]] = defaultdict(set)
        for write, label in labels.of.items():
            if label.request < 0:
                continue
            sure = self.sure(write, label)
            if label.what in ("token", "draft") and sure:
                self._columns[label.request, write[0]].append((write, label))
            if (index := label.position + 1 - self._start(label.request)) >= 0:
                asking[label.request].add(write[0])
                if label.what == "token" and sure:
                    self._asked.setdefault((label.request, index), write[0])
        rows = range(len(run.truth.rows))
        self._calls = {row: [n for n in labels.made_once(row) if n in asking[row]] for row in rows}
        self.number = {(row, n): sum(m <= n for m in self._calls[row]) for row in rows for n in asking[row]}
        self.rounds = {row: self._rounds(row) for row in self._calls}

    def _tells(self, write: Write, label: Label) -> bool:
        """Return whether a query tells whose it is: it saw exactly its row, or is blamed,
        or no other was asked the same.
        """
        if label.what != "token" or label.exact or write == self._blamed:
            return label.what == "token"
        row, digests = label.request, self.run.truth.digests[label.request][-1]
        needed = max(len(rows[row]) for rows in (self.run.truth.rows, self.run.outputs or self.run.truth.rows))
        asked = label.position < len(digests) and int(digests[label.position]) in self._answered
        return not asked and label.position + 1 < self._start(row) + needed

    def sure(self, write: Write, label: Label) -> bool:
        """Return whether a column of the target is known to be what its label says, by itself or by its neighbours.

        Where rows share a batch row, neighbours say nothing; nor do they of a token that is asked for elsewhere, and
        here is hidden from itself.
        """
        if label.what not in ("token", "draft") or self._tells(write, label):
            return True
        if (write[:2], label.request) not in self._told:
            return False
        hidden = self_hidden(self.labels.calls[write[0]], write[1])[write[2]]
        return label.what == "draft" or not (self.labels.packed or hidden)

    def request_of(self, call: int, row: int) -> int | None:
        """The request that most columns of a batch row of the target are known to be of; None where none is."""
        width = self.labels.calls[call].tokens.shape[1]
        counts = Counter(self.labels.of[call, row, column].request for column in range(width))
        known = [request for request, _ in counts.most_common() if ((call, row), request) in self._told]
        return known[0] if known else None

    def _start(self, row: int) -> int:
        return len(self.run.case.prompts[row])

    def asked(self, row: int, index: int) -> int:
        """The first call in which a query stood for the token before this new one of a row; 0 for none."""
        return self._asked.get((row, index), 0)

    def committed_in(self, row: int, index: int) -> int | None:
        """The call in whose round this new token of a row was committed; None where the rounds do not tell."""
        calls = (one.call for one in self.rounds[row] for _ in one.committed)
        return next(islice(calls, index, None), None)

    def _had(self, row: int, since: int, call: int) -> int:
        """Return how many new tokens the row had when a call was made; ``since`` is its call before."""
        start, columns = self._start(row), self._columns[row, call]
        first = min((label.position for _, label in columns if label.what == "token"), default=start - 1)
        end = max((label.position for _, label in columns), default=start - 1)
        begun = self.run.rounds.begun(row, since, call)
        told = 0
        while 0 < self.asked(row, told) < call:
            told += 1
        if begun is not None:  # one that catches up with its row in a call of its own was given less at first
            told = max(begun - start, min(told, end + 1 - self.run.case.num_draft_tokens - start))
        return max(told, first + 1 - start, 0)

    def _rounds(self, row: int) -> tuple[DrawnRound, ...]:
        calls, had = self._calls[row], list[int]()
        for since, call in zip([0, *calls], calls, strict=False):
            had.append(max([self._had(row, since, call), *had]))
        ids, whole = self._committed(row, dict(zip(calls, had, strict=True)))
        had.append(max([len(ids), *had]) if whole else had[-1] if had else 0)
        rounds = []
        for at, call in enumerate(calls):
            if at and whole and had[at] >= len(ids):
                break  # the row is done, and stays in its batch
            drafted, answers = self._drafted(row, call, had[at])
            committed = tuple(ids[had[at] : had[at + 1]])
            accepted = common_start(drafted, committed)
            agreed = common_start(drafted, answers)
            own = committed[accepted] if accepted < len(committed) and drafted and agreed <= accepted else None
            last = "" if own is None else "correction" if accepted < len(drafted) else "bonus"
            known = whole or at + 1 < len(calls)
            rounds.append(DrawnRound(at + 1, call, drafted, accepted, last, own, committed, agreed, known))
        return tuple(rounds) if self._sound(row, rounds, whole) else ()

    def _sound(self, row: int, rounds: list[DrawnRound], whole: bool) -> bool:
        """Return whether these can be the rounds of a row: where rows are asked the same,
        some may be taken for another's.
        """
        k, right = self.run.case.num_draft_tokens, self.run.truth.rows[row]
        shared = self.run.rounds.shared(row, len(right))
        if whole and ids_of(rounds) == right:
            fits = all(len(one.committed) <= one.accepted + 1 and len(one.drafted) <= k for one in rounds)
            return fits and (not shared or all(one.committed for one in rounds))
        return not (rounds and shared)

    def _drafted(self, row: int, call: int, had: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens fed behind a row's tokens, in the batch row of a call that goes furthest; and the answers to them.

        Each answer is the target's of the column before, or the token that the row had there already.
        """
        behind = [
            (write, label) for write, label in self._columns[row, call] if label.position >= self._start(row) + had
        ]
        if not behind:
            return (), ()
        batch_row = max(behind, key=lambda column: column[1].position)[0][1]
        behind = [(write, label) for write, label in behind if write[1] == batch_row]
        asked = self.labels.calls[call]
        if self.labels.branches:
            return self._nodes(behind)
        writes = [write for write, _ in behind]
        drafted = tuple(int(asked.tokens[write[1:]]) for write in writes)
        return drafted, tuple(self._answer(write, token) for write, token in zip(writes, drafted, strict=True))

    def _nodes(self, columns: Iterable[tuple[Write, Label]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens and answers of `_drafted` for a tree: the row's own path, then the other nodes in their order."""
        path: dict[int, int] = {}
        others = []
        for write, label in columns:
            token = int(self.labels.calls[write[0]].tokens[write[1:]])
            if label.what == "token" and label.position not in path:
                path[label.position] = token
            else:
                others.append(token)
        own = tuple(token for _, token in sorted(path.items()))
        return (*own, *others), own

    def _answer(self, write: Write, drafted: int) -> int:
        """The target's answer in the place of a draft token; where another call gave it, the draft token itself."""
        (call, row, column), label = write, self.labels.of[write]
        before = self.labels.of.get((call, row, column - 1))
        if before is None or (before.request, before.position) != (label.request, label.position - 1):
            return drafted
        return int(self.labels.calls[call].predictions[row, column - 1])

    def _committed(self, row: int, had: dict[int, int]) -> tuple[list[int], bool]:
        """The new tokens that a row had, as fed later or as kept drafts, else as returned; and whether these are all.

        They are not all where other tokens were returned than were fed: then the tokens of the last round are unknown.
        """
        output = list(self.run.outputs[row]) if self.run.outputs is not None else []
        later: dict[int, set[int]] = defaultdict(set)
        kept: dict[int, set[int]] = defaultdict(set)
        for (call, count), then in zip(had.items(), [*list(had.values())[1:], 0], strict=False):
            for write, label in self._columns[row, call]:
                index = label.position - self._start(row)
                into = later if 0 <= index < count else kept if count <= index < then - 1 else None
                if into is not None:
                    into[index].add(int(self.labels.calls[call].tokens[write[1:]]))
        ids = list[int]()
        for index in range(max([len(output), *had.values()])):
            returned, fed = output[index : index + 1], later[index] or kept[index]
            as_fed = bool(returned) and fed.issuperset(returned)
            token = returned if as_fed or not fed else sorted(fed)[:1]
            if not token:
                break
            ids += token
        whole = self.run.outputs is not None and ids == output
        return (ids if whole else ids[: max(had.values(), default=0)]), whole
