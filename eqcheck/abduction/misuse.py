"""Options that are ignored, another row's, or applied at the wrong places or to the wrong tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from eqcheck.abduction.drafts import allowed
from eqcheck.abduction.evidence import LEAST_CHANCE, Evidence, scoring
from eqcheck.abduction.hypotheses import Explained, Hypothesis, explained
from eqcheck.abduction.outputs import EDITS, Predicted, right_tokens
from eqcheck.abduction.program import Round, Turn
from eqcheck.case.engine import VOCAB_SIZE, EngineRow
from eqcheck.checkpoints.dictation import agreeing
from eqcheck.checkpoints.truth import AskedRow, row_with
from eqcheck.contract.grammars import ended, shifted
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
    # Only the wrong tokens show where rounds begin, so all possible rounds are tried.
    schedules = _schedules(evidence, names)
    for schedule, rounds in schedules.items():
        for edit, misplaced in _MISPLACED.items():
            yield finding(edit, _placed(evidence, rounds, misplaced), schedule, options=" and ".join(names))
    for schedule, rounds in schedules.items() if "grammar" in names else ():
        for edit, misplaced in _OF_GRAMMARS.items():
            yield finding(edit, _placed(evidence, rounds, misplaced), schedule)
        for shift, neighbour in _beside_of(rows) if names == ["grammar"] else ():
            yield finding("grammar-of-neighbour", _beside(evidence, rounds, shift), schedule, row=neighbour)
    for schedule, rounds in schedules.items() if "min_new_tokens" in names else ():
        for edit, misplaced in _MISCOUNTED.items():
            yield finding(edit, _placed(evidence, rounds, misplaced), schedule)
    kinds = {scoring(row.options): number for number, row in reversed(list(enumerate(rows)))}
    for other in kinds.values() if len(kinds) > 1 else ():
        altered = [replace(row, options=rows[other].options) for row in rows]
        yield finding("options-of-another", _chosen(evidence, altered), row=other)
    for shift, neighbour in _beside_of(rows) if len(kinds) > 1 else ():
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


def _beside_of(rows: Sequence[EngineRow]) -> tuple[tuple[int, str], ...]:
    """The places of a neighbour. Of two rows each stands before and after the other: cases with more rows tell."""
    return (*[(1, "next to")] * (len(rows) == 2), (-1, "before"), (1, "after"))


def _over_prompt(evidence: Evidence, name: str) -> Iterator[tuple[str, Predicted]]:
    """The prompt counts for what is of new tokens, or does not for a penalty that is of all."""
    if name == "min_new_tokens":
        least = [max(0, row.options.min_new_tokens - len(row.prompt)) for row in evidence.case.rows]
        altered = [row_with(row, min_new_tokens=n) for row, n in zip(evidence.case.rows, least, strict=True)]
        yield "option-over-prompt", _chosen(evidence, altered)
    elif name in ("repetition_penalty", "no_repeat_ngram_size"):
        yield "option-without-prompt", _chosen(evidence, [AskedRow((), row.options) for row in evidence.case.rows])
    elif name in PENALTIES or name in ("bad_words", "grammar"):
        yield "option-over-prompt", _chosen(evidence, evidence.case.rows, prompted=True)


def _moved(name: str, options: RowOptions, step: int) -> RowOptions:
    """The options, one that names ids with ids so much higher."""
    bias = tuple(((token + step) % VOCAB_SIZE, value) for token, value in options.logit_bias)
    words = tuple(tuple((token + step) % VOCAB_SIZE for token in word) for word in options.bad_words)
    ids = tuple((token + step) % VOCAB_SIZE for token in options.allowed_ids)
    grammar = shifted(options.grammar, step, VOCAB_SIZE)
    moved = replace(options, logit_bias=bias, bad_words=words, allowed_ids=ids, grammar=grammar)
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
    predicted, choices = right_tokens(evidence), 1
    for row, asked in enumerate(evidence.case.rows):
        output = evidence.outputs[row]
        several = [row_with(asked, **{name: value}) for value in values]
        for index in range(evidence.first_wrong.get(row, len(output)), len(output)):
            chosen = {evidence.chosen(row, index, one, output[:index]) for one in (asked, *several)}
            choices *= len(chosen)
            if output[index] in chosen:
                predicted[row, index] = output[index]
    return predicted, choices


@dataclass(frozen=True)
class Lent:
    """The other rows whose option was applied to a row, all with the same value, from new token ``since`` on.

    ``throughout``: every token from there on is chosen with it, and not only the wrong ones.
    """

    rows: tuple[int, ...]
    since: int
    throughout: bool


def lent(evidence: Evidence, row: int, name: str) -> Lent | None:
    """The rows whose value of an option chooses every wrong token of a row; None where no single value does."""
    asked, output = evidence.case.rows[row], evidence.outputs[row]
    own, since = getattr(asked.options, name), evidence.first_wrong[row]
    values: dict[object, list[int]] = {}
    for other, beside in enumerate(evidence.case.rows):
        if (value := getattr(beside.options, name)) != own:
            values.setdefault(value, []).append(other)
    fitting = []
    for value, rows in values.items():
        altered = row_with(asked, **{name: value})
        fits = {n: evidence.chosen(row, n, altered, output[:n]) == output[n] for n in range(since, len(output))}
        if all(fits[n] for n in fits if (row, n) in evidence.surprising):
            fitting.append(Lent(tuple(rows), since, all(fits.values())))
    return fitting[0] if len(fitting) == 1 else None


def _chosen(evidence: Evidence, rows: Sequence[EngineRow | AskedRow], prompted: bool = False) -> Predicted:
    """The tokens that these rows' options choose, in each row up to the first that is not there."""
    chosen = {}
    for row, output in enumerate(evidence.outputs):
        for index, token in enumerate(output):
            before = [*rows[row].prompt * prompted, *output[:index]]
            chosen[row, index] = evidence.chosen(row, index, rows[row], before)
            if chosen[row, index] != token:
                break
    return chosen


