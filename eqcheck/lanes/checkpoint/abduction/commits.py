"""Edits of the bookkeeping: every context was right, and what was emitted is not what the target predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqcheck.lanes.checkpoint.abduction.evidence import Evidence, agreeing

Tokens = Sequence[int]


@dataclass(frozen=True)
class Block:
    """A row's part in a round, when it is committed.

    ``count`` of the ``drafts`` are accepted; ``wanted`` is what the target predicts after the newest token and after
    each draft token; ``others`` are the same of the rows behind it in the batch, in order and around; ``full`` is K.
    """

    drafts: Tokens
    wanted: Tokens
    count: int
    others: Sequence[Tokens]
    full: int

    @property
    def right(self) -> list[int]:
        return [*self.drafts[: self.count], self.wanted[self.count]]

    @property
    def rejected(self) -> bool:
        return self.count < len(self.drafts)


@dataclass(frozen=True)
class Rule:
    """What is committed instead of the right block."""

    kind: str
    words: str
    commit: Callable[[Block], list[int]]
    exchanged: int = 0  # how many rows further on predictions are taken from, once a row has left
    least: bool = False  # see `follow`
    most: int = 0  # how many rows wait

    @property
    def component(self) -> str:
        return "bookkeeping"


def _matches(block: Block) -> list[int]:
    count = sum(a == b for a, b in zip(block.drafts, block.wanted, strict=False))
    return [*block.drafts[:count], block.wanted[count]]


def _column(place: Callable[[Block], int]) -> Callable[[Block], list[int]]:
    """The correction or bonus token from another column of the block."""
    return lambda block: [*block.right[:-1], block.wanted[max(0, min(place(block), len(block.wanted) - 1))]]


def _other_row(number: int) -> Callable[[Block], list[int]]:
    def commit(block: Block) -> list[int]:
        if not block.others:
            return block.right
        wanted = block.others[number % len(block.others)]
        return [*block.right[:-1], wanted[min(block.count, len(wanted) - 1)]]

    return commit


def _where(condition: Callable[[Block], bool], commit: Callable[[Block], list[int]]) -> Callable[[Block], list[int]]:
    return lambda block: commit(block) if condition(block) else block.right


def _rejected(block: Block) -> bool:
    return block.rejected


RULES = (
    Rule(
        "over-accept",
        "the first rejected draft token is emitted in place of the correction",
        _where(_rejected, lambda b: list(b.drafts[: b.count + 1])),
    ),
    Rule(
        "over-accept",
        "the first rejected draft token is emitted, and then what the target predicts after it",
        _where(_rejected, lambda b: [*b.drafts[: b.count + 1], b.wanted[b.count + 1]]),
    ),
    Rule("over-accept", "as many draft tokens are emitted as agree anywhere in the block", _matches),
    Rule(
        "over-accept",
        "all draft tokens are emitted, and then what the target predicts after the last",
        lambda b: [*b.drafts, b.wanted[-1]],
    ),
    Rule(
        "over-accept", "all draft tokens are emitted, and then the correction", lambda b: [*b.drafts, b.wanted[b.count]]
    ),
    Rule(
        "lost-token",
        "the last accepted draft token of a round is lost",
        _where(lambda b: b.count > 0, lambda b: [*b.drafts[: b.count - 1], b.right[-1]]),
    ),
    Rule(
        "lost-token",
        "the last accepted draft token is lost where a round accepts at least two",
        _where(lambda b: b.count > 1, lambda b: [*b.drafts[: b.count - 1], b.right[-1]]),
    ),
    Rule(
        "lost-token",
        "the first accepted draft token of a round is lost",
        _where(lambda b: b.count > 0, lambda b: b.right[1:]),
    ),
    Rule("lost-token", "the accepted draft tokens of a round are lost", lambda b: b.right[-1:]),
    Rule("repeated-token", "the correction or bonus token is committed twice", lambda b: [*b.right, b.right[-1]]),
    Rule("repeated-token", "the correction is committed twice", _where(_rejected, lambda b: [*b.right, b.right[-1]])),
    Rule(
        "repeated-token",
        "the last accepted draft token is committed twice",
        _where(lambda b: b.count > 0, lambda b: [*b.right[:-1], b.right[-2], b.right[-1]]),
    ),
    Rule(
        "wrong-correction",
        "the correction is what the target predicts in the last column of the block",
        _column(lambda b: len(b.wanted) - 1),
    ),
    Rule(
        "wrong-correction",
        "the correction is what the target predicts one column later",
        _column(lambda b: b.count + 1),
    ),
    Rule(
        "wrong-correction",
        "the correction is what the target predicts one column earlier",
        _column(lambda b: b.count - 1),
    ),
    Rule(
        "wrong-correction",
        "the correction is what the target predicts in the first column of the block",
        _column(lambda b: 0),
    ),
    Rule("wrong-correction", "the correction is the target's prediction for the next row of the batch", _other_row(0)),
    Rule(
        "wrong-correction", "the correction is the target's prediction for the row before in the batch", _other_row(-1)
    ),
    Rule(
        "wrong-correction",
        "once a row has left, predictions are those of the next row of the batch",
        lambda b: b.right,
        exchanged=1,
    ),
    Rule(
        "wrong-correction",
        "once a row has left, predictions are those of the row before in the batch",
        lambda b: b.right,
        exchanged=-1,
    ),
    Rule(
        "pad-in-output",
        "where fewer draft tokens than K fit and all are accepted, a pad is emitted for the bonus token",
        _where(lambda b: not b.rejected and len(b.drafts) < b.full, lambda b: [*b.drafts, 0]),
    ),
    Rule("pad-in-output", "a pad is emitted for the correction", _where(_rejected, lambda b: [*b.right[:-1], 0])),
)


def follow(evidence: Evidence, rule: Rule, least: bool, most: int) -> dict[tuple[int, int], int]:
    """What the rule emits at each new token, as far as it agrees with the output: after a difference a row is left.

    At most so many rows are decoded at a time; with ``least`` all commit what the one does that accepts least.
    """
    emitted: dict[tuple[int, int], int] = {}
    waiting = {row: len(prompt) for row, prompt in enumerate(evidence.prompts) if evidence.outputs[row]}
    at: dict[int, int] = {}
    while at or waiting:
        while waiting and len(at) < most:
            row = min(waiting)
            at[row] = waiting.pop(row)
        drafts = {row: evidence.drafts[row][n][: evidence.budget(row, n)] for row, n in at.items()}
        if least:
            drafts = {row: proposed[: min(map(len, drafts.values()))] for row, proposed in drafts.items()}
        wanted = {row: evidence.verified[row][n][: len(drafts[row]) + 1] for row, n in at.items()}
        rows = list(at)
        if rule.exchanged and len(at) < len(evidence.texts):
            wanted = {row: wanted[rows[(place + rule.exchanged) % len(rows)]] for place, row in enumerate(rows)}
        counts = {row: min(agreeing(drafts[row], wanted[row]), len(wanted[row]) - 1) for row in rows}
        if least:
            fewest = min(counts.values())
            counts = dict.fromkeys(rows, fewest)
            drafts = {row: proposed[:fewest] for row, proposed in drafts.items()}
            wanted = {row: tokens[: fewest + 1] for row, tokens in wanted.items()}
        for place, row in enumerate(rows):
            others = [wanted[other] for other in (*rows[place + 1 :], *rows[:place])]
            if len(wanted[row]) < len(drafts[row]) + 1:  # of another row, which had fewer
                wanted[row] = [*wanted[row], *wanted[row][-1:] * (len(drafts[row]) + 1 - len(wanted[row]))]
            block = rule.commit(Block(drafts[row], wanted[row], counts[row], others, evidence.case.num_draft_tokens))
            start = len(evidence.prompts[row])
            text = evidence.texts[row][at[row] :]
            same = agreeing(block, text)
            for offset, token in enumerate(block[: same + 1]):
                emitted[row, at[row] - start + offset] = token
            at[row] += len(block)
            if same < min(len(block), len(text)) or at[row] >= len(evidence.texts[row]):
                del at[row]
    return emitted
