"""Edits of what was returned: tokens accepted or committed wrongly, and options that are missing or misused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb, prod

from eqcheck.contract.endings import RowEnd, ended_by
from eqcheck.contract.options import LISTS, PENALTIES, SCORING, RowOptions, ended, shifted
from eqcheck.core.case.engine import PAD, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.core.explanation.records import many
from eqcheck.engines.abduction.evidence import (
    LEAST_CHANCE,
    Edit,
    Evidence,
    Explained,
    Hypothesis,
    explained,
    pick,
    predictions,
    scoring,
)
from eqcheck.engines.abduction.queries import Round, Turn, allowed, answers, plain_row
from eqcheck.engines.checkpoints.continuations import AskedRow, row_with
from eqcheck.engines.checkpoints.dictation import agreeing

# Edits of what is emitted: where rows end, rows exchanged, tokens lost or repeated, options ignored or misplaced.

_TABLE = {
    "bookkeeping/unverified": {
        "unverified-emitted": "draft tokens are returned before the target has verified them, and then its "
        "predictions for the same positions",
    },
    "bookkeeping/over-accept": {
        "end-unverified": "each round returns its last {drafts} without verification, where all before are accepted",
    },
    "bookkeeping/lost-token": {"missing-in-output": "the output lacks {tokens} that the engine computed"},
    "bookkeeping/repeated-token": {"twice-in-output": "the output has {tokens} twice"},
    "bookkeeping/wrong-correction": {
        "first-token-of-row-before": "the first token of rows is what the target predicts for the row before them",
        "first-token-of-next-row": "the first token of rows is what the target predicts for the row after them",
        "first-token-of-one-another": "the first token of rows is what the target predicts for another of these rows",
        "first-token-from-behind": "the first token of rows is what the target predicts for another row after its end",
    },
    "bookkeeping/pad-in-output": {"pads-after-end": "the row continues with {tokens} after its end, all of them pads"},
    "bookkeeping/row-swap": {"rows-swapped": "rows return the output of other rows"},
    "bookkeeping/premature-stop": {"ends-early": "the row ends after {tokens}"},
    "bookkeeping/past-eos": {"eos-passed": "the row continues with {tokens} after its EOS"},
    "bookkeeping/over-length": {"limit-passed": "the row continues with {tokens} after its limit"},
    "options/ignored-option": {
        "option-ignored": "{options} is ignored",
        "stop-passed": "the row continues with {tokens} after its stop sequence",
        "forbidding-option-ignored": "an option that forbids a token is not applied",
        "option-stale": "the tokens of the current round do not count for {options}",
        "option-stale-for-bonus": "the tokens of the current round do not count for {options} at the bonus token",
        "option-for-first-alone": "{options} is applied only to the first token of a round",
        "option-for-row-start-alone": "{options} is applied only to the first new token of a row",
        "option-stale-by-a-round": "the tokens of the current round and of the one before do not count for {options}",
        "option-missing-at-first": "{options} is not applied to the first token of a round",
        "option-at-bonus-alone": "{options} is applied only to the bonus token",
        "option-missing-at-bonus": "{options} is not applied to the bonus token",
        "option-missing-at-correction": "{options} is not applied to the token in place of a rejected one",
        "option-over-drafts": "draft tokens that come later in the round count for {options}",
        "option-of-other-ids": "{options} is applied to token ids one {ids} those requested",
        "option-over-rejected": "rejected draft tokens count for {options}",
        "option-over-first-rejected": "the first rejected draft token of a round counts for {options}",
        "option-over-proposed": "all draft tokens count for {options}: rejected ones as well, and accepted ones twice",
        "option-once-a-round": "only the last token of each round counts for {options}",
        "option-times-tokens": "{options} is multiplied by the number of tokens fed in a round",
        "option-by-tokens": "{options} is divided by the number of tokens fed in a round",
        "option-over-prompt": "the tokens of the prompt count for {options}",
        "option-without-prompt": "the tokens of the prompt do not count for {options}",
        "grammar-without-accepted": "draft tokens that were accepted in earlier rounds do not count for the grammar",
        "grammar-at-beginning": "the grammar never advances",
        "grammar-open-at-end": "within a round nothing is forbidden after the grammar's end",
        "grammar-of-neighbour": "rows are constrained by the grammar state of the row {row} them",
        "option-missing-at-times": "{options} is not applied to some tokens",
        "option-of-others": "some tokens are chosen with another row's {options}",
        "minimum-stale": "min_new_tokens is compared with the number of new tokens when the round began",
        "minimum-stale-with-prompt": "min_new_tokens is compared with the number of new tokens when the round began, "
        "or after a rejection with the number of all tokens but one, those of the prompt included",
        "options-of-another": "every row gets the options of row {row}",
        "option-of-neighbour": "rows get {options} of the row {row} them",
        "options-of-neighbour": "rows get the options of the row {row} them",
        "end-of-another": "rows end by the limit, EOS ids and stop sequences of row {row}",
    },
}
_SINGLE = 8  # wrong rows that are taken by themselves: each tells as much as the others, and takes its time
EDITS = {id: Edit(fingerprint, id, words) for fingerprint, edits in _TABLE.items() for id, words in edits.items()}
Predicted = dict[tuple[int, int], int]


def returned(edit: str, count: int | None = None, *, once: bool = False) -> Hypothesis:
    """State that a row was computed correctly and returned wrongly, by ``count`` tokens."""
    parameters = () if count is None else (("tokens", many(count, "token")),)
    return Hypothesis(edit=EDITS[edit], parameters=parameters, once=once)


_PASSED = {"eos": "eos-passed", "stop": "stop-passed", "limit": "limit-passed"}


def wrong_end(evidence: Evidence) -> tuple[Hypothesis, int, int] | None:
    """The first row whose tokens are right but that ends early or late: how, the row, and the index."""
    ends = [end for row in evidence.judged if (end := _wrong_end_of(evidence, row)) is not None]
    if not ends:
        return None
    hypothesis, row, index = min(ends, key=lambda end: end[2])
    other = _end_of_another(evidence)
    if other is not None:
        hypothesis = Hypothesis(edit=EDITS["end-of-another"], parameters=(("row", str(other)),))
    return hypothesis, row, index


def _wrong_end_of(evidence: Evidence, row: int) -> tuple[Hypothesis, int, int] | None:
    """The wrong end of a row, and the index of the first token that shows it; None where it ends where it should."""
    output, right, options = evidence.returned[row], evidence.outputs[row], evidence.case.rows[row].options
    by = ended_by(right, options.eos_token_ids, options.stop_sequences)
    end = RowEnd(len(output), evidence.end(row), by)
    if end.early:
        return returned("ends-early", end.length), row, end.first
    if not end.surplus:
        return None
    # Pads say more than what they follow, unless the pad is an EOS that the row may have been given again.
    pads = set(output[end.due :]) == {PAD} and PAD not in options.eos_token_ids
    return returned("pads-after-end" if pads else _PASSED[by], end.surplus), row, end.first


def _end_of_another(evidence: Evidence) -> int | None:
    """The row by whose limit, EOS ids and stops all rows end, where they have their own and some end wrongly."""
    rows = evidence.case.rows
    own = [(row.options.max_new_tokens, row.options.eos_token_ids, row.options.stop_sequences) for row in rows]
    if len(set(own)) > 1:
        for other in range(len(rows)):
            ends = [evidence.end(row, rows[other].options) for row in range(len(rows))]
            if ends == list(map(len, evidence.returned)):
                return other
    return None


def emitted(evidence: Evidence) -> Iterator[Explained]:
    """Rows that hold other rows' output, and rows where a part is missing or there twice."""
    exchanged = _exchanged(evidence)
    if exchanged:
        yield exchanged
    yield _unverified(evidence)
    yield from _first_tokens(evidence)
    for row in evidence.wrong_rows[:_SINGLE]:
        yield from _shortened(evidence, row)
    for row in evidence.wrong_rows[:_SINGLE]:
        yield from _lengthened(evidence, row)


