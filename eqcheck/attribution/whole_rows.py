"""Recognise rows returned whole, as ``generate()`` gives them: the prompt, perhaps padded, then the new tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from eqcheck.explanation.records import many
from eqcheck.explanation.statements import Statement, state, together
from eqcheck.result.verdict import RowVerdict

Ids = tuple[int, ...]


class _Whole(NamedTuple):
    """The make-up of a whole row: pads, the prompt, pads, the row's tokens, and ``behind`` them pads again."""

    before: int
    between: int
    behind: int
    tokens: int


def prompt_returned(
    prompts: Sequence[Ids], rows: Sequence[RowVerdict], limits: Sequence[int], pad: int | None, eos: Ids = ()
) -> tuple[RowVerdict, Statement] | None:
    """The first row that begins with its prompt or the end of it; None unless that is so of every wrong row.

    The tokens behind the prompt must be the target's, or as many of these as the row's limit leaves. A row counts as
    proof only where it differs from the truth within its prompt, and either has all that the target emits or a prompt
    of two different tokens: a single one can have come from elsewhere. Where the ``pad`` id is not known (None),
    any one id will do.

    >>> wrong = [RowVerdict(0, expected=(7, 8), observed=(3, 1, 7, 8))]
    >>> prompt_returned([(3, 1)], wrong, limits=[2], pad=None)[1].detail
    'the row is its prompt of 2 tokens, then what the target returns; return row[len(prompt):]'
    """
    wrong = [row for row in rows if row.first is not None]
    ids = [pad] if pad is not None else [-1, *sorted({token for row in wrong for token in row.observed})]
    for one in ids:
        found = {row: _whole(prompts[row.row], row, limits[row.row], one) for row in wrong}
        wholes = {row: whole for row, whole in found.items() if isinstance(whole, _Whole)}
        if all(found.values()):
            for row, whole in wholes.items():
                if _proves(prompts[row.row], row, whole):
                    start = _advice({len(prompts[r.row]) + w.before + w.between for r, w in wholes.items()}, wholes)
                    return row, _words(len(prompts[row.row]), whole, start)
    return _short_start(prompts, rows, limits, pad, eos)


def _short_start(
    prompts: Sequence[Ids], rows: Sequence[RowVerdict], limits: Sequence[int], pad: int | None, eos: Ids
) -> tuple[RowVerdict, Statement] | None:
    """The first row that begins with the end of its prompt, where that is so of every wrong row.

    A new token behind it proves that; or, where the limit leaves none, that as many ids of every prompt are special: a
    single id of a prompt may come from elsewhere.
    """
    short = {row: _missing(prompts[row.row], row, limits[row.row]) for row in rows if row.first is not None}
    if not all(short.values()):
        return None
    special: dict[str, set[RowVerdict]] = {}  # the wrong rows that are short by as many ids as it explains
    for name, ids in (("the pad id", (pad,)), ("the EOS id" if len(eos) == 1 else "an EOS id", eos), ("id 0", (0,))):
        counts = {row: sum(token in ids for token in prompts[row.row]) for row in rows}
        if all(counts[row] == short.get(row, 0) or short.get(row, 0) >= limits[row.row] for row in rows):
            special[name] = {row for row, n in short.items() if counts[row] == n}
    proved = [row for row, n in short.items() if len(row.observed) > n or any(row in some for some in special.values())]
    if not proved:
        return None
    names = " and to ".join(name for name, some in special.items() if proved[0] in some)
    said = [state("as-many-special", special=names)] if names else []
    return proved[0], together(state("short-start", tokens=short[proved[0]]), *said)


def _missing(prompt: Ids, row: RowVerdict, limit: int) -> int:
    """Return how many ids of the end of its prompt a row begins with, before all that it is due,
    or what its length leaves.
    """
    for count in range((row.first or 0) + 1, len(prompt)):  # behind the first difference; the row may repeat its prompt
        tail = row.observed[count:]
        whole = len(tail) == len(row.expected) or len(row.observed) in (limit, len(row.expected))
        if row.observed[:count] == prompt[-count:][: len(row.observed)] and tail == row.expected[: len(tail)] and whole:
            return count
    return 0


def _whole(prompt: Ids, row: RowVerdict, limit: int, pad: int) -> _Whole | bool:
    """The make-up of the row; True where the limit cut it off within its prompt, False for any other row."""
    observed, right = row.observed, row.expected
    cut = len(observed) == limit
    for before in _pads(observed, pad):
        rest = observed[before:]
        if rest[: len(prompt)] == prompt:
            for between in _pads(rest[len(prompt) :], pad):
                tail = rest[len(prompt) + between :]
                behind = tail[len(right) :]
                if tail[: len(right)] == right[: len(tail)] and set(behind) <= {pad} and (tail or cut):
                    return _Whole(before, between, len(behind), len(tail) - len(behind))
        elif cut and rest and rest == prompt[: len(rest)]:
            return True
    return False


def _pads(row: Ids, pad: int) -> Iterator[int]:
    """Yield how many pads may be taken off the front of a row: none, one, and so on."""
    yield 0
    for count, token in enumerate(row, 1):
        if token != pad:
            return
        yield count


def _proves(prompt: Ids, row: RowVerdict, whole: _Whole) -> bool:
    assert row.first is not None
    shown = whole.tokens and row.first < whole.before + len(prompt)
    return bool(shown) and (len(set(prompt)) > 1 or whole.tokens == len(row.expected))


def _words(length: int, whole: _Whole, advice: str) -> Statement:
    ahead = f"{many(whole.before, 'pad')}, " if whole.before else ""
    after = f", {many(whole.between, 'pad')}" if whole.between else ""
    words = f"the row is {ahead}its prompt of {many(length, 'token')}{after}, then what the target returns; {advice}"
    return Statement(words, {"statement": "whole-row", "prompt": length, **whole._asdict()})


def _advice(starts: set[int], wholes: Mapping[RowVerdict, _Whole]) -> str:
    """The advice on the value to return; ``starts`` is where the new tokens of the rows begin."""
    what = "return row[len(prompt):]"
    if any(whole.before or whole.between for whole in wholes.values()):
        what = f"return row[{min(starts)}:]" if len(starts) == 1 else "return what follows the pads and the prompt"
    return f"{what} without the pads at its end" if any(whole.behind for whole in wholes.values()) else what
