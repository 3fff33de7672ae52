"""A returned row that is not the row which the decoder went on with: its cache holds another token in one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from eqcheck.attribution.labels import Labels
from eqcheck.attribution.record import Write, writes
from eqcheck.decoding.run import Run
from eqcheck.explanation.statements import Statement, state, together
from eqcheck.hashlm.trace import Call
from eqcheck.truth.continuation import digests_of


@dataclass(frozen=True)
class Changed:
    """New token ``index`` of a row: the token ``returned``, and the one that is ``cached`` in its place.

    The cached token was ``verified`` in a call, in exactly the right context, and a later ``call`` goes on from it.
    """

    index: int
    position: int
    returned: int
    cached: int
    verified: int
    call: int
    next_one: int | None

    @property
    def statement(self) -> Statement:
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        again = [state("equals-next", behind=self.index + 1)] if self.returned == self.next_one else []
        return together(state("cache-differs", **facts), *again, state("changed-after"))


def changed(run: Run, labels: Labels, row: int) -> Changed | None:
    """The first new token of a row that was returned in place of the one in the cache; None where there is none.

    Some query has to feed a returned token in its own place, behind a row that is whole but for tokens that were not
    returned. That it is not the row one place on shows where the token differs from the one before it. And the returned
    token must not have been fed: else the cache kept the wrong one. A decoder that feeds its whole row again has the
    prompt in the places of new tokens, and has changed nothing.
    """
    outputs, prompt = run.outputs or (), run.case.prompts[row]
    text, start = (*prompt, *outputs[row]), len(prompt)
    for call in labels.calls.values():
        for seen in _whole_rows(call):
            last = len(seen) - 1
            if not start < last < len(text) or text[last] == text[last - 1]:
                continue
            held = [int(labels.calls[w[0]].tokens[w[1:]]) if w[0] in labels.calls else -1 for w in seen]
            other = [at for at in range(last + 1) if held[at] != text[at]]
            if not other or other[0] < start or held[last] != text[last] or len(other) * 2 > last - start + 1:
                continue
            position, write = other[0], seen[other[0]]
            fed = any(label.exact for _, label in labels.queries(row, position))
            if fed or write[0] == call.number or _begins_again(labels, write, prompt):
                continue
            if not _verified(run, labels, (*text[:position], held[position]), write):
                continue
            following = text[position + 1] if position + 1 < len(text) else None
            return Changed(position - start, position, text[position], held[position], write[0], call.number, following)
    return None


def _begins_again(labels: Labels, write: Write, prompt: tuple[int, ...]) -> bool:
    """Return whether a call feeds the prompt anew from this write on."""
    number, row, column = write
    fed = labels.calls[number].tokens[row, column : column + len(prompt)].tolist()
    return bool(fed == [*prompt[: len(fed)]])


def _whole_rows(call: Call) -> Iterator[list[Write]]:
    """The writers of the entries that a query sees, for each query that sees one in each place up to its own."""
    for row in range(len(call.tokens)):
        slots, places = writes(call, row), call.key_places[row]
        for column in range(call.tokens.shape[1]):
            visible = np.flatnonzero(call.visible[row, column])
            order = visible[np.argsort(places[visible], kind="stable")]
            own = (call.number, row, column)
            whole = len(order) and np.array_equal(places[order] - places[order[0]], np.arange(len(order)))
            if whole and slots[order[-1]] == own:
                yield [slots[slot] for slot in order]


def _verified(run: Run, labels: Labels, tokens: tuple[int, ...], write: Write) -> bool:
    """Return whether the query of this write saw exactly these tokens, itself the last."""
    number, row, column = write
    digest = digests_of(run.case.family, [tokens])[0][-1, -1]
    return bool(labels.calls[number].digests[row, column] == digest)