def right_tokens(evidence: Evidence) -> Predicted:
    return {(row, n): token for row, expected in enumerate(evidence.expected) for n, token in enumerate(expected)}


def _exchanged(evidence: Evidence) -> Explained | None:
    """Every wrong row holds exactly what the model alone emits for another one."""
    predicted, wrong = right_tokens(evidence), set(evidence.wrong_rows)
    pairs = [
        (row, other)
        for row in evidence.wrong_rows
        for other, expected in enumerate(evidence.expected)
        if other != row and expected[0] == evidence.outputs[row][0]
    ]
    programs = [
        plain_row(row, evidence.prompts[other] + evidence.outputs[row], len(evidence.prompts[other]))
        for row, other in pairs
    ]
    for (row, other), answered in zip(pairs, answers(evidence.target, programs), strict=True):
        output = evidence.outputs[row]
        tokens = [pick(answered[row, n], evidence.case.rows[other], output[:n]) for n in range(len(output))]
        if tokens == output:
            predicted |= {(row, n): token for n, token in enumerate(tokens)}
            wrong.discard(row)
    return None if wrong else explained(evidence, returned("rows-swapped"), predicted)


def _first_tokens(evidence: Evidence) -> Iterator[Explained]:
    """The first token of rows is predicted for the row before or after them, for one another, or behind an end."""
    wrong = {row for row, index in evidence.first_wrong.items() if not index}
    first = {row: evidence.outputs[row][0] for row in wrong}
    rows = {*range(len(evidence.texts))}
    begin = {row: expected[0] for row, expected in enumerate(evidence.expected) if expected}
    behind = {row: pick(evidence.plain[row][-1], evidence.case.rows[row], evidence.outputs[row]) for row in rows}
    for edit, tokens, sources in (
        ("first-token-of-row-before", begin, {row: {row - 1} for row in wrong}),
        ("first-token-of-next-row", begin, {row: {row + 1} & rows for row in wrong}),
        ("first-token-of-one-another", begin, {row: wrong - {row} for row in wrong}),
        ("first-token-from-behind", behind, {row: rows - {row} for row in wrong}),
    ):
        fit = {row for row in wrong if first[row] in {tokens.get(n) for n in sources[row]}}
        predicted = right_tokens(evidence) | {(row, 0): first[row] for row in fit}
        # The price of the claim: each token might be of several rows, and the rows were chosen for it.
        finding = explained(evidence, returned(edit, once=True), predicted)
        yield finding.times(prod(len(sources[row]) for row in fit)).times(_selections(evidence, fit))


