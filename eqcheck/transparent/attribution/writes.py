"""The facts that are known of the requests, and of the entries that earlier calls wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from eqcheck.core.explanation.statements import held
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, MODEL, ROW, Words
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call

Write = tuple[int, int, int]
NO_WRITE: Write = (-1, -1, -1)  # of what no model wrote
NEVER_FED = "never fed to the target"
NOT_DRAFTED_ON = "never fed to the draft"


@dataclass(frozen=True)
class Label:
    """The content of one column of one call: ``what`` is ``token`` (of the row's truth), ``draft`` (a draft token that
    is not), ``pad``, ``filler`` (fills up like a pad, with an id that is not the pad id: no draft proposed it, or it
    alone is hidden from itself) or ``unknown``. ``exact``: its context was right beyond doubt. ``agreed``: a draft that
    the target answered, too; the row has it neither in truth nor as emitted, for it ends before it."""

    request: int
    position: int
    what: str
    exact: bool = False
    agreed: bool = False

    def kind(self, request: int) -> str:
        """The kind of what a slot holds, as `eqcheck.core.explanation.records.Slot` has it, from the view of a
        request.
        """
        if self.what not in ("token", "draft"):
            return self.what
        kind = "cut-draft" if self.what == "draft" and self.agreed else self.what
        return kind if self.request == request else f"other-{kind}"

    def words(self, request: int) -> str:
        """The content of a slot, in words."""
        return held(self.kind(request), self.request, self.position)

    @property
    def place(self) -> dict[str, int]:
        """The row and logical position of what a slot holds, where it is a row's token."""
        ours = self.what in ("token", "draft")
        return {"of_row": self.request, "of_position": self.position} if ours else {}


FOREIGN = {TARGET: Label(-1, -1, "draft model"), DRAFT: Label(-1, -1, "target model")}  # in the cache of the other


class Sequences(NamedTuple):
    """The sequences of one request: its prompt, the tokens that follow in truth (``needed`` of them) and in the output,
    and its true digests."""

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

    ``packed``: a row of a call was seen to hold several requests. ``branches``: the drafts of a row may be a tree. The
    calls are those of one model, named by its ``role``.
    """

    role = TARGET
    never_fed = NEVER_FED

    def __init__(
        self, requests: list[Sequences], pad: int, padding_side: str, drafted: bool, branches: bool = False
    ) -> None:
        self.calls: dict[int, Call] = {}
        self.of: dict[Write, Label] = {}
        self.rounds: dict[int, list[int]] = defaultdict(list)
        self.requests = requests
        self.pad = pad
        self.packed = False
        self.reached: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self.left = padding_side == "left"
        self.places = places_of([request.digests for request in requests])
        self._proposed: list[tuple[int, set[int]]] = []  # by draft call
        self.drafted, self.branches = drafted, branches

    def sequence(self, request: int) -> tuple[int, ...]:
        """The request's prompt and true continuation."""
        return self.requests[request].prompt + self.requests[request].truth

    def continues(self, request: int, position: int) -> bool:
        """Return whether a request may be fed next from this position on: behind what was fed,
        but for rejected tokens.
        """
        return self.committed.get(request, -1) < position <= self.reached.get(request, -1) + 1

    def same(self, label: Label, request: int) -> bool:
        """Return whether a labelled token is one of this request, or of another that begins with the same tokens."""
        if label.what != "token" or label.request == request:
            return label.what == "token"
        mine, other = self.requests[request].digests[-1], self.requests[label.request].digests[-1]
        return label.position < min(len(mine), len(other)) and bool(mine[label.position] == other[label.position])

    def seen_by(self, label: Label, request: int) -> Label:
        """The label as this request's, where it is of another that begins with the same tokens."""
        return replace(label, request=request) if self.same(label, request) else label

    def labels(self, call: Call, row: int) -> list[Label]:
        """The labels of a row of a call, by column; none where the call has no such row."""
        writes = ((call.number, row, column) for column in range(call.tokens.shape[1]))
        return [self.of[write] for write in writes if write in self.of]

    def queries(self, request: int, position: int) -> list[tuple[Write, Label]]:
        """Every column that stood for this token of this request, in causal order."""
        return [
            (write, label)
            for write, label in self.of.items()
            if label.what == "token" and (label.request, label.position) == (request, position)
        ]

    def take(self, write: Write, request: int, position: int) -> None:
        """Label a query as one for this place of a request, and the columns before it that fed what is before it."""
        number, row, column = write
        for at in range(column + 1):
            place, fed = position - column + at, int(self.calls[number].tokens[row, at])
            if place >= 0 and fed == self.sequence(request)[place]:
                self.of[number, row, at] = Label(request, place, "token")

    def round_of(self, request: int, call: int) -> int:
        """The ordinal, from 1, of a call among the calls that asked for new tokens of the request; 0 before the first.

        The tokens of a prompt that are fed before its last one belong to the first round.
        """
        numbers = {number for number in self.made_once(request) if number <= call}
        end = len(self.requests[request].prompt) - 1
        asked = ((write[0], one) for write, one in self.of.items() if one.what in ("token", "draft"))
        behind = {number for number, one in asked if one.request == request and one.position >= end}
        return max(len(numbers & behind), min(1, len(numbers)))

    def proposed(self, request: int, until: int) -> set[int]:
        """The tokens that the draft proposed, to any row, since the request last took part in a target call.

        An engine with a cache for each row drafts for all of them before the first is verified.
        """
        numbers = (number for number in self.rounds.get(request, ()) if number < until)
        since = max((number for number in numbers if not self.repeats(until, number)), default=0)
        return {token for number, tokens in self._proposed if since < number < until for token in tokens}

    def repeats(self, number: int, earlier: int) -> bool:
        """Return whether a target call is the same as an earlier one, made again:
        an engine may make each call twice.
        """
        if not (number in self.calls and earlier in self.calls):
            return False
        one, other = self.calls[number], self.calls[earlier]
        return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.positions, other.positions)

    def was_fed(self, request: int, position: int, until: int) -> bool:
        """Return whether a call up to this one was fed the id that a request has there,
        for whichever row or place.
        """
        token = self.sequence(request)[position]
        return any(bool((call.tokens == token).any()) for number, call in self.calls.items() if number <= until)

    def made_once(self, request: int) -> list[int]:
        """The calls in which a request took part, with calls that repeat the one before left out."""
        numbers = self.rounds[request]
        return [n for at, n in enumerate(numbers) if not (at and self.repeats(n, numbers[at - 1]))]

    def held(self, call: Call, row: int) -> list[Label]:
        fields = call.kv[0][0, row, 0]
        writes = ((int(f[CALL]), int(f[ROW]), int(f[COLUMN])) for f in fields if f[MODEL] == self.role)
        return [self.of[write] for write in writes if write in self.of and write[0] != call.number]

    def is_at(self, request: int, position: int, token: int) -> bool:
        """Return whether a request has this token at this position, in truth or in what was emitted."""
        return any(0 <= position < len(whole) and whole[position] == token for whole in self.requests[request].wholes)

    def is_pad(self, call: Call, row: int, column: int, proposed: set[int]) -> bool:
        """Return whether a column feeds the pad id, and no draft proposed that."""
        token = int(call.tokens[row, column])
        return token == self.pad and token not in proposed


