"""Options that are ignored, another row's, or applied at the wrong places or to the wrong tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from eqcheck.abduction.evidence import LEAST_CHANCE, Evidence, scoring
from eqcheck.abduction.hypotheses import Explained, Hypothesis, explained
from eqcheck.abduction.outputs import EDITS, Predicted
from eqcheck.abduction.program import Turn
from eqcheck.case.engine import VOCAB_SIZE, EngineRow
from eqcheck.checkpoints.truth import AskedRow, row_with
from eqcheck.contract.options import LISTS, PENALTIES, SCORING, RowOptions


@dataclass(frozen=True, kw_only=True)
class OptionMisuse(Hypothesis):
    """An edit of an option; ``schedule`` names its rounds, see `Evidence.schedules_with_options`."""

    schedule: str = ""


def misused(evidence: Evidence) -> Iterator[Explained]:
    """The tokens explained by options that are off, stale or another row's; options that no row has are left out."""
    rows = evidence.case.rows

    def finding(edit: str, predicted: Predicted, schedule: str = "", **named: object) -> Explained:
        parameters = tuple((name, str(value)) for name, value in named.items())
        return explained(evidence, OptionMisuse(edit=EDITS[edit], parameters=parameters, schedule=schedule), predicted)

    names = [name for name, off in SCORING.items() if any(getattr(row.options, name) != off for row in rows)]
    for name in names:
        altered = [row_with(row, **{name: SCORING[name]}) for row in rows]
        yield finding("option-ignored", _chosen(evidence, altered), options=name)
        yield from (finding(*over, options=name) for over in _over_prompt(evidence, name))
        for step, ids in ((1, "above"), (-1, "below")) if name in LISTS else ():
            altered = [replace(row, options=_moved(name, row.options, step)) for row in rows]
            yield finding("option-of-other-ids", _chosen(evidence, altered), options=name, ids=ids)
    # Which tokens are of one round shows only in what is wrong with them, so all rounds that there may be are tried.
    for schedule in evidence.schedules_with_options if names else ():
        for edit, misplaced in _MISPLACED.items():
            yield finding(edit, _placed(evidence, schedule, misplaced), schedule, options=" and ".join(names))
    for schedule in evidence.schedules_with_options if "min_new_tokens" in names else ():
        for edit, misplaced in _MISCOUNTED.items():
            yield finding(edit, _placed(evidence, schedule, misplaced), schedule)
    kinds = {scoring(row.options): number for number, row in reversed(list(enumerate(rows)))}
    for other in kinds.values() if len(kinds) > 1 else ():
        altered = [replace(row, options=rows[other].options) for row in rows]
        yield finding("options-of-another", _chosen(evidence, altered), row=other)
    # Of two rows each stands before and after the other: cases with more rows tell, if there are any.
    beside = [(1, "beside")] if len(rows) == 2 else []
    for shift, neighbour in (*beside, (-1, "before"), (1, "after")) if len(kinds) > 1 else ():
        others = [rows[(at + shift) % len(rows)].options for at in range(len(rows))]
        for name in names:  # one that suffices alone is the one: the others may be the row's own
            lent = [row_with(row, **{name: getattr(other, name)}) for row, other in zip(rows, others, strict=True)]
            yield finding("option-of-neighbour", _chosen(evidence, lent), options=name, row=neighbour)
        altered = [replace(row, options=other) for row, other in zip(rows, others, strict=True)]
        yield finding("options-of-neighbour", _chosen(evidence, altered), row=neighbour)
    for name in names:
        for edit, values in _loose(evidence, name):
            predicted, choices = _any(evidence, name, values)
            loose = OptionMisuse(edit=EDITS[edit], parameters=(("options", name),), loose=True)
            found = explained(evidence, loose, predicted)
            yield replace(found, chance=max(found.chance, LEAST_CHANCE)).times(choices)