def _selections(evidence: Evidence, rows: set[int]) -> int:
    """Return how many others a claim about some wrong rows, which were chosen for it, might have been about."""
    return comb(len(evidence.wrong_rows), len(rows))


def _unverified(evidence: Evidence) -> Explained:
    """In some rounds draft tokens are emitted before the target has seen them; its predictions come as many later."""
    predicted, rows, choices = right_tokens(evidence), set(), 1
    for row in evidence.wrong_rows:
        output, index = evidence.outputs[row], 0
        while index < len(output):
            if output[index] != evidence.expected[row][index]:
                # Such a round begins at most 2K tokens before: K drafts, and as many late predictions.
                starts = range(max(0, index - 2 * evidence.case.num_draft_tokens), index + 1)
                ends = [end for start in starts for end in _delayed(evidence, row, start)]
                end = max(ends, default=0)
                if end <= index:
                    break
                rows.add(row)
                choices *= len(ends)
                predicted |= {(row, n): output[n] for n in range(index, end)}
                index = end
            index += 1
    finding = explained(evidence, returned("unverified-emitted", once=True), predicted)
    return finding.times(choices).times(_selections(evidence, rows))


def _delayed(evidence: Evidence, row: int, start: int) -> list[int]:
    """Where such a round would end that begins at ``start``, for each number of draft tokens that the output has."""
    output, expected = evidence.outputs[row], evidence.expected[row]
    drafts = evidence.drafts[row][len(evidence.prompts[row]) + start]
    ends = []
    for count in range(1, min(len(drafts), len(output) - start) + 1):
        if output[start : start + count] != drafts[:count]:
            break
        late = agreeing(output[start + count :], expected[start : start + len(drafts) + 1])
        ends.append(start + count + late if late or start + count == len(output) else 0)
    return ends


def _shortened(evidence: Evidence, row: int) -> Iterator[Explained]:
    """Tokens were computed and not returned: the row goes on as after them."""
    start = len(evidence.prompts[row])
    at = start + evidence.first_wrong[row]
    text, rest = evidence.texts[row][:at], evidence.texts[row][at:]
    for count in range(1, evidence.case.num_draft_tokens + 2):
        scores = answers(evidence.target, [plain_row(row, text, len(text))])[0][row, 0]
        text = [*text, pick(scores, evidence.case.rows[row], text[start:])]
        yield _continued(evidence, returned("missing-in-output", count), row, text, rest, -count)


def _lengthened(evidence: Evidence, row: int) -> Iterator[Explained]:
    """Tokens were returned twice: the row goes on as if they were there once."""
    text, index = evidence.texts[row], evidence.first_wrong[row]
    at = len(evidence.prompts[row]) + index
    for count in range(1, min(index, evidence.case.num_draft_tokens + 1) + 1):
        if text[at : at + count] == text[at - count : at]:
            hypothesis = returned("twice-in-output", count)
            yield _continued(evidence, hypothesis, row, text[:at], text[at + count :], count)


