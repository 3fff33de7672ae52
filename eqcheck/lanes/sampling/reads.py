"""The tokens of a decoded case whose rounds can be read, each with the laws it may have been drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np

from eqcheck.hashlm.hashing import Words
from eqcheck.lanes.sampling.decode import DRAFT, TARGET, Mark, law_behind, scores
from eqcheck.lanes.sampling.judge import SampledOutcome
from eqcheck.lanes.sampling.laws import variants
from eqcheck.sampling.laws import BESIDE, PLACES
from eqcheck.sampling.rounds import Read
from eqcheck.sampling.row import Floats, Ints
from eqcheck.truth.continuation import digests_of

Rounds = Mapping[int, list[list[Mark]]]  # of each row, the marks of each of its rounds


def reads(outcome: SampledOutcome) -> Iterator[Read]:
    """The rows of a case, as far as they can be read."""
    if not outcome.marks:
        return
    rows = zip(outcome.case.prompts, outcome.outputs or (), strict=True)
    digests = digests_of(outcome.case.family, [(*prompt, *output) for prompt, output in rows])
    for number in sorted(outcome.marks):
        yield _read(outcome, number, digests[number])


def _read(outcome: SampledOutcome, number: int, digests: Words) -> Read:
    case, row, rounds = outcome.case, outcome.sampled[number], outcome.marks[number]
    tokens = row.tokens.tolist()
    marks = list(chain.from_iterable(rounds))
    at = np.array([mark.at for mark in marks])
    assert row.q is not None

    def misused(which: int, right: Floats) -> dict[str, Floats]:
        laws = variants(right, scores(case, which, number, tokens, digests), case, number)
        return {name: law[at] for name, law in laws.items()}

    p, q = misused(TARGET, row.p), misused(DRAFT, row.q)
    own = row.p[at], row.q[at]
    beside = _beside(outcome, number, own[1])
    spent = _spent(marks, row.tokens[at], *own)
    return Read(
        np.array([mark.role for mark in marks]),
        np.array([mark.drafted for mark in marks]),
        row.tokens[at],
        np.array([mark.draft for mark in marks]),
        np.array([mark.column for mark in marks]),
        at == 0,
        p,
        q,
        _around(outcome, number, rounds),
        beside,
        *spent,
    )


def _around(outcome: SampledOutcome, number: int, rounds: list[list[Mark]]) -> dict[str, Floats]:
    """The target's laws ``[n, V]`` at other places of the row, by `PLACES`."""
    p = outcome.sampled[number].p
    places: dict[str, list[Floats]] = {name: [] for name in PLACES}
    for count, marks in enumerate(rounds):
        before = rounds[count - 1][-1] if count else None
        last = None if before is None else p[before.at]
        end = last if before is None or not before.refused else _behind(outcome, TARGET, number, before, -1)
        for mark in marks:
            own = p[mark.at]
            places["before"].append(p[max(mark.at - 1, 0)])
            follows = p[min(mark.at + 1, len(p) - 1)]
            places["behind"].append(_behind(outcome, TARGET, number, mark, 0) if mark.refused else follows)
            places["first-column"].append(p[mark.at - mark.column] if mark.column <= mark.at else own)
            places["round-before"].append(own if last is None else last)
            places["round-before-end"].append(own if end is None else end)
    return {name: np.array(laws) for name, laws in places.items()}


def _behind(outcome: SampledOutcome, which: int, number: int, mark: Mark, count: int) -> Floats:
    """The law behind one of the draft tokens that were refused."""
    tokens = [*outcome.sampled[number].tokens[: mark.at].tolist(), mark.draft]
    return law_behind(outcome.case, which, number, tokens, mark.refused[count])


def _spent(marks: list[Mark], tokens: Ints, p: Floats, q: Floats) -> tuple[Floats, Floats]:
    """The bounds on the number that accepted the draft token before ``[n]``, and on all of the round so far."""
    spent, lowest = np.ones(len(marks)), np.ones(len(marks))
    for i, (mark, before) in enumerate(zip(marks[1:], marks, strict=False), 1):
        token = tokens[i - 1]
        if mark.call == before.call and mark.column == before.column + 1 and q[i - 1, token] > 0:
            spent[i] = min(1.0, p[i - 1, token] / q[i - 1, token])
            lowest[i] = min(lowest[i - 1], spent[i])
    return np.maximum(spent, 1e-9), np.maximum(lowest, 1e-9)


def _beside(outcome: SampledOutcome, number: int, q: Floats) -> dict[str, Floats]:
    """The draft's laws ``[n, V]`` of other rows and columns of each token's round; zeros where they are not known."""
    beside = {name: np.zeros_like(q) for name in BESIDE}
    rounds, count_rows, i = outcome.marks, len(outcome.case.rows), 0
    for count, marks in enumerate(rounds[number]):
        own, end = q[i : i + len(marks)], marks[-1]
        # The laws of all columns: they were settled before any draft token was accepted.
        settled = [law for law, mark in zip(own, marks, strict=True) if mark.draft >= 0]
        settled += [_behind(outcome, DRAFT, number, end, fed) for fed in range(len(end.refused) - 1)]
        others = {
            "q-next-row": _row_of(rounds, number, count, 1, count_rows),
            "q-row-before": _row_of(rounds, number, count, -1, count_rows),
            "q-first-row": _row_of(rounds, -1, count, 1, count_rows),
            "q-round-before": rounds[number][count - 1] if count else [],
        }
        for place, mark in enumerate(marks):
            for name, other in others.items():
                beside[name][i] = _at(outcome, other, mark.column)
            if place + 1 < len(settled):
                beside["q-next-column"][i] = settled[place + 1]
            if mark.column and place:
                beside["q-column-before"][i] = q[i - 1]
            if settled and marks[0].column == 0:
                beside["q-first-column"][i], beside["q-last-column"][i] = settled[0], settled[-1]
            i += 1
    return beside


def _row_of(rounds: Rounds, number: int, count: int, step: int, rows: int) -> list[Mark]:
    """The marks that the next decoded row had in a round; none if a row comes first that was not read."""
    for away in range(1, rows):
        row = (number + step * away) % rows
        if row not in rounds:
            return []
        if count < len(rounds[row]):
            return rounds[row][count]
    return []


def _at(outcome: SampledOutcome, marks: list[Mark], column: int) -> Floats:
    """The draft's law ``[V]`` that a row has in this column of a round; zeros where it has none."""
    for mark in marks:
        if mark.column == column and (q := outcome.sampled[mark.row].q) is not None:
            return np.asarray(q[mark.at])
    return np.zeros(outcome.case.vocab_size)
