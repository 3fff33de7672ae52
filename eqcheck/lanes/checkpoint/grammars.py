"""Grammars of rows of engines: how they are drawn, and the counters that they raise."""

from __future__ import annotations

import random
from collections.abc import Sequence

from eqcheck.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.checkpoints.truth import Truth, row_with
from eqcheck.contract.grammars import Edge, Grammar, choice, ended, stuck

_ROWS = 4  # more cost time: what rows emit must be known
_MOST = 0.7  # of the rows chosen, so that some stand beside one with a grammar and have none
_TRIES_OF_GRAMMAR = 8  # until a grammar changes a token, and the target prefers one at each place


def with_grammars(rng: random.Random, case: EngineCase, alone: Truth) -> EngineCase:
    """The case with grammars of some rows; no more than it has where none that is tried changes a token."""
    rows = list(case.rows)
    for number in rng.sample(range(len(rows)), min(len(rows), _ROWS)):
        if rng.random() < _MOST and not rows[number].options.no_repeat_ngram_size:  # together they may allow nothing
            rows[number] = ruled(rng, rows[number], alone)
    return case.with_options(row.options for row in rows)


def ruled(rng: random.Random, row: EngineRow, alone: Truth, tries: int = _TRIES_OF_GRAMMAR) -> EngineRow:
    """The row with a grammar that changes a token of it, and leaves the target one best token at each place.

    Of a row that has one, about every second time the grammar stays if it is such a one: one that was made small may
    fit more than one mistake.
    """
    plain = row_with(row, grammar=())
    output = alone.row(plain)
    drawn = (row_with(row, grammar=drawn_grammar(rng, row, output)) for _ in range(tries))
    for one in (row, *drawn) if row.options.grammar and rng.random() < 0.5 else drawn:
        goes_on = not stuck(one.options.grammar, one.options.eos_token_ids)
        if goes_on and alone.row(one) != output and alone.decides(one):
            return one
    return plain


def drawn_grammar(rng: random.Random, row: EngineRow, output: Sequence[int]) -> Grammar:
    """A choice among sequences, fields between words that are given, or states with branches."""
    return rng.choice((_choice, _fields, _branches))(rng, row, output)


def _choice(rng: random.Random, row: EngineRow, output: Sequence[int]) -> Grammar:
    """Two to five sequences that share beginnings; of some the row would emit the first tokens anyway."""
    eos, size = row.options.eos_token_ids, rng.randint(2, 8)
    free = [token for token in range(VOCAB_SIZE) if token not in eos]
    first = [*(output[:size] if rng.random() < 0.5 else ()), *rng.choices(free, k=size)][:size]
    sequences = [[token if token not in eos else free[0] for token in first]]
    for _ in range(rng.randint(1, 4)):
        begun = rng.choice(sequences)
        fork = rng.randrange(len(begun))
        sequences.append([*begun[:fork], *rng.choices(free, k=max(1, size - fork))])
    return choice([tuple(one) for one in sequences], ends=bool(eos) and rng.random() < 0.7)


def _fields(rng: random.Random, row: EngineRow, output: Sequence[int]) -> Grammar:
    """A cycle of places: one in three has one token, others many, so that the row's own are often among them."""
    count = rng.randint(2, 6)
    edges = list[Edge]()
    for state in range(count):
        ids = rng.sample(range(VOCAB_SIZE), 1 if rng.random() < 1 / 3 else rng.choice((8, 64, 200)))
        edges.append((state, tuple(sorted(ids)), (state + 1) % count))
    return _ending(rng, row, edges, [rng.randrange(count)])


def _branches(rng: random.Random, row: EngineRow, output: Sequence[int]) -> Grammar:
    """Two to four states, each with up to three sets of ids that lead to states: each token decides where a row is."""
    count, edges = rng.randint(2, 4), list[Edge]()
    for state in range(count):
        ids = {*rng.sample(range(VOCAB_SIZE), rng.choice((24, 96, 160, 230))), *rng.sample(output, len(output) // 2)}
        sets: list[list[int]] = [[] for _ in range(rng.randint(1, 3))]
        for token in ids:
            rng.choice(sets).append(token)
        edges += [(state, tuple(sorted(each)), rng.randrange(count)) for each in sets if each]
    return _ending(rng, row, edges, rng.sample(range(count), rng.randint(0, count)))


def _ending(rng: random.Random, row: EngineRow, edges: Sequence[Edge], states: Sequence[int]) -> Grammar:
    """The edges, and those of states in which the row may end, if it has EOS ids."""
    ends = [(state, (), state) for state in states] if row.options.eos_token_ids else []
    return tuple(sorted([*edges, *ends], key=lambda edge: edge[0]))


def grammars_seen(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> dict[str, bool]:
    """The counters of grammars, but for the one that says that a grammar changed a token."""
    options = [row.options for row in case.rows]
    given = [bool(each.grammar) for each in options]
    return {
        "grammar_beside_none": any(given) and not all(given),
        "grammar_ended": any(
            each.grammar and each.ended(row) and ended(each.grammar, row[:-1], each.eos_token_ids)
            for each, row in zip(options, outputs, strict=True)
        ),
    }