def _continued(
    evidence: Evidence, hypothesis: Hypothesis, row: int, text: list[int], rest: list[int], shift: int
) -> Explained:
    """A row that emits its ``text`` and goes on with the ``rest``; that stands ``shift`` places later in the output."""
    start = len(evidence.prompts[row])
    program = plain_row(row, text + rest, start)
    begin = len(text) - start
    program.queries = {(row, n + shift): entry for (_, n), entry in program.queries.items() if n >= begin}
    predicted = right_tokens(evidence) | predictions(evidence, answers(evidence.target, [program]))
    repeated = evidence.outputs[row][begin : begin + max(0, shift)]
    predicted |= {(row, n): token for n, token in enumerate(repeated, begin)}
    return explained(evidence, hypothesis, predicted)


# Edits of the bookkeeping: every context was right, and what was emitted is not what the target predicted.

Tokens = Sequence[int]


@dataclass(frozen=True)
class VerifiedBlock:
    """A row's part in a round, when it is committed.

    ``count`` of the ``drafts`` are accepted; ``answers`` is what the target predicts after the newest token and after
    each draft token; ``others`` are the same of the rows behind it in the batch, in order and around; ``full`` is K;
    so many of the drafts are ``unverified``.
    """

    drafts: Tokens
    answers: Tokens
    count: int
    others: Sequence[Tokens]
    full: int
    unverified: int = 0

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
    commit what the one does that accepts least; so many rows ``wait``, see `follow`. Of each round the last so many
    drafts are ``unverified``. Rows may be ``prefilled``, so that their first token comes without drafts, and drafts go
    ``to_limit`` where the bonus token has no place of its own.
    """

    commit: Commit
    exchanged: int = 0
    least: bool = False
    wait: int = 0
    unverified: int = 0
    prefilled: bool = False
    to_limit: bool = False


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


def _verified_begin(block: VerifiedBlock) -> list[int]:
    """All drafts, where those are accepted that are verified at all."""
    whole = block.count + block.unverified >= len(block.drafts)
    return [*block.drafts, block.answers[-1]] if whole else block.right


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


def unverified_ends(case: EngineCase) -> Iterator[Rule]:
    """The rules by which the last drafts of each round are returned unverified, in engines of three styles.

    Which draft is the last depends on where rounds begin and on how many drafts there are at the limit.
    """
    for count in range(1, case.num_draft_tokens):
        named = (("drafts", many(count, "draft token")),)
        rule = Rule(edit=EDITS["end-unverified"], parameters=named, commit=_verified_begin, unverified=count)
        yield from (rule, replace(rule, prefilled=True), replace(rule, to_limit=True))


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
            # The first token that differs is kept, too: it is what refutes the rule.
            emitted |= {(row, start + offset): token for offset, token in enumerate(committed[: same + 1])}
            at[row] += len(committed)
            if same < min(len(committed), len(text)) or at[row] >= len(evidence.texts[row]):
                del at[row]
    return emitted


def _blocks(evidence: Evidence, rule: Rule, at: dict[int, int]) -> dict[int, VerifiedBlock]:
    """The blocks of a round, by row; ``at`` are the numbers of committed tokens."""
    drafts = {row: evidence.drafts[row][n][: _most(evidence, rule, row, n)] for row, n in at.items()}
    if rule.least:
        drafts = {row: proposed[: min(map(len, drafts.values()))] for row, proposed in drafts.items()}
    answers = {row: evidence.verified[row][n][: len(drafts[row]) + 1] for row, n in at.items()}
    rows = list(at)
    if rule.exchanged and len(at) < len(evidence.texts):
        answers = {row: answers[rows[(place + rule.exchanged) % len(rows)]] for place, row in enumerate(rows)}
    counts = {row: min(agreeing(drafts[row], answers[row]), len(answers[row]) - 1) for row in rows}
    # Cut twice: drafts before they are compared, as the batch verifies equally many, and then what one row rejects.
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
        full = evidence.case.num_draft_tokens
        blocks[row] = VerifiedBlock(drafts[row], answers[row], counts[row], others, full, rule.unverified)
    return blocks


def _most(evidence: Evidence, rule: Rule, row: int, at: int) -> int:
    """Return how many drafts a row has at most after so many committed tokens."""
    if rule.prefilled and at == len(evidence.prompts[row]):
        return 0
    return min(evidence.case.num_draft_tokens, evidence.budget(row, at) + rule.to_limit)


# Options that are ignored, another row's, or applied at the wrong places or to the wrong tokens.


@dataclass(frozen=True, kw_only=True)
class OptionMisuse(Hypothesis):
    """An edit of an option; ``schedule`` names its rounds, see `Evidence.schedules_with_options`."""

    schedule: str = ""


def misused(evidence: Evidence) -> Iterator[Explained]:
    """The tokens explained by options that are off, stale or another row's; options that no row has are left out."""
    rows = evidence.case.rows
    names = [name for name, off in SCORING.items() if any(getattr(row.options, name) != off for row in rows)]
    for name in names:
        yield from _of_one_option(evidence, name)
    # Only the wrong tokens show where rounds begin, so all possible rounds are tried.
    schedules = _schedules(evidence, names)
    for schedule, rounds in schedules.items():
        for edit, misplaced in _MISPLACED.items():
            placed = _placed(evidence, rounds, misplaced)
            yield _misuse(evidence, edit, placed, schedule, options=" and ".join(names))
    if "grammar" in names:
        yield from _of_grammar(evidence, schedules, alone=names == ["grammar"])
    for schedule, rounds in schedules.items() if "min_new_tokens" in names else ():
        for edit, misplaced in _MISCOUNTED.items():
            yield _misuse(evidence, edit, _placed(evidence, rounds, misplaced), schedule)
    yield from _of_another_row(evidence, names)
    for name in names:
        yield from _now_and_then(evidence, name)


