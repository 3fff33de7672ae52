"""The law of acceptance: how many draft tokens are due, where the draft model of an engine is a built one.

Greedy rows have no chance in them. The proposals of a built draft are a function of the text, and so is the number of
them with which the target agrees. An engine that accepts less feeds its draft something else than the row, verifies
fewer tokens than K, or throws right ones away: the output is right, and speed is lost.

An engine that tells its ``rounds`` is held to each of them. Of another the total is known, for a row or for the batch.
Then the least total of right engines counts: the first drafts come with the prompt or after its first token, and
engines differ on whether they count the last round of a row, which its end cuts short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eqcheck.case.engine import EngineCase
from eqcheck.checkpoints.dictation import agreeing
from eqcheck.checkpoints.models import checkpoint
from eqcheck.construction.function import Function

DUE, ACCEPTED = "due", "accepted"
_ROWS = ((1, "1"), (3, "2-3"), (8, "4-8"))
_PLACES = 4  # rows from this number on are counted as one


def accepted(case: EngineCase, outputs: Sequence[Sequence[int]], observed: Mapping[str, Any]) -> Counter[str]:
    """Draft tokens that are `DUE` and `ACCEPTED`, by ``batch`` (its rows), ``row`` and ``position`` in a round.

    For cases whose outputs are right. ``observed`` is what the engine told: ``rounds``, ``accepted_of_rows``, or
    ``accepted`` of the case. Empty where nothing is known of the draft: it is no built one, blocks or a budget may cut
    its tokens off, or an option changes scores, which some engines apply to the draft, too.
    """
    pair, counts = checkpoint(case.checkpoint), Counter[str]()
    cut = case.token_budget or case.kv_blocks or observed.get("preemptions")
    if case.drafting != "model" or cut or pair.built is None or any(map(_unclear, case.options)):
        return counts
    draft = pair.built[1].function
    rounds, by_row = (_of_rows(observed.get(name), len(outputs)) for name in ("rounds", "accepted_of_rows"))
    batch = "batch " + next((name for most, name in _ROWS if len(case.rows) <= most), "9+")
    if rounds is not None:
        for row, output in enumerate(outputs):
            for due, seen in _by_round(draft, case, row, output, rounds[row]):
                for place in range(due):
                    _count(counts, (batch, _row(row), f"position {place + 1}"), 1, int(place < seen))
        return +counts
    dues = [min(_least(draft, case, row, output, first) for first in (0, 1)) for row, output in enumerate(outputs)]
    if by_row:
        for row, (due, seen) in enumerate(zip(dues, by_row, strict=True)):
            _count(counts, (batch, _row(row)), due, min(due, seen))
    elif "accepted" in observed:
        _count(counts, (batch,), sum(dues), min(sum(dues), observed["accepted"]))
    return +counts


def _of_rows(told: Any, rows: int) -> Any:
    """An entry for each row, as it was told; None where it has another shape, which says nothing of drafts."""
    fits = isinstance(told, list | tuple) and len(told) == rows
    rounds = [one for own in told if isinstance(own, list | tuple) for one in own] if fits else []
    return told if fits and all(isinstance(one, list | tuple) and len(one) == 3 for one in rounds) else None


def _count(counts: Counter[str], names: tuple[str, ...], due: int, seen: int) -> None:
    for name in names:
        counts[f"{name} {DUE}"] += due
        counts[f"{name} {ACCEPTED}"] += seen


def _row(row: int) -> str:
    return f"row {row}" if row < _PLACES else f"row {_PLACES}+"


def _unclear(options: Any) -> bool:
    """Whether a row is sampled, cancelled, or has scores that an option changes."""
    return bool(options.temperature or options.changes_scores or options.cancel_after)


def _agreed(draft: Function, case: EngineCase, row: int, output: Sequence[int], at: int) -> int:
    """How many of K draft tokens after so many new ones the output goes on with."""
    text = [*case.rows[row].prompt, *output[:at]]
    return agreeing(draft.emitted(text[-draft.field :], case.num_draft_tokens), output[at:])


def _by_round(
    draft: Function, case: EngineCase, row: int, output: Sequence[int], rounds: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, int]]:
    """Of each round that has room for K drafts and the token behind them: the draft tokens due, and those accepted."""
    for start, _, end in rounds:
        if start and start + case.num_draft_tokens < len(output):
            yield _agreed(draft, case, row, output, start), end - start - 1


def _least(draft: Function, case: EngineCase, row: int, output: Sequence[int], first: int) -> int:
    """The draft tokens due in an output without its last round, if drafting begins after so many new tokens of it."""
    at, due, last = first, 0, 0
    while at < len(output) - 1:
        last = min(_agreed(draft, case, row, output, at), len(output) - at - 1)
        at, due = at + last + 1, due + last
    return due - last
