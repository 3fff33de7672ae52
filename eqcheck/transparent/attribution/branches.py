"""The columns of a block with a tree that hold the row's own tokens, and the places of its other nodes in the row.

The tree is not known: a decoder may lay out its nodes in any order, and make trees of its own. A block shows only the
tokens, the columns of the block that each node sees, and the positions. The mask or the positions may be wrong, so
either of the two is enough. From the root on, the next token of the row is looked for among the columns behind. It is a
column whose context is right beyond doubt, or a column that feeds the token and comes behind the token before it, by
the mask or by its position. Two nodes can hold the same token, and both be the row's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eqcheck.core.explanation.records import Deviation
from eqcheck.core.explanation.statements import NOTHING, Statement, state
from eqcheck.transparent.attribution.writes import Label, Record, Write, self_hidden
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, MODEL
from eqcheck.transparent.hashlm.trace import TARGET, Call


class Block:
    """Columns of one row of a call, from the ``first`` real column on, which stands at logical position ``at``."""

    def __init__(self, record: Record, call: Call, row: int, columns: range, request: int, first: int, at: int) -> None:
        self.record, self.call, self.row, self.request = record, call, row, request
        self.columns, self.first, self.at = [c for c in columns if c >= first], first, at
        self.tokens, self.positions = call.tokens[row].tolist(), call.positions[row].tolist()
        self.hidden = self_hidden(call, row)
        self.sees, self.alone = seen_in_block(call, row, set(self.columns))
        self.proposed = record.proposed(request, call.number) if record.drafted else set[int]()
        self._numbered = self._counts_columns()

    def labels(self, exact: Mapping[int, int]) -> dict[int, Label]:
        """The label of each column; ``exact`` has the positions of the columns that are right beyond doubt."""
        # A column of filler may hold the same entry as a token; no cache tells the two apart.
        alike = {c: at for c, at in exact.items() if self.tokens[c] != self.record.pad and self._fills(c)}
        # Every node stands behind the root, so a right context at an earlier position is no node of this tree.
        exact = {column: at for column, at in exact.items() if column == self.first or at > self.at}
        path = self._path(exact)
        own = {column: at for at, column in enumerate(path, start=self.at)}
        for length in range(1, len(path)):  # other nodes with the same token
            at = self.at + length
            own |= {c: at for c in self.columns if c not in own and self._behind(c, path[:length], at)}
        own |= alike | exact
        labels: dict[int, Label] = {}
        for column in self.columns:
            if column in own:
                labels[column] = Label(self.request, own[column], "token", column in exact)
            # Filler before drafts: by its token alone it would be a node that nobody accepted.
            elif self._fills(column):
                what = "pad" if self.tokens[column] == self.record.pad else "filler"
                labels[column] = Label(self.request, -1 if what == "pad" else self.at + 1, what)
            else:
                labels[column] = Label(self.request, self.depth(column), "draft", False, self._agreed(column, labels))
        return labels

    def _path(self, exact: Mapping[int, int]) -> list[int]:
        """The columns of the row's own tokens, from the first on; of equal ones the first."""
        path = [self.first]
        while True:
            position = self.at + len(path)
            sure = [c for c in self.columns if exact.get(c) == position]
            found = sure or [c for c in self.columns if c > path[-1] and self._behind(c, path, position)]
            if not found:
                return path
            path.append(found[0] if sure else max(found, key=lambda c: (self._behind(c, path, position), -c)))

    def _behind(self, column: int, path: list[int], position: int) -> int:
        """The weight of evidence that a column feeds the row's token at this position, behind a path; 0 against it."""
        if self._is_pad(column) or not self.record.is_at(self.request, position, self.tokens[column]):
            return 0
        seen = self.sees[column]
        by_mask = 2 if seen == set(path) else int(path[-1] in seen)
        found = by_mask + int(self.positions[column] == self.positions[path[-1]] + 1)
        return 0 if self.hidden[column] and found < 3 else found  # what fills up a row does not agree in both

    def _fills(self, column: int) -> bool:
        """Return whether a column is no node: it sees nothing but itself,
        or it feeds the pad id and does not see the root.

        A wrong mask may hide a node from itself: that was proposed, and sees something else.
        """
        hidden = self.hidden[column] and not (self.tokens[column] in self.proposed and not self.alone[column])
        return column != self.first and (hidden or self.alone[column] or self._is_pad(column))

    def _is_pad(self, column: int) -> bool:
        return self.tokens[column] == self.record.pad and self.first not in self.sees[column]

    def depth(self, column: int) -> int:
        """The logical position of a node: by its own position, or where positions only number columns, by the mask."""
        if self._numbered:
            return self.at + len(self.sees[column])
        return self.at + max(1, int(self.positions[column] - self.positions[self.first]))

    def _counts_columns(self) -> bool:
        """Return whether positions only number the columns, although the mask says that it is no chain."""
        real = [column for column in self.columns if not self._fills(column)]
        numbered = all(self.positions[c] - self.positions[self.first] == c - self.first for c in real)
        return numbered and any(len(self.sees[column]) < place for place, column in enumerate(real))

    def _agreed(self, column: int, found: Mapping[int, Label]) -> bool:
        """Return whether the target's answer at a node's parent is the node's token, and all before it were so."""
        parent = max(self.sees[column], key=lambda c: (len(self.sees[c]), c), default=None)
        above = found.get(parent) if parent is not None else None
        kept = above is not None and (above.what == "token" or above.agreed)
        return kept and int(self.call.predictions[self.row, parent]) == self.tokens[column]