def _over_prompt(evidence: Evidence, name: str) -> Iterator[tuple[str, Predicted]]:
    """The prompt counts for what is of new tokens, or does not for a penalty that is of all."""
    if name == "min_new_tokens":
        least = [max(0, row.options.min_new_tokens - len(row.prompt)) for row in evidence.case.rows]
        altered = [row_with(row, min_new_tokens=n) for row, n in zip(evidence.case.rows, least, strict=True)]
        yield "option-over-prompt", _chosen(evidence, altered)
    elif name == "repetition_penalty":
        yield "option-without-prompt", _chosen(evidence, [AskedRow((), row.options) for row in evidence.case.rows])
    elif name in PENALTIES or name == "bad_words":
        yield "option-over-prompt", _chosen(evidence, evidence.case.rows, prompted=True)


def _moved(name: str, options: RowOptions, step: int) -> RowOptions:
    """The options, one that names ids with ids so much higher."""
    bias = tuple(((token + step) % VOCAB_SIZE, value) for token, value in options.logit_bias)
    words = tuple(tuple((token + step) % VOCAB_SIZE for token in word) for word in options.bad_words)
    ids = tuple((token + step) % VOCAB_SIZE for token in options.allowed_ids)
    moved = replace(options, logit_bias=bias, bad_words=words, allowed_ids=ids)
    return replace(moved, **{other: getattr(options, other) for other in LISTS if other != name})


def _loose(evidence: Evidence, name: str) -> Iterator[tuple[str, list[object]]]:
    """Values of an option that no rule says the places of: that of no option, and those of all rows.

    A penalty that counts too few tokens looks as if it were missing at some, so that of penalties this says nothing.
    A minimum that is held against a wrong count looks like any greater one, that of another row among them.
    """
    if name in PENALTIES:
        return
    yield "option-missing-at-times", [SCORING[name]]
    values = list(dict.fromkeys(getattr(row.options, name) for row in evidence.case.rows))
    if len(values) > 1 and name != "min_new_tokens":
        yield "option-of-others", [*values]


def _any(evidence: Evidence, name: str, values: list[object]) -> tuple[Predicted, int]:
    """The tokens there that any of the values, or a row's own, chooses, and how many outputs that allows."""
    predicted, choices = _chosen(evidence, evidence.case.rows), 1
    for row, asked in enumerate(evidence.case.rows):
        output = evidence.outputs[row]
        several = [row_with(asked, **{name: value}) for value in values]
        for index in range(evidence.first_wrong.get(row, len(output)), len(output)):
            chosen = {evidence.chosen(row, index, one, output[:index]) for one in (asked, *several)}
            choices *= len(chosen)
            if output[index] in chosen:
                predicted[row, index] = output[index]
    return predicted, choices


def _chosen(evidence: Evidence, rows: Sequence[EngineRow | AskedRow], prompted: bool = False) -> Predicted:
    return {
        (row, index): evidence.chosen(row, index, rows[row], [*rows[row].prompt * prompted, *output[:index]])
        for row, output in enumerate(evidence.outputs)
        for index in range(len(output))
    }


@lru_cache(maxsize=1024)
def _plain(row: EngineRow) -> EngineRow:
    return row_with(row, **SCORING)


@lru_cache(maxsize=4096)
def _at_least(row: EngineRow, count: int) -> EngineRow:
    return row_with(row, min_new_tokens=count)


