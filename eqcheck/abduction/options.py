"""Options of a request that an engine ignores, takes from another row, or applies to what was there a round ago."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eqcheck.abduction.edits import EDITS, Hypothesis
from eqcheck.abduction.evidence import Evidence, Turn, pick
from eqcheck.abduction.ranking import Explained, finding
from eqcheck.case.engine import EngineRow
from eqcheck.checkpoints.truth import row_with
from eqcheck.contract.decoder import RowOptions


@dataclass(frozen=True, kw_only=True)
class Ignored(Hypothesis):
    """An edit of an option; ``schedule`` names its rounds, see `Evidence.schedules_with_options`."""

    schedule: str = ""


OFF = {"min_new_tokens": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
Predicted = dict[tuple[int, int], int]


def ignored(evidence: Evidence) -> Iterator[Explained]:
    """What is explained by options that are off, stale or another row's, of those that any row has."""
    rows = evidence.case.rows

    def explained(edit: str, predicted: Predicted, schedule: str = "", **named: object) -> Explained:
        parameters = tuple((name, str(value)) for name, value in named.items())
        return finding(evidence, Ignored(edit=EDITS[edit], parameters=parameters, schedule=schedule), predicted)

    names = [name for name, off in OFF.items() if any(getattr(row.options, name) != off for row in rows)]
    options = " and ".join(names)
    for name in names:
        altered = [row_with(row, **{name: OFF[name]}) for row in rows]
        yield explained("option-ignored", _chosen(evidence, altered), options=name)
    # Which tokens are of one round shows only in what is wrong with them, so all rounds that there may be are tried.
    for schedule in evidence.schedules_with_options if names else ():
        yield explained("option-stale", _stale(evidence, schedule, False), schedule, options=options)
        yield explained("option-stale-for-bonus", _stale(evidence, schedule, True), schedule, options=options)
        yield explained("option-for-first-alone", _first_alone(evidence, schedule), schedule, options=options)
    for schedule in evidence.schedules_with_options if "min_new_tokens" in names else ():
        yield explained("minimum-stale", _counted(evidence, schedule, False), schedule)
        yield explained("minimum-stale-with-prompt", _counted(evidence, schedule, True), schedule)
    kinds = {_scoring(row.options): number for number, row in reversed(list(enumerate(rows)))}
    for other in kinds.values() if len(kinds) > 1 else ():
        altered = [replace(one, options=rows[other].options) for one in rows]
        yield explained("options-of-another", _chosen(evidence, altered), row=other)


def _scoring(options: RowOptions) -> tuple[object, ...]:
    eos = options.eos_token_ids if options.min_new_tokens else ()
    return options.min_new_tokens, eos, options.repetition_penalty, options.presence_penalty


def _chosen(evidence: Evidence, rows: list[EngineRow]) -> Predicted:
    return {
        (row, index): pick(scores, rows[row], evidence.outputs[row][:index])
        for row, some in enumerate(evidence.plain)
        for index, scores in enumerate(some[:-1])
    }


def _places(evidence: Evidence, schedule: str) -> Iterator[tuple[Turn, int, int]]:
    """Every new token's index in its row, with the turn it comes from and the index at which that begins."""
    for turns in evidence.schedules_with_options[schedule]:
        for turn in turns:
            start = turn.start - len(evidence.prompts[turn.row])
            for index in range(start, start + turn.end - turn.start):
                yield turn, start, index


def _stale(evidence: Evidence, schedule: str, bonus_only: bool) -> Predicted:
    chosen = {}
    for turn, start, index in _places(evidence, schedule):
        bonus = index == start + len(turn.drafts)
        before = evidence.outputs[turn.row][: start if bonus or not bonus_only else index]
        chosen[turn.row, index] = pick(evidence.plain[turn.row][index], evidence.case.rows[turn.row], before)
    return chosen


def _counted(evidence: Evidence, schedule: str, prompt: bool) -> Predicted:
    """Counts of a round ago; with the prompt's after a rejection, that is the entries that are left in the cache."""
    chosen = {}
    rejected = {  # where the next turn of a row begins after one that rejected a draft token
        (turn.row, turn.end)
        for turns in evidence.schedules_with_options[schedule]
        for turn in turns
        if turn.accepted < len(turn.drafts)
    }
    for turn, start, index in _places(evidence, schedule):
        row, text = evidence.case.rows[turn.row], evidence.outputs[turn.row]
        count = turn.start - 1 if prompt and (turn.row, turn.start) in rejected else start
        row_then = row_with(row, min_new_tokens=max(0, row.options.min_new_tokens + index - count))
        chosen[turn.row, index] = pick(evidence.plain[turn.row][index], row_then, text[:index])
    return chosen


def _first_alone(evidence: Evidence, schedule: str) -> Predicted:
    chosen = {}
    for turn, start, index in _places(evidence, schedule):
        row = evidence.case.rows[turn.row]
        row_then = row if index == start else row_with(row, **OFF)
        before = evidence.outputs[turn.row][:index]
        chosen[turn.row, index] = pick(evidence.plain[turn.row][index], row_then, before)
    return chosen


def anothers_end(evidence: Evidence) -> int | None:
    """The row by whose limit and EOS ids all rows end, where they have their own and some end wrongly."""
    rows = evidence.case.rows
    own = [(row.options.max_new_tokens, row.options.eos_token_ids) for row in rows]
    for other in range(len(rows)):
        lengths = [evidence.end(row, rows[other].options) for row in range(len(rows))]
        if len(set(own)) > 1 and [len(output) for output in evidence.returned] == lengths:
            return other
    return None
