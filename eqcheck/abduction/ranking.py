"""How much each hypothesis explains, by how small a chance, and which others explain as much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eqcheck.abduction.contexts import ContextEdit, single
from eqcheck.abduction.edits import Hypothesis
from eqcheck.abduction.evidence import LEAST_CHANCE, Evidence, pick
from eqcheck.abduction.program import Answers, answers
from eqcheck.checkpoints.dictated import agreeing


@dataclass(frozen=True)
class Explained:
    """What a hypothesis explains: the surprising tokens it predicts before it first predicts a token that is not there.

    ``complete``: there is no such token in any row. ``chance`` is that of all tokens up to there.
    """

    hypothesis: Hypothesis
    explained: frozenset[tuple[int, int]]
    complete: bool
    chance: float


def finding(
    evidence: Evidence,
    hypothesis: Hypothesis,
    predicted: Mapping[tuple[int, int], int],
    rows: Sequence[int] | None = None,
) -> Explained:
    """What is explained of all judged rows, or of some."""
    explained: set[tuple[int, int]] = set()
    complete, chance = True, 1.0
    for row in evidence.judged if rows is None else rows:
        output = evidence.outputs[row]
        same = agreeing([predicted.get((row, index), -1) for index in range(len(output))], output)
        if same < min((n for r, n in evidence.surprising if r == row), default=len(output)):
            return Explained(hypothesis, frozenset(), False, 1.0)  # it would have made a token wrong that is right
        explained |= {(r, n) for r, n in evidence.surprising if r == row and n < same}
        complete = complete and same == len(output)
        chance = both(chance, evidence.chance(row, same, hypothesis.once))
    return Explained(hypothesis, frozenset(explained), complete, chance)


def both(one: float, other: float) -> float:
    """The chance of both; 0 only if one is: that of a forbidden token."""
    return max(one * other, LEAST_CHANCE) if one and other else 0.0


def predictions(evidence: Evidence, found: Iterable[Answers]) -> dict[tuple[int, int], int]:
    return {
        (row, index): pick(scores, evidence.case.rows[row], evidence.outputs[row][:index])
        for some in found
        for (row, index), scores in some.items()
    }


def tried(
    evidence: Evidence, contexts: Sequence[ContextEdit], first: tuple[int, int], rows: Sequence[int] | None = None
) -> list[Explained]:
    """What contexts explain; only those that yield the surprising token ``first`` are followed to the end."""
    row, index = first
    at = len(evidence.prompts[row]) + index
    screened = []
    owners = []
    for number, context in enumerate(contexts):
        rounds = evidence.schedules[context.schedule]
        final = next(n for n, turns in enumerate(rounds) for t in turns if t.row == row and t.start <= at < t.end)
        for program in context.programs(evidence, final):
            if first in program.queries:
                screened.append(program.needed({first}))
                owners.append(number)
    predicted: dict[int, int] = {}
    for number, found in zip(owners, answers(evidence.target, screened), strict=True):
        predicted[number] = predictions(evidence, [found])[first]
    token = evidence.outputs[row][index]
    return [followed(evidence, contexts[number], rows) for number, one in predicted.items() if one == token]


def followed(evidence: Evidence, context: ContextEdit, rows: Sequence[int] | None = None) -> Explained:
    """What one context explains."""
    programs = context.programs(evidence, len(evidence.schedules[context.schedule]))
    programs = [program.needed(set(program.queries)) for program in programs]
    return finding(evidence, context, predictions(evidence, answers(evidence.target, programs)), rows)


def row_by_row(evidence: Evidence) -> tuple[list[Explained], int]:
    """What edits explain that happen to single rows: of every kind the likeliest in each wrong row, taken together.

    Rows are taken in the order in which they go wrong, as long as some kind that explains all before explains the next.
    """
    known: dict[str, Explained] = {}
    count = 0
    wrong = sorted(
        {row for row, _ in evidence.surprising}, key=lambda row: min(n for r, n in evidence.surprising if r == row)
    )
    for number, row in enumerate(wrong):
        index = min(n for r, n in evidence.surprising if r == row)
        contexts = [one for one in single(evidence, row, index) if not number or one.fingerprint in known]
        count += len(contexts)
        here: dict[str, Explained] = {}
        for found in tried(evidence, contexts, (row, index), [row]):
            found = replace(found, chance=found.chance * (len(contexts) if number else 1))  # the caller counts once
            name = found.hypothesis.fingerprint
            if found.complete and (name not in here or found.chance < here[name].chance):
                here[name] = found
        if not here:
            return [replace(found, complete=False) for found in known.values()], count
        known = {name: together(known[name], found) if name in known else found for name, found in here.items()}
    return list(known.values()), count


def together(before: Explained, found: Explained) -> Explained:
    """What two findings explain of different tokens."""
    return replace(before, explained=before.explained | found.explained, chance=both(before.chance, found.chance))