def _misuse(evidence: Evidence, edit: str, predicted: Predicted, schedule: str = "", **named: object) -> Explained:
    parameters = tuple((name, str(value)) for name, value in named.items())
    return explained(evidence, OptionMisuse(edit=EDITS[edit], parameters=parameters, schedule=schedule), predicted)


def _of_one_option(evidence: Evidence, name: str) -> Iterator[Explained]:
    """An option that is off, counts the prompt wrongly, or names other ids, in all rows and at all tokens."""
    rows = evidence.case.rows
    altered = [row_with(row, **{name: SCORING[name]}) for row in rows]
    yield _misuse(evidence, "option-ignored", _chosen(evidence, altered), options=name)
    for edit, predicted in _over_prompt(evidence, name):
        yield _misuse(evidence, edit, predicted, options=name)
    for step, ids in ((1, "above"), (-1, "below")) if name in LISTS else ():
        altered = [replace(row, options=_moved(name, row.options, step)) for row in rows]
        yield _misuse(evidence, "option-of-other-ids", _chosen(evidence, altered), options=name, ids=ids)


def _of_grammar(evidence: Evidence, schedules: Mapping[str, list[Round]], *, alone: bool) -> Iterator[Explained]:
    """A grammar that stands at another token; where no row has another option (``alone``), also a neighbour's."""
    for schedule, rounds in schedules.items():
        for edit, misplaced in _OF_GRAMMARS.items():
            yield _misuse(evidence, edit, _placed(evidence, rounds, misplaced), schedule)
        for shift, neighbour in _beside_of(evidence.case.rows) if alone else ():
            predicted = _beside(evidence, rounds, shift)
            yield _misuse(evidence, "grammar-of-neighbour", predicted, schedule, row=neighbour)


def _of_another_row(evidence: Evidence, names: Sequence[str]) -> Iterator[Explained]:
    """All rows with the options of one, or each with those of its neighbour; rows with equal options tell nothing."""
    rows = evidence.case.rows
    kinds = {scoring(row.options): number for number, row in reversed(list(enumerate(rows)))}
    if len(kinds) == 1:
        return
    for other in kinds.values():
        altered = [replace(row, options=rows[other].options) for row in rows]
        yield _misuse(evidence, "options-of-another", _chosen(evidence, altered), row=other)
    for shift, neighbour in _beside_of(rows):
        others = [rows[(at + shift) % len(rows)].options for at in range(len(rows))]
        for name in names:  # one that suffices alone is the one: the others may be the row's own
            lent = [row_with(row, **{name: getattr(other, name)}) for row, other in zip(rows, others, strict=True)]
            yield _misuse(evidence, "option-of-neighbour", _chosen(evidence, lent), options=name, row=neighbour)
        altered = [replace(row, options=other) for row, other in zip(rows, others, strict=True)]
        yield _misuse(evidence, "options-of-neighbour", _chosen(evidence, altered), row=neighbour)


def _now_and_then(evidence: Evidence, name: str) -> Iterator[Explained]:
    """An option that is off, or another row's, at some tokens: the places are chosen to fit, and have their price."""
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