@dataclass(frozen=True)
class TokenPlace:
    """A new token's ``index`` in its row, with the ``output`` of that, and the turn it comes from.

    It begins at ``start``, the one before at ``earlier``; ``late``: after a rejection. ``rejected`` and ``last`` are of
    the row's earlier turns: the draft tokens that were, and the last tokens.
    """

    row: EngineRow
    output: list[int]
    turn: Turn
    start: int
    earlier: int
    index: int
    late: bool
    rejected: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def before(self) -> list[int]:
        return self.output[: self.index]

    @property
    def begun(self) -> list[int]:
        """The new tokens when the turn begins."""
        return self.output[: self.start]

    @property
    def corrected(self) -> bool:
        return not self.bonus and self.index == self.start + self.turn.accepted

    @property
    def plain(self) -> EngineRow:
        """The row without options on its scores."""
        return _plain(self.row)

    @property
    def bonus(self) -> bool:
        return self.index == self.start + len(self.turn.drafts)

    def stronger(self, power: int) -> AskedRow:
        """The row with penalties and biases multiplied by the number of tokens given in the turn, or divided."""
        options, factor = self.row.options, (len(self.turn.drafts) + 1) ** power
        more = replace(
            options,
            repetition_penalty=options.repetition_penalty**factor,
            presence_penalty=options.presence_penalty * factor,
            frequency_penalty=options.frequency_penalty * factor,
            logit_bias=tuple((token, bias * factor) for token, bias in options.logit_bias),
        )
        return AskedRow(self.row.prompt, more)

    def counted_from(self, count: int) -> EngineRow:
        """The row, where the turn is taken to begin after so many tokens, as far as its minimum is concerned."""
        return _at_least(self.row, max(0, self.row.options.min_new_tokens + self.index - count))


# With which options, and after which new tokens, the token in a place is chosen.
Misplaced = Callable[[TokenPlace], tuple[EngineRow | AskedRow, Sequence[int]]]
_MISPLACED: dict[str, Misplaced] = {
    "option-stale": lambda at: (at.row, at.begun),
    "option-stale-for-bonus": lambda at: (at.row, at.begun if at.bonus else at.before),
    "option-for-first-alone": lambda at: (at.row if at.index == at.start else at.plain, at.before),
    "option-stale-by-a-round": lambda at: (at.row, at.output[: at.earlier]),
    "option-missing-at-first": lambda at: (at.plain if at.index == at.start else at.row, at.before),
    "option-at-bonus-alone": lambda at: (at.row if at.bonus else at.plain, at.before),
    "option-missing-at-bonus": lambda at: (at.plain if at.bonus else at.row, at.before),
    "option-missing-at-correction": lambda at: (at.plain if at.corrected else at.row, at.before),
    "option-over-drafts": lambda at: (at.row, (*at.before, *at.turn.drafts[at.index - at.start :])),
    "option-over-rejected": lambda at: (at.row, (*at.rejected, *at.before)),
    "option-once-a-round": lambda at: (at.row, at.last),
    "option-times-tokens": lambda at: (at.stronger(1), at.before),
    "option-by-tokens": lambda at: (at.stronger(-1), at.before),
}
_MISCOUNTED: dict[str, Misplaced] = {
    "minimum-stale": lambda at: (at.counted_from(at.start), at.before),
    # After a rejection the prompt's tokens count as well: that is the entries that are left in the cache.
    "minimum-stale-with-prompt": lambda at: (at.counted_from(at.turn.start - 1 if at.late else at.start), at.before),
}


def _placed(evidence: Evidence, schedule: str, misplaced: Misplaced) -> Predicted:
    chosen = {}
    rejected: dict[int, tuple[int, ...]] = {}
    last: dict[int, tuple[int, ...]] = {}
    earlier = dict[int, int]()
    late = set[int]()
    for turn in (turn for turns in evidence.schedules_with_options[schedule] for turn in turns):
        number, output = turn.row, evidence.outputs[turn.row]
        start, row = turn.start - len(evidence.prompts[number]), evidence.case.rows[number]
        end = start + turn.end - turn.start
        seen = rejected.get(number, ()), last.get(number, ())
        for index in range(start, end):
            place = TokenPlace(row, output, turn, start, earlier.get(number, 0), index, number in late, *seen)
            chosen[number, index] = evidence.chosen(number, index, *misplaced(place))
        earlier[number] = start
        rejected[number] = (*seen[0], *turn.drafts[turn.accepted :])
        last[number] = (*seen[1], output[end - 1])
        late = late | {number} if turn.accepted < len(turn.drafts) else late - {number}
    return chosen