def grows_trees(run: Run) -> bool:
    """Return whether a wrong token is the answer at a node beside others: a tree of the decoder's own, which no case
    names.

    The node feeds the row's token before the wrong one. It sees an own column before it and another of them not, or
    where the mask is wrong, columns that stand beside one another.
    """
    for prompt, truth, row in zip(run.case.prompts, run.truth.uncut, run.outputs or (), strict=False):
        index = next((at for at, pair in enumerate(zip(row, truth, strict=False)) if pair[0] != pair[1]), None)
        if index is None:
            continue
        fed = (*prompt, *truth)[len(prompt) + index - 1]
        for call in run.trace.made(TARGET):
            nodes = zip(*np.nonzero((call.tokens == fed) & (call.predictions == row[index])), strict=True)
            if any(_beside(call, int(batch_row), int(column), run.case.pad_token_id) for batch_row, column in nodes):
                return True
    return False


def _beside(call: Call, row: int, column: int, pad: int) -> bool:
    """Return whether a column sees itself and a real column of its block before it, but not another real column before
    it.

    A column also counts where two columns that it sees have one position and feed different tokens, and a third column
    that it sees has the position before.
    """
    hidden = self_hidden(call, row)
    if hidden[column]:
        return False
    sees, alone = seen_in_block(call, row, set(range(column + 1)))
    real = {at for at in range(column) if not hidden[at] and not alone[at]}
    if any(sees[at] & sees[column] for at in real - sees[column]):
        return True
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    fed: dict[int, set[int]] = {}
    for at in (real & sees[column]) | {column}:
        fed.setdefault(positions[at], set()).add(tokens[at])
    above = {positions[at] + 1 for at in sees[column]}
    return any(len(beside - {pad}) > 1 and position in above for position, beside in fed.items())


def said_of(deviation: Deviation, write: Write, record: Record) -> Statement:
    """The statement that a query carries its place in the block instead of its depth, where its whole tree does so.

    In a chain the two are one. The right position may exceed the logical one, by the same number for all queries.
    """
    call, row = record.calls[write[0]], write[1]
    labels = [(column, record.of.get((call.number, row, column))) for column in range(call.tokens.shape[1])]
    nodes = [(column, one.position) for column, one in labels if one and one.what in ("token", "draft")]
    if deviation.kind != "query-position" or not nodes:
        return NOTHING
    (first, at), carried = nodes[0], call.positions[row].tolist()
    right = at + (deviation.expected or 0) - record.of[write].position
    numbered = all(carried[column] == right + column - first for column, _ in nodes)
    branches = any(position - at != column - first for column, position in nodes)
    return state("counts-nodes", call=call.number, batch_row=row) if numbered and branches else NOTHING


def seen_in_block(call: Call, row: int, columns: set[int]) -> tuple[dict[int, set[int]], dict[int, bool]]:
    """Return for each column the others that it sees, and whether it sees nothing but itself."""
    fields = call.kv[0][0, row, 0]
    own = np.flatnonzero((fields[:, CALL] == call.number) & (fields[:, MODEL] == call.role))
    column_of = {int(slot): int(fields[slot, COLUMN]) for slot in own}
    sees, alone = {}, {}
    for column in columns:
        slots = np.flatnonzero(call.visible[row, column]).tolist()
        block = {column_of[slot] for slot in slots if slot in column_of}
        sees[column] = (block & columns) - {column}
        alone[column] = len(slots) - (column in block) == 0
    return sees, alone