def places_of(digests: Iterable[Words]) -> dict[int, list[tuple[int, int]]]:
    """The requests and logical positions that have a right context, by its digest; ``digests`` are of each request."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for request, known in enumerate(digests):
        for position, digest in enumerate(known[-1].tolist()):
            places[digest].append((request, position))
    return dict(places)


def writes(call: Call, row: int) -> list[Write]:
    """The query that wrote each slot of a batch row."""
    return [(call, row, column) for call, row, column in call.kv[0][0, row, 0][:, [CALL, ROW, COLUMN]].tolist()]


def holders(record: Record, call: Call, row: int) -> list[Label | None]:
    """The label of what each slot of a batch row holds; None for what no query of a model wrote."""
    models = call.kv[0][0, row, 0, :, MODEL].tolist()
    foreign = {DRAFT if call.role == TARGET else TARGET: FOREIGN[call.role]}
    return [
        record.of.get(write) if model == call.role else foreign.get(model)
        for write, model in zip(writes(call, row), models, strict=True)
    ]


def self_hidden(call: Call, row: int) -> list[bool]:
    """The columns that cannot see themselves: the decoder's own mask calls them pads."""
    columns = call.tokens.shape[1]
    slot = {
        int(fields[COLUMN]): i
        for i, fields in enumerate(call.kv[0][0, row, 0])
        if (fields[CALL], fields[ROW], fields[MODEL]) == (call.number, row, call.role)
    }
    return [c not in slot or not call.visible[row, c, slot[c]] for c in range(columns)]


def overwritten(call: Call, row: int) -> list[bool]:
    """The columns that see the entry of another batch row of the same call, and not their own.

    Two rows were written to one place. With an equal id such a query has the digest of the other row's, by chance.
    """
    fields = call.kv[0][0, row, 0]
    foreign = (fields[:, CALL] == call.number) & (fields[:, MODEL] == call.role) & (fields[:, ROW] != row)
    if not foreign.any():
        return [False] * call.tokens.shape[1]
    shown = call.visible[row][:, foreign].any(axis=1).tolist()
    return [hidden and other for hidden, other in zip(self_hidden(call, row), shown, strict=True)]