@lru_cache(maxsize=1024)
def _plain(row: EngineRow) -> EngineRow:
    return row_with(row, **SCORING)


@lru_cache(maxsize=4096)
def _at_least(row: EngineRow, count: int) -> EngineRow:
    return row_with(row, min_new_tokens=count)


@dataclass(frozen=True)
class TokenPlace:
    """A new token's ``index`` in its row, with the ``output`` of that, and the turn it comes from.

    It begins at ``start``, the one before at ``earlier``; ``late``: after a rejection. The others are of the row's
    earlier turns: the tokens ``fed``, rejected drafts in their places; the same with the first of these alone
    (``refuted``); the ``last`` tokens; and the drafts ``proposed``.
    """

    row: EngineRow
    output: list[int]
    turn: Turn
    start: int
    earlier: int
    index: int
    late: bool
    fed: tuple[int, ...]
    last: tuple[int, ...]
    refuted: tuple[int, ...]
    proposed: tuple[int, ...]

    @property
    def before(self) -> list[int]:
        return self.output[: self.index]

    @property
    def begun(self) -> list[int]:
        """The new tokens when the turn begins."""
        return self.output[: self.start]

    @property
    def new(self) -> list[int]:
        """The tokens of the turn that stand before it."""
        return self.output[self.start : self.index]

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
    "option-for-row-start-alone": lambda at: (at.plain if at.index else at.row, at.before),
    "option-stale-by-a-round": lambda at: (at.row, at.output[: at.earlier]),
    "option-missing-at-first": lambda at: (at.plain if at.index == at.start else at.row, at.before),
    "option-at-bonus-alone": lambda at: (at.row if at.bonus else at.plain, at.before),
    "option-missing-at-bonus": lambda at: (at.plain if at.bonus else at.row, at.before),
    "option-missing-at-correction": lambda at: (at.plain if at.corrected else at.row, at.before),
    "option-over-drafts": lambda at: (at.row, (*at.before, *at.turn.drafts[at.index - at.start :])),
    "option-over-rejected": lambda at: (at.row, (*at.fed, *at.new)),
    "option-over-first-rejected": lambda at: (at.row, (*at.refuted, *at.new)),
    "option-over-proposed": lambda at: (at.row, (*at.before, *at.proposed, *at.turn.drafts)),
    "option-once-a-round": lambda at: (at.row, at.last),
    "option-times-tokens": lambda at: (at.stronger(1), at.before),
    "option-by-tokens": lambda at: (at.stronger(-1), at.before),
}
_MISCOUNTED: dict[str, Misplaced] = {
    "minimum-stale": lambda at: (at.counted_from(at.start), at.before),
    # After a rejection the prompt's tokens count as well: that is the entries that are left in the cache.
    "minimum-stale-with-prompt": lambda at: (at.counted_from(at.turn.start - 1 if at.late else at.start), at.before),
}


