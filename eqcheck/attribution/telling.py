"""The origin of a log-probability that was returned for a token and is not the token's: another row's, or a column's.

Those of the transparent target take few values, so one alone may agree by accident with many. Where the case is decoded
with other ids, all values are others, and the place is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eqcheck.attribution.labels import Labels, labels_of
from eqcheck.attribution.record import Write
from eqcheck.case.record import Case
from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY
from eqcheck.decoding.harness import run as run_case
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import Statement, state
from eqcheck.hashlm.hashing import logits_table, table_row
from eqcheck.hashlm.scores import UNEVEN, score_table
from eqcheck.truth.logprobs import EXACT

_LEAST = 4  # copies of the case with other ids that show the same place; one in six may differ


class Cell(NamedTuple):
    """A column of a batch row of the call that predicted the token: the value is that of the prediction there.

    ``own_token``: it is that of the row's own token under the scores of that column.
    """

    batch_row: int
    column: int
    own_token: bool


def whose(
    generate: Generate, run: Run, explanation: Explanation, variants: Sequence[Case], timeout: float | None
) -> Statement | None:
    """The statement on a wrong log-probability whose origin is found in copies with other ids, too; else None."""
    row, index = explanation.row, explanation.token_index
    if row is None or index is None:
        return None
    labels = labels_of(run, run.trace)
    equal, tried, counts = _cells(run, labels, row, index), 0, Counter[Cell]()
    for variant in variants if equal else ():
        done = run_case(generate, variant, timeout)
        if done.outputs == done.truth.rows:
            tried += 1
            counts.update(_cells(done, labels_of(done, done.trace), row, index) & equal)
    same = [cell for cell, count in counts.items() if count >= max(_LEAST, tried - tried // 6)]
    if not same:
        return None
    query, cell = _first_query(labels, run, row, index), max(same, key=lambda cell: (counts[cell], not cell.own_token))
    assert query is not None
    facts = {"call": query[0], "batch_row": cell.batch_row, "column": cell.column}
    told = {name: value for name, value in explanation.facts.items() if name in ("index", "own", "told")}
    if cell.own_token:
        return state("logprob-in-column", **told, **facts)
    label = labels.of[query[0], cell.batch_row, cell.column]
    other = label.position + 1 - len(run.case.prompts[label.request]) if label.request >= 0 else -1
    if label.exact and 0 <= other < len(run.truth.rows[label.request]):
        return state("logprob-of-token", **told, **facts, other=other, other_row=label.request)
    return state("logprob-of-column", **told, **facts)


def _first_query(labels: Labels, run: Run, row: int, index: int) -> Write | None:
    """The first query that predicted a new token in exactly the right context."""
    position = len(run.case.prompts[row]) + index - 1
    return next((write for write, label in labels.queries(row, position) if label.exact), None)


def _cells(run: Run, labels: Labels, row: int, index: int) -> set[Cell]:
    """The cells of the call that predicted a new token which have the value that was returned for it."""
    case, query, completion = run.case, _first_query(labels, run, row, index), run.completions[row]
    family = FAMILY[case.family]
    if family.target or family.built or query is None or completion is None or completion.logprobs is None:
        return set()
    value, token, call = completion.logprobs[index], run.truth.rows[row][index], labels.calls[query[0]]
    size, seed = case.vocab_size, case.seed
    table = score_table(size, seed, UNEVEN) if case.uneven else logits_table(size, seed).astype(np.float64)
    scores = table[table_row(call.digests)]
    law = scores - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True))
    law -= scores.max(-1, keepdims=True)
    equal = set()
    for batch_row, column in np.ndindex(*call.tokens.shape):
        for own_token, one in ((False, int(call.predictions[batch_row, column])), (True, token)):
            right = (batch_row, column) == query[1:]
            if one < size and not right and abs(float(law[batch_row, column, one]) - value) <= EXACT:
                equal.add(Cell(batch_row, column, own_token))
    return equal
