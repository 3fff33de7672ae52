"""Edits of what is emitted: where rows end, rows exchanged, tokens lost or repeated, options ignored or misplaced."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb, prod

from eqcheck.abduction.answers import answers
from eqcheck.abduction.evidence import Evidence, pick
from eqcheck.abduction.hypotheses import Edit, Explained, Hypothesis, explained, predictions
from eqcheck.abduction.program import plain_row
from eqcheck.case.engine import PAD
from eqcheck.checkpoints.dictation import agreeing
from eqcheck.explanation.records import many

_TABLE = {
    "bookkeeping/unverified": {
        "unverified-emitted": "draft tokens are returned before the target has verified them, and then its "
        "predictions for the same positions",
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


def wrong_end(evidence: Evidence) -> tuple[Hypothesis, int, int] | None:
    """The first row whose tokens are right but that ends early or late: how, the row, and the index."""
    ends = []
    for row in evidence.judged:
        output, right = evidence.returned[row], evidence.outputs[row]
        end, surplus = evidence.end(row), output[len(right) :]
        if len(output) < end:
            ends.append((returned("ends-early", len(output)), row, len(output)))
        elif surplus:
            options = evidence.case.rows[row].options
            edit = "stop-passed" if options.ended(right) else "limit-passed"
            edit = "eos-passed" if right[-1] in options.eos_token_ids else edit
            edit = "pads-after-end" if set(surplus) == {PAD} and PAD not in options.eos_token_ids else edit
            ends.append((returned(edit, len(surplus)), row, end))
    if not ends:
        return None
    hypothesis, row, index = min(ends, key=lambda end: end[2])
    other = _end_of_another(evidence)
    if other is not None:
        hypothesis = Hypothesis(edit=EDITS["end-of-another"], parameters=(("row", str(other)),))
    return hypothesis, row, index


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
