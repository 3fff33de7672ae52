"""The proof that the witnesses give together: when the cause that was read is asserted, and when it is not.

Reading names a cause from what a query saw. Whether it is asserted depends on three witnesses beside it:

tied         The record ties the wrong token to the cause. For a wrong context: the query that is blamed answered the
             emitted token. For bookkeeping: a query that saw exactly its row had answered rightly before the token was
             committed, and it was seen where the emitted token comes from; or the outputs alone show the fault.
repair       Right positions, mask or entries took the place of what the queries had
(`eqcheck.transparent.attribution.repair`):
             ``confirms`` if that of the component that was read helps, ``contradicts`` if only that of others does,
             ``silent`` if none does. Reading and repair take the same queries for the same rows, so repair alone cannot
             confirm which row is concerned.
permutation  The case was decoded again with other ids. ``stable``: the same is read again.
             ``changes``: something else is, so what was read rests on a coincidence of ids. ``depends``: with other ids
             nothing is wrong; ``scores``: the same, and the scores are others with other ids, on which a decoder that
             compares probabilities depends. ``untried``: there was nothing to try.

A wrong context proves a fault of context, because in these models every difference in what is seen changes the answer;
that no repair helps proves nothing. A right context proves bookkeeping, because the target had said what to emit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY
from eqcheck.contract.kinds import KINDS
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, Opinion
from eqcheck.core.explanation.statements import Statement, not_asserted, state
from eqcheck.transparent.attribution.entries import LET_GO
from eqcheck.transparent.attribution.labels import Labels, labels_of
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.repair import PLACE, repair
from eqcheck.transparent.attribution.token_origins import Sources
from eqcheck.transparent.attribution.writes import Write
from eqcheck.transparent.decoding import Run, Schedule, Truth, truth_of
from eqcheck.transparent.decoding import run as run_case
from eqcheck.transparent.drawing import apart, unused_id
from eqcheck.transparent.hashlm.hashing import UNEVEN, logits_table, score_table, table_row
from eqcheck.transparent.hashlm.trace import Call
from eqcheck.transparent.truth.continuation import EXACT

# The origin of a log-probability that was returned for a token and is not the token's: another row's, or a column's.
#
# Those of the transparent target take few values, so one alone may agree by accident with many. Where the case is
# decoded with other ids, all values are others, and the place is the same.

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


# A wrong token that is a lower choice of the target, or its prediction in a column that was not asked for the token.
#
# The scores of the transparent target are known. So a token that is neither the draft's nor the right prediction may
# be recognised: as the second choice of a column, say, or as the prediction in the column after it. Among so many
# columns and choices some token matches by accident. So a match counts only if it is found again where the case is
# decoded with other ids.

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
    # One copy in a few may show the place by accident or miss it, as ids coincide; more than that, and the place is not
    # the origin. Of several the one found most often, then the simplest: the first choice, in the row's own batch row.
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


# Other token ids for a case, the rest of it as it was.
#
# The tokens that the target emits follow from the ids of the prompts. So EOS ids and the pad id are not kept as
# numbers, but by where they stand: the EOS that ends row 1 at new token 3 becomes whatever is new token 3 of row 1
# now.

_PERMUTATIONS = 200  # to try; the first that keeps all is taken


@dataclass(frozen=True)
class Place:
    """Locate an id: ``new`` token or ``prompt`` token number ``index`` of a row; or an ``id`` by itself."""

    kind: str
    row: int = 0
    index: int = 0


@dataclass(frozen=True)
class Places:
    """Locate EOS ids, pad id and stop sequences of a case; the pad is None if its id occurs nowhere."""

    eos: tuple[Place, ...]
    pad: Place | None
    stops: tuple[tuple[tuple[Place, ...], ...], ...] = ()

    @classmethod
    def of(cls, case: Case) -> Places:
        truth, pad = truth_of(case), case.pad_token_id
        eos = {token: _place(case, truth, token) or Place("id", index=token) for token in case.eos_token_ids}
        alone = Place("id", index=pad) if pad in (0, case.vocab_size) else _place(case, truth, pad)
        stops = tuple(
            tuple(_places(number, truth.uncut[number], case.prompts[number], stop) for stop in of_row)
            for number, of_row in enumerate(case.stop_sequences)
        )
        return cls(tuple(eos.values()), eos.get(pad, alone), stops)

    def without_row(self, row: int) -> Places:
        """The places in the case with one row less; what stood in that row is gone."""

        def moved(place: Place | None) -> Place | None:
            if place is None or place.kind == "id":
                return place
            return None if place.row == row else replace(place, row=place.row - (place.row > row))

        stops = tuple(
            tuple(tuple(place for place in map(moved, stop) if place) for stop in of_row)
            for number, of_row in enumerate(self.stops)
            if number != row
        )
        return Places(tuple(place for place in map(moved, self.eos) if place), moved(self.pad), stops)

    def renamed(self, name: Sequence[int]) -> Places:
        """The places, with other ids where they are ids by themselves."""

        def other(place: Place) -> Place:
            return replace(place, index=name[place.index]) if place.kind == "id" else place

        stops = tuple(tuple(tuple(map(other, stop)) for stop in of_row) for of_row in self.stops)
        return Places(tuple(map(other, self.eos)), self.pad and other(self.pad), stops)


def with_ids(case: Case, places: Places, **changes: Any) -> Case:
    """The case with other prompts, limits and so on, and the ids that now stand at the places."""
    changed = replace(case, **{"eos_token_ids": (), "pad_token_id": 0, "stop_sequences": (), **changes})
    uncut = truth_of(changed).uncut

    def standing(place: Place | None) -> list[int]:
        if place is None or place.kind == "id":
            return [place.index] if place else []
        rows = changed.prompts if place.kind == "prompt" else uncut
        return [*rows[place.row][place.index : place.index + 1]]

    eos = tuple(dict.fromkeys(token for place in places.eos for token in standing(place)))
    pad, *_ = (*standing(places.pad), unused_id(changed.prompts, uncut, case.vocab_size))
    stops = tuple(
        tuple(
            stop for places_of in of_row if (stop := tuple(token for place in places_of for token in standing(place)))
        )
        for of_row in places.stops
    )
    return replace(changed, eos_token_ids=eos, pad_token_id=pad, stop_sequences=stops if any(stops) else ())


def _places(number: int, new: Sequence[int], prompt: Sequence[int], stop: tuple[int, ...]) -> tuple[Place, ...]:
    """Return where the tokens of a stop sequence stand: all in a row with its prompt, or each by itself as an id."""
    text, size = (*prompt, *new), len(stop)
    for start in (*range(len(prompt), len(text)), *range(len(prompt))):
        if text[start : start + size] == stop:
            places = range(start - len(prompt), start - len(prompt) + size)
            return tuple(
                Place("new", number, at) if at >= 0 else Place("prompt", number, at + len(prompt)) for at in places
            )
    return tuple(Place("id", index=token) for token in stop)


def _place(case: Case, truth: Truth, token: int) -> Place | None:
    """Where an id is emitted first, or else where it stands in a prompt."""
    for kind, rows in (("new", truth.rows), ("new", truth.uncut), ("prompt", case.prompts)):
        found = [(row.index(token), number) for number, row in enumerate(rows) if token in row]
        if found:
            index, number = min(found)
            return Place(kind, number, index)
    return None


def distinct(case: Case, places: Places, rows: Iterable[int] | None = None) -> Case:
    """The case with prompts of distinct ids, such as 10, 11, 12 and 20, 21; of the given ``rows`` or of all.

    A prefix that all rows share stays one. Of ten ways to do it the one is taken after which the fewest ids occur
    twice in prompts and truths: where ids coincide, rows and positions can be mixed up.
    """
    chosen = set(range(len(case.prompts)) if rows is None else rows)
    prefix = case.prefix_length
    step = apart(max(map(len, case.prompts)))

    def prompts(shift: int) -> tuple[tuple[int, ...], ...]:
        def token(row: int, place: int) -> int:
            return (shift + step * (row + 1) + place) % case.vocab_size

        return tuple(
            tuple(
                token(0 if place < prefix else row, place) if row in chosen or place < prefix else old
                for place, old in enumerate(prompt)
            )
            for row, prompt in enumerate(case.prompts)
        )

    options = [with_ids(case, places, prompts=prompts(shift)) for shift in range(10)]
    return min(options, key=_repeats)


def renamed(case: Case, places: Places) -> Case:
    """The case with ids 10, 11, ... in the order in which they first occur; equal ids stay equal."""
    names = {token: 10 + n for n, token in enumerate(dict.fromkeys(t for prompt in case.prompts for t in prompt))}
    if len(names) > case.vocab_size - 10:
        return case
    return with_ids(case, places, prompts=tuple(tuple(names[token] for token in p) for p in case.prompts))


def _repeats(case: Case) -> int:
    """Return how many tokens of prompts and truth have an id that occurred before."""
    tokens = [token for rows in (case.prompts, truth_of(case).rows) for row in rows for token in row]
    return len(tokens) - len(set(tokens))


def permuted(case: Case, seed: int, tries: int = _PERMUTATIONS) -> Case:
    """The case with the ids of its prompts renamed, each id to one other, by a permutation that ``seed`` selects.

    Always kept are the lengths of the prompts, which of their ids are equal, the id 0 wherever it stands in one, all
    limits, K, and how many draft tokens each round accepts (a case with ``agreement`` gets the table that it amounts
    to). The target now emits other tokens, so EOS ids and pad id are the ids that stand where the old ones stood. That
    keeps the lengths of the outputs, where EOS ids stand in prompts, and whether and where the pad id is an EOS, stands
    in a prompt or is emitted, unless ids coincide that did not before: the first permutation of ``tries`` is taken that
    keeps all of it, or else the one that keeps most.

    An explanation does not depend on numbers: one that changes here rests on a coincidence.

        >>> case = permuted(Case(((5, 7), (9, 5)), max_new_tokens=6), seed=1)
        >>> case.prompts[0][0] == case.prompts[1][1]
        True
    """
    return _renewed(case, Random(f"permuted {seed}"), tries, one_for_each=True)


def redrawn(case: Case, seed: int, tries: int = _PERMUTATIONS) -> Case:
    """Permute like `permuted`, but make equal ids of prompts different (as far as ids last), and different ones equal.

    Kept are equal ids that are an EOS or the pad, and a prefix that all rows share. An explanation that takes a token
    for another with the same id says something else here. ``seed`` even: no id twice; odd: half as many ids.

    The id 0 is renamed here and kept by `permuted`: many decoders fill up calls with it, whatever the pad id of the
    request, so a prompt's 0 is told from what fills up a row only where it is another id; and a decoder that takes 0
    for "none" fails only where it is 0.

        >>> case = redrawn(Case(((5, 7), (7, 5)), max_new_tokens=6), seed=2)
        >>> len({token for prompt in case.prompts for token in prompt})
        4
    """
    return _renewed(case, Random(f"redrawn {seed}"), tries, one_for_each=False, scarce=bool(seed % 2))


def _renewed(case: Case, random: Random, tries: int, *, one_for_each: bool, scarce: bool = False) -> Case:
    """The case with other ids: ``one_for_each`` that it has, or one a place; of ``scarce`` ids many are equal."""
    places, traits = Places.of(case), _traits(case)
    table = {} if case.agreement is None else as_table(case)
    kept = {case.pad_token_id, *case.eos_token_ids}
    ids = {token for prompt in case.prompts for token in prompt}
    best, least = case, len(traits) + 1
    # Ids are renamed as a whole, or drawn anew place by place. Another EOS or pad id would make another case, so these
    # keep their places, shared prefixes stay shared, and among the tries the copy is kept that differs least in the
    # traits that a fault may depend on.
    for _ in range(tries):
        others = list(range(1, case.vocab_size))
        random.shuffle(others)
        name = [0, *others, case.vocab_size]  # the last one is a pad that is no id of the vocabulary
        prompts = tuple(tuple(name[token] for token in prompt) for prompt in case.prompts)
        if not one_for_each:
            free = [token for token in others if token not in {name[one] for one in kept}]
            few = random.choices(free[: len(ids) // 2 + 1], k=sum(map(len, prompts))) if scarce else None
            prompts = _drawn_anew(case, prompts, kept, cycle(free) if few is None else iter(few))
        new = with_ids(case, places.renamed(name), prompts=prompts, **table)
        different = sum(a != b for a, b in zip(_traits(new), traits, strict=True))
        if different < least:
            best, least = new, different
        if not different:
            break
    return best


def _drawn_anew(
    case: Case, renamed: Sequence[tuple[int, ...]], kept: set[int], supply: Iterator[int]
) -> tuple[tuple[int, ...], ...]:
    """The prompts with an id from the supply in each place, but for ids that are ``kept``, which are only renamed."""
    prompts = [
        tuple(new if old in kept else next(supply) for old, new in zip(*pair, strict=True))
        for pair in zip(case.prompts, renamed, strict=True)
    ]
    return tuple(prompts[0][: case.prefix_length] + prompt[case.prefix_length :] for prompt in prompts)


def variants(case: Case) -> tuple[Case, ...]:
    """The case with other ids: three times with equal ids where they were, and three times with others equal.

    Two of these have a pad that no token can be taken for.

    >>> [variant.pad_token_id for variant in variants(Case(((5, 7),)))][2:4]
    [128, 128]
    """
    renamed = [*(permuted(case, seed) for seed in (1, 2, 3)), *(redrawn(case, seed) for seed in (2, 4, 5))]
    return tuple(replace(one, pad_token_id=one.vocab_size) if at in (2, 3) else one for at, one in enumerate(renamed))


def as_table(case: Case) -> dict[str, Any]:
    """The fields that say what is accepted by a table: of how many draft tokens, or of trees, along which ranks."""
    schedule = Schedule(case, truth_of(case))
    if not case.tree:
        accepts = tuple(tuple(own.accepted for own in of_row) for of_row in schedule.rows)
        return {"agreement": None, "accepts": accepts}
    paths = []
    for rounds, ranks in zip(schedule.rows, schedule.ranks, strict=True):
        starts = accumulate((own.emitted for own in rounds), initial=0)
        paths.append(tuple(tuple(ranks[at : at + own.accepted]) for at, own in zip(starts, rounds, strict=False)))
    return {"agreement": None, "paths": tuple(paths)}


def _traits(case: Case) -> tuple[Any, ...]:
    """The traits that a case with other ids is to have in common with this one."""
    rows, eos, pad = truth_of(case).rows, case.eos_token_ids, case.pad_token_id

    def stands(tokens: Sequence[int], ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(place for place, token in enumerate(tokens) if token in ids)

    return (
        tuple(map(len, rows)),
        tuple(tuple(map(len, stops)) for stops in case.stop_sequences),
        len(eos),
        eos.index(pad) if pad in eos else None,
        tuple(stands(prompt, eos) for prompt in case.prompts),
        tuple(stands(prompt, (pad,)) for prompt in case.prompts),
        tuple(stands(row, (pad,)) for row in rows),
    )


# The rows: (is it a context that was read?, tied, what repair does, what permutation shows). A row that is not
# here is not asserted; `tests/transparent/test_witnesses.py` tries every combination.
_ANY = ("stable", "depends", "scores", "untried")
ASSERTED = frozenset(
    [("context", "tied", "confirms", shown) for shown in _ANY]
    + [("context", "tied", "silent", "stable"), ("context", "untied", "confirms", "stable")]
    + [("bookkeeping", "tied", bearing, shown) for bearing in ("silent", "contradicts") for shown in _ANY]
    + [("bookkeeping", "untied", "silent", shown) for shown in ("stable", "scores")]
)


# Variants that agree: of one alone the ids may coincide as those of the case did. And so many for each that differs,
# since a token is right by chance once in a vocabulary, whatever is wrong.
_Copy = Explanation | Literal["right", "crashed"]  # what is read of the case with other ids
_AGREEING, _FOR_ONE_THAT_DIFFERS = 2, 3


def second_opinion(
    generate: Generate,
    run: Run,
    explanation: Explanation,
    timeout: float | None = None,
    variants: Sequence[Case] = (),
) -> Explanation:
    """The explanation where the witnesses together prove it, else ``unattributed`` with the testimony of each.

    ``variants`` are the case with other ids. Crashes have no second opinion: there is no output to restore.
    """
    if explanation.component in ("crash", "options", "state") or explanation.token_index is None:
        return explanation
    if explanation.kind == "logprobs":  # all tokens are right: there is nothing to restore
        single = explanation.facts.get("statement") == "logprob"
        known = whose(generate, run, explanation, variants, timeout) if single else None
        return explanation if known is None else replace(explanation, **known._asdict())
    # All three witnesses are heard even where one of them decides: the report shows the testimony of each.
    opinion = repair(generate, run, explanation, timeout)
    copies = [read_of(generate, case, timeout) for case in variants]
    shown, counts = permutation(explanation, copies)
    if shown == "changes" and explanation.kind == "wrong-correction":
        # Where the wrong token comes from may be a coincidence, and that it is no prediction need not be.
        plain = _without_source(explanation)
        others = [_without_source(one) if isinstance(one, Explanation) else one for one in copies]
        if permutation(plain, others)[0] == "stable":
            explanation, (shown, counts) = plain, permutation(plain, others)
    shown = "scores" if shown == "depends" and run.case.uneven else shown
    said = replace(explanation, repair=opinion, permuted=counts)
    if explanation.component != "unattributed" and asserted(explanation, opinion, shown):
        if explanation.facts.get("statement") == "neither":
            choice = recognised(generate, run, explanation, variants, timeout)
            said = said if choice is None else replace(said, **choice._asdict())
        return replace(said, repair_confirms=bearing(explanation, opinion) == "confirms")
    if explanation.component == "unattributed":
        detail = "; ".join(filter(None, (explanation.detail, str(opinion))))
    else:
        detail = not_asserted(explanation, opinion, changes=shown == "changes")
    return replace(said, component="unattributed", kind="unattributed", detail=detail)


def asserted(explanation: Explanation, opinion: Opinion, shown: str) -> bool:
    """Return whether the witnesses prove the cause that was read; ``shown`` is what permutation shows."""
    what = "bookkeeping" if explanation.component == "bookkeeping" else "context"
    tied = "tied" if explanation.tied else "untied"
    return (what, tied, bearing(explanation, opinion), shown) in ASSERTED


def bearing(explanation: Explanation, opinion: Opinion) -> str:
    """The testimony of repair on the cause that was read: ``confirms``, ``contradicts`` or ``silent``.

    A rejected draft token that is seen, or a token that is seen twice, counts as the cache's, also where hiding it
    would do. Of a wrong context that no emitted token comes from, only a repair that restores the output says anything:
    its query may have been asked for another row.
    """
    elsewhere = explanation.component != "bookkeeping" and not explanation.tied
    sets = opinion.restores or (() if elsewhere else opinion.mends)
    if not sets:
        return "silent"
    named = {explanation.component, KINDS[explanation.kind].mended_by}
    named |= {PLACE} if "position" in named else set()
    return "confirms" if any(named & set(parts) for parts in sets) else "contradicts"


def permutation(explanation: Explanation, copies: Sequence[_Copy]) -> tuple[str, tuple[int, int, int]]:
    """The testimony of the case with other ids, and how many copies agree, differ, and have nothing wrong.

    A copy that differs is allowed for where three agree: with few ids in a vocabulary, a wrong token can be right by
    chance.
    """
    agree = differ = 0
    for other in copies:
        if not isinstance(other, Explanation):
            continue
        if alike(mechanism(other), mechanism(explanation)):
            agree += 1
        elif not _pad_instead(other, explanation):
            differ += 1
    passed = copies.count("right")
    return shown_by(agree, differ, passed), (agree, differ, passed)


def read_of(generate: Generate, case: Case, timeout: float | None) -> _Copy:
    """Decode a copy of the case with other ids, and read what is wrong."""
    done = run_case(generate, case, timeout)
    if done.outputs is None:
        return "crashed"
    return Reader(done).explain() or "right"


def _without_source(read: Explanation) -> Explanation:
    """A wrong token without a word on where it was predicted."""
    if read.kind != "wrong-correction":
        return read
    neutral = state("neither")
    return replace(read, detail=neutral.detail, clauses=(), facts=neutral.facts, tied=False)


def shown_by(agree: int, differ: int, passed: int) -> str:
    """The testimony of so many variants that agree, that differ, and that have nothing wrong."""
    if agree >= _AGREEING and agree >= _FOR_ONE_THAT_DIFFERS * differ:
        return "stable"
    if differ:
        return "changes"
    return "depends" if passed and not agree else "untried"


_OF_ANOTHER = "mask/of-another-row"
_TOLD_AS = {_OF_ANOTHER, "mask/token-hidden", "mask/pad-visible", "cache/stale-entry"}
Mechanism = tuple[str, frozenset[tuple[str, str]], object]


def mechanism(explanation: Explanation) -> Mechanism:
    """The part of a cause that stays when ids are renamed: what is wrong, and where a wrong token comes from.

    The row, the round and the query are not part of it, nor whose answer was read in place of the right one. With other
    ids drafts are accepted in other places, and then the same fault shows elsewhere first.
    """
    sources = ((one.kind, one.source) for one in explanation.deviations)
    wrong = frozenset((kind, "" if source == LET_GO else source) for kind, source in sources)
    told = {"wrong-correction": "statement", "wrong-token-fed": "also"}.get(explanation.kind)
    source = str(explanation.facts.get(told)) if told else None
    return explanation.fingerprint, wrong, source and source.removesuffix("-of-another")


def alike(first: Mechanism, second: Mechanism) -> bool:
    """Return whether two mechanisms are one: the deviations of the first may be a part of those of the second, or the
    reverse.

    With other ids a draft that is seen by mistake may be an accepted one; then it is a token like the others. A mask of
    another row shows or hides what that row has, and with few slots it is told as the kind of one of them.
    """
    if _OF_ANOTHER in (first[0], second[0]) and {first[0], second[0]} <= _TOLD_AS:
        return True
    parts = first[1] <= second[1] or second[1] <= first[1]
    return (first[0], first[2]) == (second[0], second[2]) and parts and bool(first[1]) == bool(second[1])


def _pad_instead(variant: Explanation, explanation: Explanation) -> bool:
    """Return whether with other ids the wrong token is the pad id, and was not:
    so it is where tokens are as good as drawn.
    """
    pads = [one.given is not None and one.observed == one.given.pad_token_id for one in (variant, explanation)]
    return pads == [True, False]
