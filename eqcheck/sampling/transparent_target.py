"""Sampled rows of the transparent target: its laws are exact, and the rounds of a case can be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from eqcheck.audit.workers.worker import Workers
from eqcheck.contract.decoders import Decoder, Generate
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import REGIMES, SampledCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.shrinking.reducer import first
from eqcheck.sampling.betting.laws import BESIDE, PLACES, UNCUT, Floats, Ints
from eqcheck.sampling.betting.naming import NAMED, KnownRounds, Named, argmax
from eqcheck.sampling.betting.round_laws import Read
from eqcheck.sampling.betting.wealth import HIGHEST
from eqcheck.sampling.decode import DRAFT, TARGET, Mark, law_behind, law_of, scores, seeded, variants
from eqcheck.sampling.drawing import SampledCases
from eqcheck.sampling.judge import IMPOSSIBLE, PROMISES, Gathered, SampledOutcome, try_case
from eqcheck.sampling.lane import TO_NAME, SampledLane, SampledTarget
from eqcheck.sampling.sampler_named import cause
from eqcheck.transparent.coverage import try_case as try_exact
from eqcheck.transparent.hashlm.hashing import Words
from eqcheck.transparent.truth.continuation import digests_of

# Faults that need no statistics, in the smallest request that shows each: impossible tokens, promises, greedy rows.

TryCase = Callable[[Any], Outcome]
_TRIES = 6  # other random numbers, for a smaller request to show the same


def smallest(outcome: Outcome, try_case: TryCase) -> Outcome:
    """The same kind of token without probability, or broken promise, in fewer rows and tokens; else as it was."""
    read = outcome.explanation
    if read is None or read.row is None or read.token_index is None:
        return outcome

    def shows(case: SampledCase) -> Outcome | None:
        found = try_case(case)
        return found if found.symptom == outcome.symptom == try_case(case).symptom else None

    shown = first(_smaller(outcome.case, read.row, read.token_index), shows)
    return outcome if shown is None else replace(shown[1], drawn=outcome.drawn)


def _smaller(case: SampledCase, row: int, token_index: int) -> Iterator[SampledCase]:
    """Few rows that end with the token, or later, each with the same and with other random numbers."""
    rng = Random(case.entropy)
    for rows in _with_few(case, row):
        fewer = case.of(rows)
        limit = min(token_index + 1, fewer.max_new_tokens)
        for options in (_limited(fewer, limit), fewer):
            yield from (options, *(options.renewed(rng) for _ in range(_TRIES)))


def _with_few(case: SampledCase, row: int) -> Iterator[list[int]]:
    """The row alone, and with one other: the first, or a neighbour."""
    yield [row]
    for other in dict.fromkeys((0, row - 1, row + 1)):
        if 0 <= other < len(case.rows) and other != row:
            yield sorted((other, row))


def _limited(case: SampledCase, limit: int) -> SampledCase:
    rows = tuple(replace(row, max_new_tokens=min(limit, row.max_new_tokens)) for row in case.rows)
    return replace(case, rows=rows)


def greedy_drawn(outcome: Outcome, try_case: TryCase) -> Outcome | None:
    """The outcome of a greedy row that is drawn: alone, or beside a sampled row; None where that does not show.

    It shows where other random numbers give other tokens, and the tokens that are not the likeliest come as often as
    their probabilities at a temperature of 1 have it: `NAMED` times as likely as any token alike.
    """
    case, read = outcome.case, outcome.explanation
    if read is None or read.row is None or case.rows[read.row].temperature:
        return None
    # The row alone first, then beside one sampled row: the smaller of the two that shows it names what it takes.
    rng = Random(case.entropy)
    sampled = [[min(read.row, other), max(read.row, other)] for other, row in enumerate(case.rows) if row.temperature]
    # Alone first: a row that is drawn even so needs no other row to explain it.
    for rows in ([read.row], *sampled[:2]):
        number, fewer = rows.index(read.row), case.of(rows)
        found = [try_case(fewer.renewed(rng)) for _ in range(_TRIES)]
        answers = [one.outputs[number] for one in found if one.outputs]
        failed = next((one for one in found if one.failed and one.outputs), None)
        if failed and len(set(answers)) > 1 and _fits(fewer, number, answers) >= math.log(NAMED):
            beside = "next to a sampled row" if len(rows) > 1 else "alone"
            return replace(failed, explanation=_explained(failed, number, beside), drawn=outcome.drawn)
    return None


def _fits(case: SampledCase, number: int, answers: list[tuple[int, ...]]) -> float:
    """Return how much likelier the tokens that are not the likeliest are at a temperature of
    1 than all others alike.
    """
    prompt, options = case.prompts[number], replace(case.rows[number], **UNCUT)
    total = 0.0
    for answer in answers:
        plain = scores(case, TARGET, number, answer, digests_of(case.family, [(*prompt, *answer)])[0])
        p = law_of(plain, options, case.order)
        at, best = p[np.arange(len(answer)), list(answer)], p.max(-1)
        odd = at < best
        total += float(np.log(at[odd] / (1 - best[odd]) * (p.shape[1] - 1)).sum())
    return total


def _explained(outcome: Outcome, row: int, beside: str) -> Explanation:
    read, output = outcome.explanation, (outcome.outputs or ())[row]
    assert read is not None
    detail = f"request {row} is greedy (temperature 0), but {beside} it returns other tokens with other random numbers"
    return Explanation(
        "sampling",
        "greedy-drawn",
        row=row,
        token_index=read.token_index if read.row == row else None,
        expected=read.expected if read.row == row else None,
        observed=read.observed if read.row == row else None,
        detail=f"{detail}: it is sampled",
        expected_row=read.expected_row if read.row == row else (),
        observed_row=output,
        wrong_rows=(row,),
        tied=True,
        given=read.given if read.row == row else None,
    )


# The tokens of a decoded case whose rounds can be read, each with the laws it may have been drawn from.

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
    # Where a place does not exist, as before the first token, it gets the right law there, which tells nothing for or
    # against the name.
    p = outcome.sampled[number].p
    places: dict[str, list[Floats]] = {name: [] for name in PLACES}
    for count, marks in enumerate(rounds):
        before = rounds[count - 1][-1] if count else None
        last = None if before is None else p[before.at]
        # After a refused draft token the output goes on otherwise, so the law behind it is computed anew.
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


# The greatest error of samplers in float32: of 64 tokens each bound of an interval by one step of a uniform number,
# 2^-24, in total variation, times the greatest e-value; probabilities themselves by less than 1e-5.
SINGLE = 64 * 2**-24 * HIGHEST + 1e-5
ENDS = ("premature-stop", "past-eos", "over-length", "pad-in-output", "prompt-in-output")
CHANGED = "changed-token"  # which a row and its cache show, whatever was drawn


def try_greedy(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge the greedy rows of a sampled case; a decoder that draws all the same draws alike each time."""
    with seeded(case.seed):
        return try_exact(generate, case, timeout, opinion=opinion)


