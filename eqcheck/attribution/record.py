"""What is known of the requests, and of what earlier calls wrote; and the request that a row fits best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqcheck.hashing import CALL, COLUMN, MODEL, ROW, Words
from eqcheck.trace import DRAFT, TARGET, Call

Write = tuple[int, int, int]
NO_WRITE: Write = (-1, -1, -1)  # of what no model wrote


@dataclass(frozen=True)
class Label:
    """What one column of one call is: ``what`` is ``token`` (of the row's truth), ``draft`` (a draft token that
    is not), ``pad``, ``filler`` (fills up like a pad, with an id that is not the pad id: no draft proposed it, or it
    alone is hidden from itself) or ``unknown``. ``exact``: its context was right beyond doubt."""

    request: int
    position: int
    what: str
    exact: bool = False


class Sequences(NamedTuple):
    """What is known of one request: its prompt, what follows in truth (``needed`` tokens of that) and in the output,
    its true digests."""

    prompt: tuple[int, ...]
    truth: tuple[int, ...]
    emitted: tuple[int, ...]
    digests: Words
    needed: int

    @property
    def wholes(self) -> set[tuple[int, ...]]:
        """Prompt and continuation, in truth and as emitted."""
        return {self.prompt + self.truth, self.prompt + self.emitted}


class Record:
    """The label of every write so far; ``rounds[request]`` are the calls in which it took part.

    ``packed``: a row of a call was seen to hold several requests.
    """

    def __init__(self, requests: list[Sequences], pad: int, padding_side: str, drafted: bool) -> None:
        self.calls: dict[int, Call] = {}
        self.of: dict[Write, Label] = {}
        self.rounds: dict[int, list[int]] = defaultdict(list)
        self._requests = requests
        self._pad = pad
        self.packed = False
        self._reached: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self.left = padding_side == "left"
        self._places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, request in enumerate(requests):
            for position, digest in enumerate(request.digests[-1].tolist()):
                self._places[digest].append((number, position))
        self._proposed: list[tuple[int, set[int]]] = []  # by draft call
        self._drafted = drafted

    def sequence(self, request: int) -> tuple[int, ...]:
        """The request's prompt and true continuation."""
        return self._requests[request].prompt + self._requests[request].truth

    def same(self, label: Label, request: int) -> bool:
        """Whether a labelled token is one of this request, or of another that begins with the same tokens."""
        if label.what != "token" or label.request == request:
            return label.what == "token"
        mine, other = self._requests[request].digests[-1], self._requests[label.request].digests[-1]
        return label.position < min(len(mine), len(other)) and bool(mine[label.position] == other[label.position])

    def queries(self, request: int, position: int) -> list[tuple[Write, Label]]:
        """Every column that stood for this token of this request, in causal order."""
        return [
            (write, label)
            for write, label in self.of.items()
            if label.what == "token" and (label.request, label.position) == (request, position)
        ]

    def round_of(self, request: int, call: int) -> int:
        """The ordinal, from 1, of a call among those that asked for new tokens of the request; 0 for none before it.

        What is fed of a prompt before its last token belongs to the first round.
        """
        numbers = {number for number in self.rounds[request] if number <= call}
        end = len(self._requests[request].prompt) - 1
        asked = {write[0] for write, one in self.of.items() if one.request == request and one.position >= end}
        return max(len(numbers & asked), min(1, len(numbers)))

    def proposed(self, request: int, until: int) -> set[int]:
        """What the draft proposed, to whichever row, since the request last took part in a target call.

        An engine with a cache for each row drafts for all of them before the first is verified.
        """
        since = max((number for number in self.rounds.get(request, ()) if number < until), default=0)
        return {token for number, tokens in self._proposed if since < number < until for token in tokens}

    def _held(self, call: Call, row: int) -> list[Label]:
        fields = call.kv[0][0, row, 0]
        writes = ((int(f[CALL]), int(f[ROW]), int(f[COLUMN])) for f in fields if f[MODEL] == TARGET)
        return [self.of[write] for write in writes if write in self.of and write[0] != call.number]

    def _is(self, request: int, position: int, call: Call, row: int, column: int) -> bool:
        """Whether a column feeds the token that the request has there, in truth or in what was emitted."""
        token = int(call.tokens[row, column])
        return any(0 <= position < len(whole) and whole[position] == token for whole in self._requests[request].wholes)

    def _is_pad(self, call: Call, row: int, column: int, proposed: set[int]) -> bool:
        token = int(call.tokens[row, column])
        return token == self._pad and token not in proposed

    def _align(
        self,
        call: Call,
        row: int,
        taken: set[int],
        columns: range | None = None,
        requests: Sequence[int] | None = None,
    ) -> tuple[int, int, int] | None:
        """The best ``(request, first real column, position of column 0)``, or None when nothing fits.

        Columns before the first real one must be pads, and a row cannot leave its own prompt. A call that asks
        for nothing new would be of no use to the decoder, and is taken for one only where nothing else fits. What
        counts then: the entries held that precede the start, those missing, those held twice, the tokens fed,
        whether they reach the end of the prompt, the position ids.
        """
        begin = columns[0] if columns else 0
        tokens = call.tokens[row].tolist()[begin : columns[-1] + 1 if columns else None]
        held: dict[int, set[int]] = defaultdict(set)
        for label in self._held(call, row):
            for request in range(len(self._requests)) if label.what == "token" else ():
                if self.same(label, request):
                    held[request].add(label.position)
        hidden = self_hidden(call, row)[begin:]
        # Entries seen that no model wrote, at the least: they may stand for any token of the row.
        nobodys = call.kv[0][0, row, 0, :, MODEL] > max(TARGET, DRAFT)
        garbled = int((call.visible[row].any(axis=0) & nobodys).sum())
        in_order = len(call.tokens) == len(self._requests) and not any(held.values())
        best: tuple[int, float, int, int, int] | None = None
        for request in range(len(self._requests)) if requests is None else requests:
            known, have = self._requests[request], held[request]
            proposed = self.proposed(request, call.number) | {self._pad} if self._drafted else set(tokens)
            for first, token in enumerate(tokens):
                for whole in known.wholes:
                    for at in (at for at, other in enumerate(whole) if other == token):
                        run = _common_prefix(tokens[first:], whole[at:])
                        if at + run < len(known.prompt) and any(t != self._pad for t in tokens[first + run :]):
                            continue
                        before = sum(p < at for p in have)
                        score = 3.0 * before - 3.0 * abs(at - before - garbled) - 3.0 * (len(have) - before) + 2.0 * run
                        score += 2.0 * (call.positions[row, begin + first] == at) + (4.0 if in_order else 0.5) * (
                            request == row
                        )
                        score += (0.1 if in_order else -0.5) * (first - sum(hidden[:first]))
                        score += 2.0 * (at + len(tokens) - first >= len(known.prompt))
                        score -= 4.0 * (request in taken) + 3.0 * hidden[first]
                        behind = zip(tokens[first + run :], hidden[first + run :], strict=False)
                        score -= 3.0 * any(not unseen and token not in proposed for token, unseen in behind)
                        last = min(at + len(tokens) - first, len(known.prompt) + known.needed - 1) - 1
                        ahead = min(1, last - self._committed.get(request, -1))
                        if best is None or (ahead, score) > best[:2]:
                            best = (ahead, score, request, begin + first, at - begin - first)
                if token != self._pad:
                    break
        return best[2:] if best else None


def self_hidden(call: Call, row: int) -> list[bool]:
    """Which columns cannot see themselves: what the decoder's own mask calls a pad."""
    columns = call.tokens.shape[1]
    slot = {
        int(fields[COLUMN]): i
        for i, fields in enumerate(call.kv[0][0, row, 0])
        if fields[CALL] == call.number and fields[MODEL] == call.role
    }
    return [c not in slot or not call.visible[row, c, slot[c]] for c in range(columns)]


def _common_prefix(fed: Sequence[int], wanted: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(fed, wanted, strict=False)) if a != b), min(len(fed), len(wanted)))
