"""Edits of what is returned: where rows end, rows exchanged, tokens that are lost or repeated only in the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import comb, prod

from eqcheck.abduction.edits import EDITS, Hypothesis
from eqcheck.abduction.evidence import Evidence, pick, plain_row
from eqcheck.abduction.program import answers
from eqcheck.abduction.ranking import Explained, finding, predictions
from eqcheck.checkpoints.dictated import agreeing
from eqcheck.explanation.records import many


def returned(edit: str, count: int | None = None, *, once: bool = False) -> Hypothesis:
    """That a row was computed rightly and returned wrongly, by so many tokens."""
    parameters = () if count is None else (("tokens", many(count, "token")),)
    return Hypothesis(edit=EDITS[edit], parameters=parameters, once=once)


def ended(evidence: Evidence) -> tuple[Hypothesis, int, int] | None:
    """What is wrong, the row and the index for the first row whose tokens are right but that ends early or late."""
    found = []
    for row in evidence.judged:
        output, right = evidence.returned[row], evidence.outputs[row]
        end, surplus = evidence.end(row), output[len(right) :]
        if len(output) < end:
            found.append((returned("ends-early", len(output)), row, len(output)))
        elif surplus:
            edit = "eos-passed" if right[-1] in evidence.case.rows[row].options.eos_token_ids else "limit-passed"
            edit = "pads-after-end" if set(surplus) == {evidence.pad} else edit
            found.append((returned(edit, len(surplus)), row, end))
    return min(found, key=lambda one: one[2], default=None)


def emitted(evidence: Evidence) -> list[Explained]:
    """Rows that hold other rows' output, and rows of which a part is missing or there twice."""
    exchanged = _exchanged(evidence)
    found = [_unverified(evidence), *_first_tokens(evidence), *_shortened(evidence), *_lengthened(evidence)]
    return [exchanged, *found] if exchanged else found


def _right(evidence: Evidence) -> dict[tuple[int, int], int]:
    return {(row, n): token for row, expected in enumerate(evidence.expected) for n, token in enumerate(expected)}


def _exchanged(evidence: Evidence) -> Explained | None:
    """Every wrong row holds exactly what the model alone emits for another one."""
    predicted = _right(evidence)
    wrong = {row for row, _ in evidence.surprising}
    pairs = [
        (row, other)
        for row in wrong
        for other, expected in enumerate(evidence.expected)
        if other != row and expected[0] == evidence.outputs[row][0]
    ]
    programs = [
        plain_row(row, evidence.prompts[other] + evidence.outputs[row], len(evidence.prompts[other]))
        for row, other in pairs
    ]
    for (row, other), found in zip(pairs, answers(evidence.target, programs), strict=True):
        output = evidence.outputs[row]
        tokens = [pick(found[row, n], evidence.case.rows[other], output[:n]) for n in range(len(output))]
        if tokens == output:
            predicted |= {(row, n): token for n, token in enumerate(tokens)}
            wrong.discard(row)
    return None if wrong else finding(evidence, returned("rows-swapped"), predicted)


def _first_tokens(evidence: Evidence) -> Iterator[Explained]:
    """The first token of rows is what is predicted for the row before or after them, or they have one another's."""
    wrong = {row for row, index in evidence.surprising if not index}
    rows = range(len(evidence.texts))
    for edit, sources in (
        ("first-token-of-row-before", {row: {row - 1} for row in wrong}),
        ("first-token-of-next-row", {row: {row + 1} for row in wrong}),
        ("first-token-of-one-another", {row: wrong - {row} for row in wrong}),
    ):
        predicted = _right(evidence)
        found = {
            row
            for row in wrong
            if evidence.outputs[row][0] in {evidence.expected[source][0] for source in sources[row] & {*rows}}
        }
        predicted |= {(row, 0): evidence.outputs[row][0] for row in found}
        one = finding(evidence, returned(edit, once=True), predicted)
        yield _of_some(evidence, replace(one, chance=one.chance * prod(len(sources[row]) for row in found)), found)


def _of_some(evidence: Evidence, found: Explained, rows: set[int]) -> Explained:
    """What is claimed of some wrong rows, chosen for it, might be so of others."""
    return replace(found, chance=found.chance * comb(len({row for row, _ in evidence.surprising}), len(rows)))


def _unverified(evidence: Evidence) -> Explained:
    """In some rounds draft tokens are emitted before the target has seen them; its predictions come as many later."""
    predicted, rows, choices = _right(evidence), set(), 1
    for row in {row for row, _ in evidence.surprising}:
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
    found = finding(evidence, returned("unverified-emitted", once=True), predicted)
    return _of_some(evidence, replace(found, chance=found.chance * choices), rows)


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


def _shortened(evidence: Evidence) -> list[Explained]:
    """Tokens were computed and not returned: the row goes on as after them."""
    found = []
    for row in {row for row, _ in evidence.surprising}:
        index = min(n for r, n in evidence.surprising if r == row)
        start = len(evidence.prompts[row])
        text = evidence.texts[row][: start + index]
        missing: list[int] = []
        for _ in range(evidence.case.num_draft_tokens + 1):
            scores = answers(evidence.target, [plain_row(row, text, len(text))])[0][row, 0]
            missing.append(pick(scores, evidence.case.rows[row], text[start:]))
            text = [*text, missing[-1]]
            program = plain_row(row, text + evidence.texts[row][start + index :], start)
            count = len(missing)
            program.queries = {
                (row, n - count): entry for (_, n), entry in program.queries.items() if n >= index + count
            }
            predicted = _right(evidence) | predictions(evidence, answers(evidence.target, [program]))
            found.append(finding(evidence, returned("missing-in-output", count), predicted))
    return found


def _lengthened(evidence: Evidence) -> list[Explained]:
    """Tokens were returned twice: the row goes on as if they were there once."""
    found = []
    for row in {row for row, _ in evidence.surprising}:
        index = min(n for r, n in evidence.surprising if r == row)
        start = len(evidence.prompts[row])
        text = evidence.texts[row]
        for count in range(1, evidence.case.num_draft_tokens + 2):
            at = start + index
            if count > index or text[at : at + count] != text[at - count : at]:
                continue
            program = plain_row(row, text[:at] + text[at + count :], start)
            program.queries = {(row, n + count): entry for (_, n), entry in program.queries.items() if n >= index}
            predicted = _right(evidence) | predictions(evidence, answers(evidence.target, [program]))
            predicted |= {(row, index + n): text[at + n] for n in range(count)}
            found.append(finding(evidence, returned("twice-in-output", count), predicted))
    return found