class TransparentTarget(SampledTarget):
    """The transparent target. Its scores are exact; what a decoder makes of them need not be."""

    lane = "sampling"
    eps = SINGLE
    regimes = REGIMES

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.families = tuple(dict.fromkeys(options.families)) or decoder.families
        self.claimed = decoder.families
        drawn = tuple(family for family in self.families if family in self.claimed) or self.families
        takes = decoder.padding_sides, decoder.capabilities, min(8, options.bounds.rows)
        promised = decoder.seeds, decoder.option_order, decoder.requires
        self.source = SampledCases(options.seed, drawn, *takes, *promised, opening=not options.profile)
        self._read: tuple[Gathered | None, int, list[Read]] = (None, 0, [])  # what so many outcomes say

    @contextmanager
    def drawing(self, lane: SampledLane) -> Iterator[Workers]:
        with lane.decoding(try_case) as running:
            yield running

    def shown(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        read = outcome.explanation
        if read and read.kind in (IMPOSSIBLE, CHANGED, *PROMISES):
            return smallest(outcome, lane.running.try_case)
        return self.attributed(outcome, lane)

    def attributed(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        """The reading is asserted where a greedy request shows it, too: only there it can be checked by repair."""
        read = outcome.explanation
        if read is None or read.component in ("crash", "sampling") or read.kind in (*ENDS, CHANGED):
            return outcome
        right = read.component in ("unattributed", "bookkeeping")  # all contexts were
        if right and (drawn := greedy_drawn(outcome, lane.running.try_case)):
            return drawn
        with lane.decoding(try_greedy) as running:
            greedy = running.try_case(outcome.case.greedy(), opinion=True)
        if greedy.failed:
            return replace(greedy, drawn=outcome.drawn)
        if read.component == "unattributed":  # there is no reading to withhold
            return outcome
        detail = f"the trace of sampled rows shows {read.fingerprint}, but with greedy rows the request is correct"
        unclear = replace(read, component="unattributed", kind="unattributed", detail=detail, facts={}, subject="")
        return replace(outcome, explanation=unclear)

    def named(self, gathered: Gathered, outcomes: Sequence[Any]) -> Named | None:
        rows = [outcome.sampled.values() for outcome in outcomes]
        if gathered.wealth.tokens < TO_NAME:
            return argmax(row for case in rows for row in case)
        _, count, known = self._read if self._read[0] is gathered else (gathered, 0, list[Read]())
        known += [read for outcome in outcomes[count:] for read in reads(outcome)]
        self._read = gathered, len(outcomes), known
        return cause(rows, gathered.wealth.best(), KnownRounds(known))
