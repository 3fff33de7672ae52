"""The law of acceptance: how many draft tokens are due, where the draft model of an engine is a built one.

Greedy rows have no chance in them. The proposals of a built draft are a function of the text, and so is the number of
them with which the target agrees. An engine that accepts less feeds its draft something else than the row, verifies
fewer tokens than K, or throws right ones away: the output is right, and speed is lost.

An engine that tells its ``rounds`` is held to each of them. Of another the total is known, for a row or for the batch.
Then the least total of right engines counts: the first drafts come with the prompt or after its first token, and
engines differ on whether they count the last round of a row, which its end cuts short.

A sampled row has no chance in it either, once its text is known, where the draft is greedy: whoever verifies by
rejection or by a token of the target's own accepts a draft token if and only if it is the token of the text. An engine
that draws its drafts accepts tokens that are not the draft's likeliest, and shows by them that nothing is known of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any

import numpy as np

from eqcheck.core.case.engine import EngineCase, at_the_end
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.result.outcome import DraftsThat, DueBy, DueDrafts, DuePlace
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.construction.function import Function
from eqcheck.sampling.betting.laws import Floats, SampledRow

_ROWS = ((1, "1"), (3, "2-3"), (8, "4-8"))
_SAMPLED = DuePlace(DueBy.SAMPLED)
_PLACES = 4  # rows from this number on are counted as one


def accepted(case: EngineCase, outputs: Sequence[Sequence[int]], observed: Mapping[str, Any]) -> Counter[DueDrafts]:
    """Count the draft tokens that are due and accepted, by the rows of the batch, by row, and by position in a round.

    For cases whose outputs are right. ``observed`` is what the engine told: ``rounds``, ``accepted_of_rows``, or
    ``accepted`` of the case. Empty where nothing is known of the draft: it is no built one, blocks, a budget or the end
    of the model may cut its tokens off, or an option changes scores, which some engines apply to the draft, too.
    """
    pair, counts = checkpoint(case.checkpoint), Counter[DueDrafts]()
    if pair.built is None or not _known(case, observed):
        return counts
    rounds, by_row = (_of_rows(observed.get(name), len(outputs)) for name in ("rounds", "accepted_of_rows"))
    batch = DuePlace(DueBy.BATCH, next((name for most, name in _ROWS if len(case.rows) <= most), "9+"))
    agreed = [_agreed(pair.built[1].function, case, row, output) for row, output in enumerate(outputs)]
    if rounds is not None:
        for row, own in enumerate(rounds):
            last = len(agreed[row]) - case.num_draft_tokens  # before it there is room for all and the token behind
            for start, end in ((start, end) for start, _, end in own if 0 < start < last):
                _count_round(counts, (batch, _row(row)), agreed[row][start], end - start - 1)
        return +counts
    # Nobody tells whether drafting begins with the first new token or after it: the less of the two is due for sure.
    dues = [min(_least(own, first) for first in (0, 1)) for own in agreed]
    if by_row:
        for row, (due, seen) in enumerate(zip(dues, by_row, strict=True)):
            _count(counts, (batch, _row(row)), due, min(due, seen))
    elif "accepted" in observed:
        _count(counts, (batch,), sum(dues), min(sum(dues), observed["accepted"]))
    return +counts


def _count_round(counts: Counter[DueDrafts], places: tuple[DuePlace, ...], due: int, seen: int) -> None:
    """Count each draft token that was due in a round, and whether it was among the first ``seen``."""
    for place in range(due):
        _count(counts, (*places, DuePlace(DueBy.POSITION, str(place + 1))), 1, int(place < seen))


def _known(case: EngineCase, observed: Mapping[str, Any]) -> bool:
    """Return whether nothing but the draft decides which tokens are proposed."""
    cut = case.token_budget or case.kv_blocks or observed.get("preemptions") or at_the_end(case)
    return case.drafting == "model" and not cut and not any(map(_unclear, case.options))


def accepted_of_sampled(
    case: SampledEngineCase, rounds: Any, rows: Mapping[int, SampledRow], drafts: Mapping[int, Floats]
) -> Counter[DueDrafts]:
    """The same of the sampled rows of an engine that tells its ``rounds``, with the rounds whose drafts were drawn.

    ``drafts`` has by row the draft's laws ``[n, V]`` at each new token, before the options of the row. Rounds in which
    rounding may decide the draft's likeliest token say nothing.
    """
    counts, told, k = Counter[DueDrafts](), _of_rows(rounds, len(case.rows)), case.num_draft_tokens
    if case.drafting != "model" or told is None or any(map(_changed, case.options)):
        return counts
    for row, law in drafts.items():
        second, best = np.partition(law, -2)[:, -2:].T
        clear = best > second * (1 + float(np.max(rows[row].eps, initial=0)))
        agreed = _runs((law.argmax(-1) == rows[row].tokens).tolist(), k)
        for start, _, end in told[row]:
            if 0 < start < len(agreed) - k and clear[start : start + k].all():
                seen = end - start - 1
                counts[DueDrafts(_SAMPLED, DraftsThat.DRAWN)] += seen > agreed[start]
                _count(counts, (_SAMPLED,), agreed[start], min(seen, agreed[start]))
    return +counts


def _of_rows(told: Any, rows: int) -> Any:
    """An entry for each row, as it was told; None where it has another shape, which says nothing of drafts."""
    fits = isinstance(told, list | tuple) and len(told) == rows
    rounds = [one for own in told if isinstance(own, list | tuple) for one in own] if fits else []
    return told if fits and all(isinstance(one, list | tuple) and len(one) == 3 for one in rounds) else None


def _count(counts: Counter[DueDrafts], places: tuple[DuePlace, ...], due: int, seen: int) -> None:
    for place in places:
        counts[DueDrafts(place, DraftsThat.DUE)] += due
        counts[DueDrafts(place, DraftsThat.ACCEPTED)] += seen


def _row(row: int) -> DuePlace:
    return DuePlace(DueBy.ROW, str(row) if row < _PLACES else f"{_PLACES}+")


def _unclear(options: Any) -> bool:
    """Return whether a row is sampled, cancelled, or has scores that an option changes."""
    return bool(options.temperature) or _changed(options)


def _changed(options: Any) -> bool:
    return bool(options.changes_scores or options.cancel_after)


def _agreed(draft: Function, case: EngineCase, row: int, output: Sequence[int]) -> list[int]:
    """Return by number of new tokens how many of K draft tokens after them the output goes on with.

    A draft token that is right leaves the text as it is, so the draft reads the row once, and none has to be proposed.
    """
    prompt = case.rows[row].prompt
    right = map(eq, draft.choices([*prompt, *output])[len(prompt) - 1 :], output)
    return _runs(list(right), case.num_draft_tokens)


def _runs(right: Sequence[bool], k: int) -> list[int]:
    """At each place, how many of K draft tokens from there on are right.

    >>> _runs([True, True, False, True], 1), _runs([True, True, False, True], 3)
    ([1, 1, 0, 1], [2, 1, 0, 1])
    """
    counts, run = list[int](), 0
    for one in reversed(right):
        run = run + 1 if one else 0
        counts.append(min(run, k))
    return counts[::-1]


def _least(agreed: Sequence[int], first: int) -> int:
    """The draft tokens due in an output without its last round, if drafting begins after so many new tokens of it."""
    at, due, last = first, 0, 0
    while at < len(agreed) - 1:
        last = min(agreed[at], len(agreed) - at - 1)
        at, due = at + last + 1, due + last
    return due - last
