"""What the rounds of a decoded case say: each token that can be read, with the laws it may have been drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from eqcheck.alone import digests_of
from eqcheck.attribution.sampling import Mark
from eqcheck.contract import RowOptions
from eqcheck.hashing import Words
from eqcheck.lanes.sampling.case import SampledCase
from eqcheck.lanes.sampling.decode import DRAFT, TARGET, UNCUT, law_behind, laws
from eqcheck.lanes.sampling.judge import SampledOutcome
from eqcheck.options import ORDER
from eqcheck.sampling.bets import tighter
from eqcheck.sampling.rounds import Read
from eqcheck.sampling.row import Floats
from eqcheck.sampling.suspects import BESIDE, VARIANTS

_BEHIND = ("top-k", "top-p", "min-p", "temperature")
Rounds = dict[int, list[list[Mark]]]  # of each row, the marks of each of its rounds
_OWN = ("temperature", "top_k", "top_p", "min_p")


def reads(outcome: SampledOutcome) -> Iterator[Read]:
    """The rows of a case, as far as they can be read."""
    case, marks = outcome.case, outcome.marks
    if not marks:
        return
    texts = [(*prompt, *output) for prompt, output in zip(case.prompts, outcome.outputs or (), strict=True)]
    digests = digests_of(case.family, texts)
    of_rows = {number: [mark for mark in marks if mark.row == number] for number in sorted({m.row for m in marks})}
    rounds = {number: _rounds(own) for number, own in of_rows.items()}
    for number, own in of_rows.items():
        yield _read(outcome, number, own, digests[number], rounds)


def _rounds(marks: list[Mark]) -> list[list[Mark]]:
    """The marks of one row, a list for each call: rows of one batch have their rounds together, in one call or not."""
    calls = sorted({mark.call for mark in marks})
    return [[mark for mark in marks if mark.call == call] for call in calls]


def _read(outcome: SampledOutcome, number: int, marks: list[Mark], digests: Words, rounds: Rounds) -> Read:
    case, row = outcome.case, outcome.sampled[number]
    at = np.array([mark.at for mark in marks])
    assert row.q is not None
    p, q = (
        {name: law[at] for name, law in _variants(outcome, which, number, digests, right).items()}
        for which, right in ((TARGET, row.p), (DRAFT, row.q))
    )
    behind, q_behind = row.p[np.minimum(at + 1, len(row.p) - 1)], q[""].copy()
    for i, mark in enumerate(marks):
        if mark.behind:
            tokens = [*row.tokens[: mark.at].tolist(), mark.draft]
            behind[i] = law_behind(case, TARGET, number, tokens, mark.behind)
            q_behind[i] = law_behind(case, DRAFT, number, tokens, mark.behind)
    return Read(
        np.array([mark.role for mark in marks]),
        np.array([mark.drafted for mark in marks]),
        row.tokens[at],
        np.array([mark.draft for mark in marks]),
        np.array([mark.column for mark in marks]),
        at == 0,
        p,
        q,
        row.p[np.maximum(at - 1, 0)],
        behind,
        _beside(outcome, number, q[""], q_behind, rounds),
    )


def _variants(outcome: SampledOutcome, which: int, number: int, digests: Words, right: Floats) -> dict[str, Floats]:
    """The laws ``[n, V]`` of target or draft at all tokens of a row, by variant; the right one where it is the same."""
    case, tokens = outcome.case, outcome.sampled[number].tokens
    found = {"": right}
    for name, (options, order) in _changes(case, number).items():
        same = options == case.rows[number] and order == case.order
        found[name] = right if same else laws(case, which, number, tokens, digests, options, order)
    cut = (right > 0).sum(-1) < (found["top-p"] > 0).sum(-1)
    found["top-p-tighter"] = np.where(cut[:, None], tighter(right), right)
    assert set(found) == {"", *VARIANTS}
    return found


def _changes(case: SampledCase, number: int) -> dict[str, tuple[RowOptions, tuple[str, ...]]]:
    """The options and their order that each variant takes for a row."""
    own, count, greedy = case.rows[number], len(case.rows), any(not row.temperature for row in case.rows)
    others = {"first-row": 0, "next-row": (number + 1) % count, "row-before": (number - 1) % count}
    options: dict[str, dict[str, Any]] = {
        "temperature": {"temperature": 1.0},
        "temperature-twice": {"temperature": own.temperature**2},
        "top-k": {"top_k": 0},
        "top-p": {"top_p": 1.0},
        "min-p": {"min_p": 0.0},
        "cuts": {name: UNCUT[name] for name in _OWN[1:]},
        "options": UNCUT,
        "greedy": {"temperature": 0.0},
        "top-k-tighter": {"top_k": own.top_k - 1 if own.top_k > 1 else own.top_k},
        "top-k-greedy": {"temperature": 1e-5 if own.top_k else own.temperature},
        "greedy-beside": {"temperature": 1e-5 if greedy else own.temperature},
        "first-row-temperature": {"temperature": case.rows[0].temperature},
        **{name: {one: getattr(case.rows[row], one) for one in _OWN} for name, row in others.items()},
    }
    found = {name: (replace(own, **values), case.order) for name, values in options.items()}
    return {**found, "order": (own, _BEHIND), "order-first": (own, ORDER)}


def _beside(outcome: SampledOutcome, number: int, q: Floats, behind: Floats, rounds: Rounds) -> dict[str, Floats]:
    """The draft's laws ``[n, V]`` of other rows and columns of each token's round; zeros where they are not known."""
    found = {name: np.zeros_like(q) for name in BESIDE}
    count_rows, i = len(outcome.case.rows), 0
    for count, marks in enumerate(rounds[number]):
        drafts = sum(mark.draft >= 0 for mark in marks) + marks[-1].more  # settled before any of them was accepted
        others = {
            "q-next-row": _row_of(rounds, number, count, 1, count_rows),
            "q-row-before": _row_of(rounds, number, count, -1, count_rows),
            "q-first-row": _row_of(rounds, -1, count, 1, count_rows),
            "q-round-before": rounds[number][count - 1] if count else [],
        }
        for column, mark in enumerate(marks):
            for name, other in others.items():
                found[name][i] = _at(outcome, other, mark.column)
            if mark.more:
                found["q-next-column"][i] = behind[i]
            elif column + 1 < drafts:
                found["q-next-column"][i] = q[i + 1]
            if mark.column and column:
                found["q-column-before"][i] = q[i - 1]
            i += 1
    return found


def _row_of(rounds: Rounds, number: int, count: int, step: int, rows: int) -> list[Mark]:
    """What the next row that is decoded had in a round; nothing where a row comes first that was not read."""
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