_OF_GRAMMARS: dict[str, Misplaced] = {
    "grammar-without-accepted": lambda at: (at.row, (*at.last, *at.new)),
    "grammar-at-beginning": lambda at: (at.row, ()),
    "grammar-open-at-end": lambda at: (
        at.plain if at.new and ended(at.row.options.grammar, at.before, at.row.options.eos_token_ids) else at.row,
        at.before,
    ),
}


def _beside(evidence: Evidence, rounds: Sequence[Round], shift: int) -> Predicted:
    """The tokens where each row is held to what the grammar of a row beside it allows that row, place by place."""
    chosen = {}
    for turns in rounds:
        for place, turn in enumerate(turns):
            other = turns[(place + shift) % len(turns)]
            prompt, lent = evidence.case.rows[turn.row].prompt, evidence.case.rows[other.row].options
            begun = evidence.texts[other.row][len(evidence.prompts[other.row]) : other.start]
            start = turn.start - len(prompt)
            for index in range(start, start + turn.end - turn.start):
                before = [*begun, *other.drafts[: index - start]]
                chosen[turn.row, index] = evidence.chosen(turn.row, index, AskedRow(prompt, lent), before)
    return chosen


def _placed(evidence: Evidence, rounds: Sequence[Round], misplaced: Misplaced) -> Predicted:
    """The tokens chosen with such options, in each row up to the first that is not there."""
    chosen, behind, left = {}, dict[int, TokenPlace](), set[int]()
    turns = (turn for turns in rounds for turn in turns)
    for turn in turns if rounds is not _AS_TAKEN else _checked(evidence, misplaced, behind):
        place = _begun(evidence, turn, behind.get(turn.row))
        for index in range(place.start, place.start + turn.end - turn.start):
            place = replace(place, index=index)
            if turn.row not in left:
                chosen[turn.row, index] = evidence.chosen(turn.row, index, *misplaced(place))
                left |= {turn.row} if chosen[turn.row, index] != place.output[index] else set()
        behind[turn.row] = place
    return chosen


def _begun(evidence: Evidence, turn: Turn, behind: TokenPlace | None) -> TokenPlace:
    """The first place of a turn; ``behind`` is the last place of the row's turn before, if there is one."""
    row, output = evidence.case.rows[turn.row], evidence.outputs[turn.row]
    start = turn.start - len(evidence.prompts[turn.row])
    if behind is None:
        return TokenPlace(row, output, turn, start, 0, start, False, (), (), (), ())
    drafts, end = behind.turn.drafts, output[behind.index]
    rejected = drafts[len(behind.new) :]
    fed = (*behind.fed, *behind.new, *rejected, end)
    refuted = (*behind.refuted, *behind.new, *rejected[:1], end)
    last, proposed = (*behind.last, end), (*behind.proposed, *drafts)
    late = behind.turn.accepted < len(drafts)
    return TokenPlace(row, output, turn, start, behind.start, start, late, fed, last, refuted, proposed)


def _checked(evidence: Evidence, misplaced: Misplaced, behind: Mapping[int, TokenPlace]) -> Iterator[Turn]:
    """The turns of an engine that leaves out drafts which the grammar forbids where the engine takes the row to be.

    ``behind`` has the last place of each row's turn before: whoever takes the turns keeps it.
    """
    for number, text in enumerate(evidence.texts):
        at = len(evidence.prompts[number])
        while at < len(text):
            _, before = misplaced(_begun(evidence, Turn(number, at, (), 0, at + 1), behind.get(number)))
            drafts = evidence.drafts[number][at][: evidence.budget(number, at)]
            drafts = allowed(evidence.case.rows[number].options, before, drafts)
            accepted = agreeing(drafts, text[at:])
            yield Turn(number, at, tuple(drafts), accepted, min(at + accepted + 1, len(text)))
            at += accepted + 1


_AS_TAKEN: list[Round] = []  # which these are depends on where the engine takes a row to be


def _schedules(evidence: Evidence, names: Sequence[str]) -> dict[str, list[Round]]:
    """The rounds to try; with a grammar also those of engines that leave out what it forbids, and all behind that."""
    if "grammar" not in names:
        return evidence.schedules_with_options if names else {}
    rows: list[list[Turn]] = [[] for _ in evidence.texts]
    for turn in _checked(evidence, lambda at: (at.row, at.before), {}):  # it takes each row to be where it is
        rows[turn.row].append(turn)
    steps = range(max(map(len, rows), default=0))
    checked = [tuple(turns[step] for turns in rows if step < len(turns)) for step in steps]
    return evidence.schedules_with_options | {"checked": checked, "checked as taken": _AS_TAKEN}
