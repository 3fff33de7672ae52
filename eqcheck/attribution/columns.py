"""The labels of columns that belong to one request: the first rule that applies says what a column is.

`eqcheck.attribution.context` turns the labels of the slots that a query sees into kinds of faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from eqcheck.attribution.branches import Block
from eqcheck.attribution.record import Label, Record, self_hidden
from eqcheck.hashlm.trace import Call


@dataclass
class Columns:
    """Columns of a row of a call, labelled from left to right.

    ``first`` is the first real one, column c feeds ``start + c``; ``exact`` has the positions of the columns that are
    right beyond doubt. No round has more than ``most`` drafts: a pad id behind so many is a pad, even if it was
    ``proposed``. Up to ``column`` the row has come to ``position``, and left its own tokens unless it is ``on_path``;
    pads go up to the column ``inside``. The token fed at ``in_prompt`` is not the prompt's.
    """

    record: Record
    call: Call
    row: int
    columns: range
    request: int
    first: int
    start: int
    exact: Mapping[int, int]
    proposed: set[int]
    most: float
    found: dict[int, Label] = field(default_factory=dict)
    column: int = 0
    position: int = 0
    on_path: bool = True
    inside: int = 0
    in_prompt: int | None = None
    drafts: int = 0

    def labels(self) -> dict[int, Label]:
        """The label of each column."""
        self.position = self.start + self.first - 1
        for column in self.columns:
            self.column = column
            label = next(label for rule in RULES if (label := rule(self)) is not None)
            self.found[column] = replace(label, exact=column in self.exact)
        if self.record.branches:
            at = self.start + self.first
            block = Block(self.record, self.call, self.row, self.columns, self.request, self.first, at)
            return self.found | block.labels(self.exact)
        return self._filled_up()

    def _filled_up(self) -> dict[int, Label]:
        """The columns that the mask hides from themselves are filler, where it hides no token of the row so."""
        hidden = self_hidden(self.call, self.row)
        if any(hidden[column] for column, label in self.found.items() if label.what == "token"):
            return self.found
        drafts = {c: label for c, label in self.found.items() if label.what == "draft" and hidden[c]}
        return self.found | {column: replace(label, what="filler") for column, label in drafts.items()}

    def _fed(self, position: int) -> bool:
        """Return whether the column feeds the token that the request has there."""
        return self.record.is_at(self.request, position, int(self.call.tokens[self.row, self.column]))

    def _feeds_pad(self) -> bool:
        """Return whether it feeds a pad id that is no draft."""
        return self.record.is_pad(self.call, self.row, self.column, self.proposed)

    # The rules.

    def before_first(self) -> Label | None:
        if self.column >= self.first:
            return None
        at = self.start + self.column
        return Label(self.request, at, "token") if self._fed(at) else Label(self.request, -1, "pad")

    def right_beyond_doubt(self) -> Label | None:
        if self.column not in self.exact:
            return None
        self.on_path, self.position, self.in_prompt = True, self.exact[self.column], None
        return Label(self.request, self.position, "token")

    def next_token(self) -> Label | None:
        if not (self.on_path and self._fed(self.position + 1)) or self._pad_ahead():
            return None
        self.position += 1
        return Label(self.request, self.position, "token")

    def pad(self) -> Label | None:
        proposed = self.proposed if self.drafts < self.most else set()
        if self.column >= self.inside and not self.record.is_pad(self.call, self.row, self.column, proposed):
            return None
        return Label(self.request, -1, "pad")

    def pads_inside(self) -> Label | None:
        """Several pads behind which the row goes on: pads among its tokens, even if the draft proposed the pad id."""
        behind = range(self.column, self.columns[-1] + 1)
        tokens = self.call.tokens[self.row].tolist()
        end = next((c for c in behind if tokens[c] != self.record.pad), 0)
        several = self.on_path and end > self.column + 1
        if not (several and self.record.is_at(self.request, self.position + 1, tokens[end])):
            return None
        self.inside = end
        return Label(self.request, -1, "pad")

    def fills_a_prompt(self) -> Label | None:
        """A token behind a part of a prompt that is not its next one: a draft comes behind the prompt's last token."""
        if self.on_path and self.position + 1 < len(self.record.requests[self.request].prompt):
            self.in_prompt = self.position + 1
        if self.in_prompt is None:
            return None
        self.on_path = False
        return Label(self.request, self.in_prompt, "filler")

    def draft_or_filler(self) -> Label:
        self.on_path = False
        self.position += 1
        if self.record.drafted and int(self.call.tokens[self.row, self.column]) not in self.proposed:
            return Label(self.request, self.position, "filler")
        self.drafts += 1
        return Label(self.request, self.position, "draft", agreed=self._agreed())

    def _agreed(self) -> bool:
        """Return whether the target's answer in the column before is what a draft proposes,
        and none before it was refused.
        """
        before = self.found.get(self.column - 1) or self.record.of.get((self.call.number, self.row, self.column - 1))
        kept = before is not None and (before.what == "token" or before.agreed)
        answer, fed = self.call.predictions[self.row, self.column - 1], self.call.tokens[self.row, self.column]
        return kept and int(answer) == int(fed)

    def _pad_ahead(self) -> bool:
        """Return whether it feeds a pad that only happens to be the row's next token: nothing had proposed it yet."""
        end, next_one = len(self.record.requests[self.request].prompt), self.position + 1
        new = next_one >= end and next_one > self.record.reached.get(self.request, end - 1) + 1
        return new and self._feeds_pad()


RULES: tuple[Callable[[Columns], Label | None], ...] = (
    Columns.before_first,
    Columns.right_beyond_doubt,
    Columns.next_token,
    Columns.pad,
    Columns.pads_inside,
    Columns.fills_a_prompt,
    Columns.draft_or_filler,
)
