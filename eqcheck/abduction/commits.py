"""Edits of the bookkeeping: every context was right, and what was emitted is not what the target predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqcheck.abduction.evidence import Evidence
from eqcheck.abduction.hypotheses import Edit, Hypothesis
from eqcheck.case.engine import PAD
from eqcheck.checkpoints.dictation import agreeing

Tokens = Sequence[int]


@dataclass(frozen=True)
class VerifiedBlock:
    """A row's part in a round, when it is committed.

    ``count`` of the ``drafts`` are accepted; ``answers`` is what the target predicts after the newest token and after
    each draft token; ``others`` are the same of the rows behind it in the batch, in order and around; ``full`` is K.
    """

    drafts: Tokens
    answers: Tokens
    count: int
    others: Sequence[Tokens]
    full: int

    @property
    def right(self) -> list[int]:
        return [*self.drafts[: self.count], self.answers[self.count]]

    @property
    def rejected(self) -> bool:
        return self.count < len(self.drafts)


Commit = Callable[[VerifiedBlock], list[int]]


@dataclass(frozen=True, kw_only=True)
class Rule(Hypothesis):
    """The tokens that are committed instead of the right block.

    ``exchanged`` says how many rows further on predictions are taken from, once a row has left. With ``least`` all rows
    commit what the one does that accepts least; so many rows ``wait``, see `follow`.
    """

    commit: Commit
    exchanged: int = 0
    least: bool = False
    wait: int = 0


def _matches(block: VerifiedBlock) -> list[int]:
    count = sum(a == b for a, b in zip(block.drafts, block.answers, strict=False))
    return [*block.drafts[:count], block.answers[count]]


def _column(place: Callable[[VerifiedBlock], int]) -> Commit:
    """The correction or bonus token from another column of the block."""
    return lambda block: [*block.right[:-1], block.answers[max(0, min(place(block), len(block.answers) - 1))]]


def _other_row(number: int) -> Commit:
    def commit(block: VerifiedBlock) -> list[int]:
        if not block.others:
            return block.right
        answers = block.others[number % len(block.others)]
        return [*block.right[:-1], answers[min(block.count, len(answers) - 1)]]

    return commit


def _rejected(commit: Commit) -> Commit:
    return lambda block: commit(block) if block.rejected else block.right


def _accepted(least: int, commit: Commit) -> Commit:
    return lambda block: commit(block) if block.count >= least else block.right


def _rule(kind: str, id: str, words: str, commit: Commit, exchanged: int = 0) -> Rule:
    return Rule(edit=Edit(f"bookkeeping/{kind}", id, words), commit=commit, exchanged=exchanged)


# fmt: off
RULES = (
    _rule("over-accept", "rejected-emitted",
          "the first rejected draft token is returned instead of the correction",
          _rejected(lambda b: list(b.drafts[: b.count + 1]))),
    _rule("over-accept", "rejected-answered",
          "the first rejected draft token is returned, and then what the target predicts after it",
          _rejected(lambda b: [*b.drafts[: b.count + 1], b.answers[b.count + 1]])),
    _rule("over-accept", "any-match-accepted",
          "as many draft tokens are returned as agree anywhere in the block", _matches),
    _rule("over-accept", "all-accepted",
          "all draft tokens are returned, and then what the target predicts after the last",
          lambda b: [*b.drafts, b.answers[-1]]),
    _rule("over-accept", "all-accepted-corrected",
          "all draft tokens are returned, and then the correction", lambda b: [*b.drafts, b.answers[b.count]]),
    _rule("lost-token", "last-accepted-lost", "the last accepted draft token of a round is lost",
          _accepted(1, lambda b: [*b.drafts[: b.count - 1], b.right[-1]])),
    _rule("lost-token", "last-of-several-lost",
          "the last accepted draft token is lost where a round accepts at least two",
          _accepted(2, lambda b: [*b.drafts[: b.count - 1], b.right[-1]])),
    _rule("lost-token", "first-accepted-lost", "the first accepted draft token of a round is lost",
          _accepted(1, lambda b: b.right[1:])),
    _rule("lost-token", "accepted-lost", "the accepted draft tokens of a round are lost", lambda b: b.right[-1:]),
    _rule("repeated-token", "newest-twice", "the correction or bonus token is committed twice",
          lambda b: [*b.right, b.right[-1]]),
    _rule("repeated-token", "correction-twice", "the correction is committed twice",
          _rejected(lambda b: [*b.right, b.right[-1]])),
    _rule("repeated-token", "last-accepted-twice", "the last accepted draft token is committed twice",
          _accepted(1, lambda b: [*b.right[:-1], b.right[-2], b.right[-1]])),
    _rule("wrong-correction", "correction-of-last-column",
          "the correction is what the target predicts in the last column of the block",
          _column(lambda b: len(b.answers) - 1)),
    _rule("wrong-correction", "correction-of-next-column",
          "the correction is what the target predicts one column later", _column(lambda b: b.count + 1)),
    _rule("wrong-correction", "correction-of-column-before",
          "the correction is what the target predicts one column earlier", _column(lambda b: b.count - 1)),
    _rule("wrong-correction", "correction-of-first-column",
          "the correction is what the target predicts in the first column of the block", _column(lambda b: 0)),
    _rule("wrong-correction", "bonus-of-column-before",
          "where all draft tokens are accepted, the bonus token is what the target predicts one column earlier",
          lambda b: b.right if b.rejected else _column(lambda b: b.count - 1)(b)),
    _rule("wrong-correction", "correction-of-next-row",
          "the correction is the target's prediction for the next row of the batch", _other_row(0)),
    _rule("wrong-correction", "correction-of-row-before",
          "the correction is the target's prediction for the row before in the batch", _other_row(-1)),
    _rule("wrong-correction", "next-row-once-one-left",
          "once a row has left the batch, predictions are those of the next row of the batch", lambda b: b.right, 1),
    _rule("wrong-correction", "row-before-once-one-left",
          "once a row has left the batch, predictions are those of the row before in the batch", lambda b: b.right, -1),
    _rule("pad-in-output", "pad-for-bonus",
          "a pad is returned for the bonus token where fewer drafts than K fit and all are accepted",
          lambda b: b.right if b.rejected or len(b.drafts) == b.full else [*b.drafts, PAD]),
    _rule("pad-in-output", "pad-for-correction", "a pad is returned for the correction",
          _rejected(lambda b: [*b.right[:-1], PAD])),
)
# fmt: on


def follow(evidence: Evidence, rule: Rule) -> dict[tuple[int, int], int]:
    """The tokens that the rule emits, as far as they agree with the output: after a difference a row is left.

    An engine may take fewer rows at a time than the case has, and then others take the places of rows that have left.
    A rule that concerns the batch shows in other tokens then, so it is followed for each number of rows that wait.
    """
    emitted: dict[tuple[int, int], int] = {}
    waiting = {row: len(prompt) for row, prompt in enumerate(evidence.prompts) if evidence.outputs[row]}
    at: dict[int, int] = {}
    while at or waiting:
        while waiting and len(at) < len(evidence.texts) - rule.wait:
            row = min(waiting)
            at[row] = waiting.pop(row)
        for row, block in _blocks(evidence, rule, at).items():
            committed = rule.commit(block)
            start, text = at[row] - len(evidence.prompts[row]), evidence.texts[row][at[row] :]
            same = agreeing(committed, text)
            emitted |= {(row, start + offset): token for offset, token in enumerate(committed[: same + 1])}
            at[row] += len(committed)
            if same < min(len(committed), len(text)) or at[row] >= len(evidence.texts[row]):
                del at[row]
    return emitted


def _blocks(evidence: Evidence, rule: Rule, at: dict[int, int]) -> dict[int, VerifiedBlock]:
    """The blocks of a round, by row; ``at`` are the numbers of committed tokens."""
    drafts = {row: evidence.drafts[row][n][: evidence.budget(row, n)] for row, n in at.items()}
    if rule.least:
        drafts = {row: proposed[: min(map(len, drafts.values()))] for row, proposed in drafts.items()}
    answers = {row: evidence.verified[row][n][: len(drafts[row]) + 1] for row, n in at.items()}
    rows = list(at)
    if rule.exchanged and len(at) < len(evidence.texts):
        answers = {row: answers[rows[(place + rule.exchanged) % len(rows)]] for place, row in enumerate(rows)}
    counts = {row: min(agreeing(drafts[row], answers[row]), len(answers[row]) - 1) for row in rows}
    if rule.least:
        fewest = min(counts.values())
        counts = dict.fromkeys(rows, fewest)
        drafts = {row: proposed[:fewest] for row, proposed in drafts.items()}
        answers = {row: tokens[: fewest + 1] for row, tokens in answers.items()}
    blocks = {}
    for place, row in enumerate(rows):
        others = [answers[other] for other in (*rows[place + 1 :], *rows[:place])]
        lacking = len(drafts[row]) + 1 - len(answers[row])  # of another row, which had fewer
        answers[row] = [*answers[row], *answers[row][-1:] * lacking]
        blocks[row] = VerifiedBlock(drafts[row], answers[row], counts[row], others, evidence.case.num_draft_tokens)
    return blocks
