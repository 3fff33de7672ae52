"""Hypotheses about what an engine does wrong; how much of a case one explains, and by how small a chance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eqcheck.abduction.evidence import LEAST_CHANCE, Evidence
from eqcheck.abduction.program import Answers
from eqcheck.checkpoints.dictation import agreeing
from eqcheck.checkpoints.truth import at_place

Tokens = Mapping[tuple[int, int], int]  # by row and index of the new token


@dataclass(frozen=True)
class Edit:
    """One thing that an engine may do wrong: which kind of fault it would be, its name, and the words for it.

    The catalogue of faults names edits by their ids. The words are a clause that completes "the reference emits the
    wrong tokens if ...".
    """

    fingerprint: str
    id: str
    words: str

    @property
    def component(self) -> str:
        return self.fingerprint.partition("/")[0]

    @property
    def kind(self) -> str:
        return self.fingerprint.partition("/")[2]

    @property
    def rivals(self) -> tuple[str, ...]:
        """Fingerprints that the same tokens always fit: a token that is never seen again is lost or hidden for good."""
        absent = self.kind == "missing-entry" and self.id != "not-prefilled-zeroed"
        return ("mask/token-hidden",) if absent else ()


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """An edit, and what is said of it in particular.

    ``parameters`` are what its words name, ``when`` the rounds that it happens in. One that happens ``once``,
    not in every round of every row, explains less by what it gets right: see `Evidence.chance`. The places of a
    ``loose`` one are chosen to fit, so that it stands beside no other. Two hypotheses with one id say the same,
    whatever style of engine they assume.
    """

    edit: Edit
    parameters: tuple[tuple[str, str], ...] = ()
    when: str = ""
    once: bool = False
    loose: bool = False

    @property
    def id(self) -> str:
        """The edit's id and its parameters, ``shifted-positions:+1:from-round-3-on``."""
        values = [value for _, value in self.parameters] + [self.when] * bool(self.when)
        return ":".join([self.edit.id, *(re.sub(r"[\s_]+", "-", value) for value in values)])

    @property
    def words(self) -> str:
        words = self.edit.words.format(**dict(self.parameters))
        return f"{words} {self.when}" if self.when else words


@dataclass(frozen=True)
class Explained:
    """The surprising tokens that a hypothesis predicts before it first predicts a token that is not there.

    ``complete``: there is no such token in any row. ``chance`` is that of all tokens up to there.
    """

    hypothesis: Hypothesis
    explained: frozenset[tuple[int, int]]
    complete: bool
    chance: float

    def times(self, choices: int) -> Explained:
        """The same, where it is one of so many that might have been tried."""
        return replace(self, chance=self.chance * choices)

    def beside(self, other: Explained) -> Explained:
        """Both findings together, which are of different tokens."""
        chance = _both(self.chance, other.chance)
        return replace(self, explained=self.explained | other.explained, chance=chance)


def explained(
    evidence: Evidence, hypothesis: Hypothesis, predicted: Tokens, rows: Sequence[int] | None = None
) -> Explained:
    """Return how much of all judged rows is explained, or of some."""
    tokens: set[tuple[int, int]] = set()
    complete, chance = True, 1.0
    for row in evidence.judged if rows is None else rows:
        output = evidence.outputs[row]
        same = agreeing([predicted.get((row, index), -1) for index in range(len(output))], output)
        if same < evidence.first_wrong.get(row, len(output)):
            return Explained(hypothesis, frozenset(), False, 1.0)  # it would have made a token wrong that is right
        tokens |= {(row, n) for n in range(same) if (row, n) in evidence.surprising}
        complete = complete and same == len(output)
        beside = hypothesis.edit.component != "options"
        chance = _both(chance, evidence.chance(row, same, hypothesis.once, beside))
    return Explained(hypothesis, frozenset(tokens), complete, chance)


def predictions(evidence: Evidence, answered: Iterable[Answers]) -> dict[tuple[int, int], int]:
    """The tokens that are chosen from a model's answers, with the options of their rows."""
    return {
        (row, index): evidence.preferred(
            row, index, at_place(scores, evidence.case.rows[row], evidence.outputs[row][:index])
        )
        for answers in answered
        for (row, index), scores in answers.items()
    }


def _both(one: float, other: float) -> float:
    """The chance of both; 0 only if one is: that of a forbidden token."""
    return max(one * other, LEAST_CHANCE) if one and other else 0.0
