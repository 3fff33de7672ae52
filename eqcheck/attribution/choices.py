"""A wrong token that is a lower choice of the target, or its prediction in a column that was not asked for the token.

The scores of the transparent target are known. So a token that is neither the draft's nor the right prediction may be
recognised: as the second choice of a column, say, or as the prediction in the column after it. Among so many columns
and choices some token matches by accident. So a match counts only if it is found again where the case is decoded with
other ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eqcheck.attribution.labels import Labels, labels_of
from eqcheck.attribution.reading import Reader
from eqcheck.attribution.record import Write
from eqcheck.attribution.sources import Sources
from eqcheck.case.record import Case
from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY
from eqcheck.decoding.harness import run as run_case
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import Statement, state
from eqcheck.hashlm.hashing import logits_table, table_row
from eqcheck.hashlm.scores import UNEVEN, score_table
from eqcheck.hashlm.trace import Call

MOST = 4  # choices of a column that are looked at: the more of them, the more matches are accidents
_FOUND_AGAIN, _FOR_ONE_WITHOUT = 3, 3  # copies of the case with other ids in which a match has to be found again


class Choice(NamedTuple):
    """The target's choice of this ``rank`` (1: its prediction) in a column of the call that was asked for the token.

    The ``column`` is counted from the first one, or ``from_query``, the column that was asked; ``batch_row`` is None
    for the row of that query.
    """

    rank: int
    batch_row: int | None
    column: int
    from_query: bool


def recognised(
    generate: Generate, run: Run, explanation: Explanation, variants: Sequence[Case], timeout: float | None
) -> Statement | None:
    """The statement on a wrong token of unknown origin that is a choice of the target; None where it is none.

    ``variants`` are the case with other ids.
    """
    if told := _residual(run, explanation):
        return told
    matches = choices(run, explanation)
    if not matches:
        return None
    again: list[set[Choice]] = []
    for variant in variants:
        done = run_case(generate, variant, timeout)
        other = None if done.outputs is None else Reader(done).explain()
        if other is not None and (there := choices(done, other)) is not None:
            again.append(set(there))
    counts = Counter(choice for there in again for choice in there if choice in matches)
    least = max(_FOUND_AGAIN, len(again) - len(again) // (_FOR_ONE_WITHOUT + 1))
    same = [choice for choice, count in counts.items() if count >= least]
    if not same:
        return None
    best = min(same, key=lambda choice: (-counts[choice], choice.rank, choice.batch_row is not None, choice.from_query))
    (call, batch_row, right_column), column = matches[best]
    facts = {"call": call, "batch_row": batch_row, "right_column": right_column, "column": column, "nth": best.rank}
    name = "prediction" if best.rank == 1 else "choice"
    if best.batch_row is not None:
        return state(f"{name}-of-other-row", other_row=best.batch_row, **facts)
    return state("lower-choice" if column == right_column else f"{name}-of-column", **facts)


def _residual(run: Run, explanation: Explanation) -> Statement | None:
    """The statement on a token that is the likeliest of what sampling draws from after a rejected draft token.

    Greedy decoding takes the target's likeliest token there. The two differ only where the target's scores are flat,
    so that other cases cannot confirm it; that another token is the likeliest by accident is seldom enough.
    """
    row, index, token, case = explanation.row, explanation.token_index, explanation.observed, run.case
    family = FAMILY[case.family]
    if row is None or index is None or token is None or family.target or family.built:
        return None
    labels = labels_of(run, run.trace)
    if (query := _last_query(run, labels, row, index, token)) is None:
        return None
    number, batch_row, column = query
    call = labels.calls[number]
    place = table_row(call.digests[batch_row, column])
    ranks = logits_table(case.vocab_size, case.seed)[place].astype(np.float64)
    scores = score_table(case.vocab_size, case.seed, UNEVEN)[place] if case.uneven else ranks
    drafted, (draft, best) = ranks.copy(), ranks.argsort()[-2:].tolist()  # where it errs it exchanges these two
    drafted[[draft, best]] = ranks[[best, draft]]
    left = _softmax(scores) - _softmax(drafted)
    if int(left.argmax()) != token or token == int(scores.argmax()):
        return None
    return state("of-residual", call=number, batch_row=batch_row, column=column, draft=draft)


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    law = np.exp(scores - scores.max())
    shares: npt.NDArray[np.float64] = law / law.sum()
    return shares


def _last_query(run: Run, labels: Labels, row: int, index: int, observed: int) -> Write | None:
    """The last query that answered for a new token in exactly the right context before it was committed."""
    position = len(run.case.prompts[row]) + index - 1
    commit = Sources(run, labels).committed_by(row, position, observed)
    right = [write for write, label in labels.queries(row, position) if label.exact and write[0] <= commit]
    return right[-1] if right else None


def choices(run: Run, explanation: Explanation) -> dict[Choice, tuple[Write, int]] | None:
    """The choices of the target that the wrong token is, each with the query that was right and the choice's column.

    None where no query was right.
    """
    row, index, token = explanation.row, explanation.token_index, explanation.observed
    if row is None or index is None or token is None:
        return None
    labels = labels_of(run, run.trace)
    query = _last_query(run, labels, row, index, token)
    if query is None:
        return None
    number, own_row, own_column = query
    call, matches = labels.calls[number], dict[Choice, tuple[Write, int]]()
    for batch_row, ranks in enumerate(_ranks(run, call, token)):
        for column, rank in enumerate(ranks):
            if rank > MOST or (rank == 1 and (batch_row, column) == (own_row, own_column)):
                continue
            other = None if batch_row == own_row else batch_row
            matches[Choice(rank, other, column, False)] = query, column
            matches[Choice(rank, other, column - own_column, True)] = query, column
    return matches


def _ranks(run: Run, call: Call, token: int) -> list[list[int]]:
    """The rank of a token among the choices in each column of a call; of a real target only predictions are known."""
    family, size = FAMILY[run.case.family], run.case.vocab_size
    if family.target or family.built or not 0 <= token < size:
        return [[1 if one == token else MOST + 1 for one in row] for row in call.predictions.tolist()]
    scores = logits_table(size, run.case.seed)[table_row(call.digests), token]  # each row of it is 0 to size - 1
    ranks: list[list[int]] = (size - scores).tolist()
    return ranks
