"""Options that are ignored, another row's, or applied at the wrong places or to the wrong tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from eqcheck.abduction.evidence import Evidence, scoring
from eqcheck.abduction.hypotheses import Explained, Hypothesis, explained
from eqcheck.abduction.outputs import EDITS, Predicted
from eqcheck.abduction.program import Turn
from eqcheck.case.engine import EngineRow
from eqcheck.checkpoints.truth import at_place, row_with
from eqcheck.contract.options import SCORING


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
    # Which tokens are of one round shows only in what is wrong with them, so all rounds that there may be are tried.
    for schedule in evidence.schedules_with_options if names else ():
        for edit, misplaced in _MISPLACED.items():
            yield finding(edit, _placed(evidence, schedule, misplaced), schedule, options=" and ".join(names))
    for schedule in evidence.schedules_with_options if "min_new_tokens" in names else ():
        for edit, misplaced in _MISCOUNTED.items():
            yield finding(edit, _placed(evidence, schedule, misplaced), schedule)
    kinds = {scoring(row.options): number for number, row in reversed(list(enumerate(rows)))}
    for other in kinds.values() if len(kinds) > 1 else ():
        altered = [replace(one, options=rows[other].options) for one in rows]
        yield finding("options-of-another", _chosen(evidence, altered), row=other)
    for shift, neighbour in ((-1, "before"), (1, "after")) if len(kinds) > 1 else ():
        altered = [replace(one, options=rows[(at + shift) % len(rows)].options) for at, one in enumerate(rows)]
        yield finding("options-of-neighbour", _chosen(evidence, altered), row=neighbour)


def _chosen(evidence: Evidence, rows: list[EngineRow]) -> Predicted:
    return {
        (row, index): evidence.preferred(row, index, at_place(scores, rows[row], evidence.outputs[row][:index]))
        for row, plain in enumerate(evidence.plain)
        for index, scores in enumerate(plain[:-1])
    }


@dataclass(frozen=True)
class TokenPlace:
    """A new token's ``index`` in its row, with the ``output`` of that, and the turn it comes from.

    It begins at ``start``; ``late``: after a rejection. ``rejected`` and ``last`` are of the row's earlier turns: the
    draft tokens that were, and the last tokens.
    """

    row: EngineRow
    output: list[int]
    turn: Turn
    start: int
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
        return row_with(self.row, **SCORING)

    @property
    def bonus(self) -> bool:
        return self.index == self.start + len(self.turn.drafts)

    def counted_from(self, count: int) -> EngineRow:
        """The row, where the turn is taken to begin after so many tokens, as far as its minimum is concerned."""
        return row_with(self.row, min_new_tokens=max(0, self.row.options.min_new_tokens + self.index - count))


# With which options, and after which new tokens, the token in a place is chosen.
Misplaced = Callable[[TokenPlace], tuple[EngineRow, Sequence[int]]]
_MISPLACED: dict[str, Misplaced] = {
    "option-stale": lambda at: (at.row, at.begun),
    "option-stale-for-bonus": lambda at: (at.row, at.begun if at.bonus else at.before),
    "option-for-first-alone": lambda at: (at.row if at.index == at.start else at.plain, at.before),
    "option-missing-at-bonus": lambda at: (at.plain if at.bonus else at.row, at.before),
    "option-missing-at-correction": lambda at: (at.plain if at.corrected else at.row, at.before),
    "option-over-rejected": lambda at: (at.row, (*at.rejected, *at.before)),
    "option-once-a-round": lambda at: (at.row, at.last),
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
    late = set[int]()
    for turn in (turn for turns in evidence.schedules_with_options[schedule] for turn in turns):
        number, output = turn.row, evidence.outputs[turn.row]
        start, row = turn.start - len(evidence.prompts[number]), evidence.case.rows[number]
        end = start + turn.end - turn.start
        seen = rejected.get(number, ()), last.get(number, ())
        for index in range(start, end):
            place = TokenPlace(row, output, turn, start, index, number in late, *seen)
            scores = at_place(evidence.plain[number][index], *misplaced(place))
            chosen[number, index] = evidence.preferred(number, index, scores)
        rejected[number] = (*seen[0], *turn.drafts[turn.accepted :])
        last[number] = (*seen[1], output[end - 1])
        late = late | {number} if turn.accepted < len(turn.drafts) else late - {number}
    return chosen
