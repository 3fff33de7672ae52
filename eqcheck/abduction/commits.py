"""Edits of the bookkeeping: every context was right, and what was emitted is not what the target predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqcheck.abduction.edits import EDITS, Hypothesis
from eqcheck.abduction.evidence import Evidence
from eqcheck.case.engine import PAD
from eqcheck.checkpoints.dictated import agreeing

Tokens = Sequence[int]


@dataclass(frozen=True)
class Block:
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


Commit = Callable[[Block], list[int]]


@dataclass(frozen=True, kw_only=True)
class Rule(Hypothesis):
    """What is committed instead of the right block.

    ``exchanged`` says how many rows further on predictions are taken from, once a row has left. With ``least`` all rows
    commit what the one does that accepts least; so many rows ``wait``, see `follow`.
    """

    commit: Commit
    exchanged: int = 0
    least: bool = False
    wait: int = 0


def _matches(block: Block) -> list[int]:
    count = sum(a == b for a, b in zip(block.drafts, block.answers, strict=False))
    return [*block.drafts[:count], block.answers[count]]


def _column(place: Callable[[Block], int]) -> Commit:
    """The correction or bonus token from another column of the block."""
    return lambda block: [*block.right[:-1], block.answers[max(0, min(place(block), len(block.answers) - 1))]]


def _other_row(number: int) -> Commit:
    def commit(block: Block) -> list[int]:
        if not block.others:
            return block.right
        answers = block.others[number % len(block.others)]
        return [*block.right[:-1], answers[min(block.count, len(answers) - 1)]]

    return commit


def _where(condition: Callable[[Block], bool], commit: Commit) -> Commit:
    return lambda block: commit(block) if condition(block) else block.right


def _rejected(block: Block) -> bool:
    return block.rejected


_COMMITS: dict[str, Commit] = {
    "rejected-emitted": _where(_rejected, lambda b: list(b.drafts[: b.count + 1])),
    "rejected-answered": _where(_rejected, lambda b: [*b.drafts[: b.count + 1], b.answers[b.count + 1]]),
    "any-match-accepted": _matches,
    "all-accepted": lambda b: [*b.drafts, b.answers[-1]],
    "all-accepted-corrected": lambda b: [*b.drafts, b.answers[b.count]],
    "last-accepted-lost": _where(lambda b: b.count > 0, lambda b: [*b.drafts[: b.count - 1], b.right[-1]]),
    "last-of-several-lost": _where(lambda b: b.count > 1, lambda b: [*b.drafts[: b.count - 1], b.right[-1]]),
    "first-accepted-lost": _where(lambda b: b.count > 0, lambda b: b.right[1:]),
    "accepted-lost": lambda b: b.right[-1:],
    "newest-twice": lambda b: [*b.right, b.right[-1]],
    "correction-twice": _where(_rejected, lambda b: [*b.right, b.right[-1]]),
    "last-accepted-twice": _where(lambda b: b.count > 0, lambda b: [*b.right[:-1], b.right[-2], b.right[-1]]),
    "correction-of-last-column": _column(lambda b: len(b.answers) - 1),
    "correction-of-next-column": _column(lambda b: b.count + 1),
    "correction-of-column-before": _column(lambda b: b.count - 1),
    "correction-of-first-column": _column(lambda b: 0),
    "correction-of-next-row": _other_row(0),
    "correction-of-row-before": _other_row(-1),
    "next-row-once-one-left": lambda b: b.right,
    "row-before-once-one-left": lambda b: b.right,
    "pad-for-bonus": _where(lambda b: not b.rejected and len(b.drafts) < b.full, lambda b: [*b.drafts, PAD]),
    "pad-for-correction": _where(_rejected, lambda b: [*b.right[:-1], PAD]),
}
_EXCHANGED = {"next-row-once-one-left": 1, "row-before-once-one-left": -1}
RULES = tuple(
    Rule(edit=EDITS[name], commit=commit, exchanged=_EXCHANGED.get(name, 0)) for name, commit in _COMMITS.items()
)


def follow(evidence: Evidence, rule: Rule) -> dict[tuple[int, int], int]:
    """What the rule emits at each new token, as far as it agrees with the output: after a difference a row is left.

    An engine may take fewer rows at a time than the case has, and then others take the places of those that have left.
    A rule that concerns the batch shows in other tokens then, so it is followed for each number of rows that wait.
    """
    emitted: dict[tuple[int, int], int] = {}
    waiting = {row: len(prompt) for row, prompt in enumerate(evidence.prompts) if evidence.outputs[row]}
    at: dict[int, int] = {}
    while at or waiting:
        while waiting and len(at) < len(evidence.texts) - rule.wait:
            row = min(waiting)
            at[row] = waiting.pop(row)
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
        for place, row in enumerate(rows):
            others = [answers[other] for other in (*rows[place + 1 :], *rows[:place])]
            if len(answers[row]) < len(drafts[row]) + 1:  # of another row, which had fewer
                answers[row] = [*answers[row], *answers[row][-1:] * (len(drafts[row]) + 1 - len(answers[row]))]
            block = rule.commit(Block(drafts[row], answers[row], counts[row], others, evidence.case.num_draft_tokens))
            start = len(evidence.prompts[row])
            text = evidence.texts[row][at[row] :]
            same = agreeing(block, text)
            for offset, token in enumerate(block[: same + 1]):
                emitted[row, at[row] - start + offset] = token
            at[row] += len(block)
            if same < min(len(block), len(text)) or at[row] >= len(evidence.texts[row]):
                del at[row]
    return emitted
