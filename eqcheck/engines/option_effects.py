"""Options that change scores, drawn so that they change a token of their row, and whether they did."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from eqcheck.contract.options import LISTS, SCORING, Edge, Grammar, choice, ended, stuck
from eqcheck.core.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.engines.checkpoints.continuations import Truth, row_with, with_options
from eqcheck.engines.checkpoints.row_judge import truth

# Grammars of rows of engines: how they are drawn, and the counters that they raise.

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


_SHARE, _ALWAYS = 0.2, 0.7  # of the cases, for each option; of the rows chosen in them
_ACROSS = 0.3  # of the rows with bad words
_TRIES = 4  # until one changes a token
_TRIES_AGAIN = 20  # of a case that is drawn for what the option does
COUNTERS = {
    "min_new_tokens": ("min_new_tokens",),
    "penalty": ("repetition_penalty", "presence_penalty"),
    "frequency_penalty": ("frequency_penalty",),
    **{name: (name,) for name in (*LISTS, "no_repeat_ngram_size")},
}
"""By counter, the options of which it counts that they changed a token."""


def _counted(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    return row_with(row, frequency_penalty=rng.choice((0.6, 1.3, 2.0, -0.4, -1.3)))


def _biased(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    """Less for a token that the row emits, and more for another one or two."""
    bias = {rng.randrange(VOCAB_SIZE): rng.choice((0.7, 2.0, 5.0)) for _ in range(rng.randint(0, 2))}
    bias[rng.choice(output)] = rng.choice((-1.5, -4.0, -100.0, 2.0))
    return row_with(row, logit_bias=tuple(sorted(bias.items())))


def _banned(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    """One to three words of one to three tokens that the row emits, and some that it begins, or its prompt does."""
    words = []
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(output))
        word = tuple(output[start : start + rng.randint(1, 3)])
        words.append(word if rng.random() < 0.8 else (*word, rng.randrange(VOCAB_SIZE)))
    if rng.random() < _ACROSS:
        words.append((row.prompt[-1], output[0]))  # the prompt is no new token, so this forbids nothing
    return row_with(row, bad_words=tuple(words))


def _allowed(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    """A few or most ids; enough, so that some are left whatever else is forbidden."""
    ids = {*rng.sample(range(VOCAB_SIZE), rng.choice((16, 64, 250))), *rng.sample(output, len(output) // 2)}
    return row_with(row, allowed_ids=tuple(sorted(ids - {rng.choice(output)})))


def _unrepeated(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    """Single tokens, pairs or triples; mostly fewer ids are allowed, so that these occur twice, and early."""
    if rng.random() < 0.6:
        return row_with(row, no_repeat_ngram_size=1)
    size = rng.choice((1, 2, 3))
    few = {*rng.sample(range(VOCAB_SIZE), rng.choice((5, 9)) if size > 1 else 96), *row.options.eos_token_ids}
    return row_with(row, no_repeat_ngram_size=size, allowed_ids=tuple(sorted(few)))


def _grammatical(rng: random.Random, row: EngineRow, output: Sequence[int]) -> EngineRow:
    return row_with(row, grammar=drawn_grammar(rng, row, output))


CHANGING: dict[str, Callable[[random.Random, EngineRow, Sequence[int]], EngineRow]] = {
    "frequency-penalty": _counted,
    "logit-bias": _biased,
    "bad-words": _banned,
    "allowed-ids": _allowed,
    "no-repeat-ngram-size": _unrepeated,
    "grammar": _grammatical,
}
"""Options that are drawn so that they change a token of their row, by what the row emits without them."""


def drawn(
    rng: random.Random,
    rows: Sequence[EngineRow],
    capabilities: Sequence[str],
    alone: Truth,
    most: int,
    turns: Collection[str] = (),
) -> list[EngineRow]:
    """The rows, at most so many of them with options that change a token of what they emit without.

    Which options is left to chance, but for those whose turn it is.
    """
    possible = [name for name in CHANGING if name in capabilities and name != "grammar"]
    names = [name for name in possible if rng.random() < _SHARE or name in turns]
    rows, few = list(rows), "no-repeat-ngram-size" in names and "allowed-ids" in capabilities and rng.random() < 0.5
    for number in rng.sample(range(len(rows)), min(len(rows), most)) if names else ():
        for name in names:
            if rng.random() < _ALWAYS:
                rows[number] = _until_changed(rng, rows[number], name, alone, few=few)
    return rows


def again(rng: random.Random, row: EngineRow, alone: Truth) -> EngineRow:
    """A row with another prompt, and its options of `CHANGING` drawn anew: of what it emits now."""
    for name in CHANGING:
        field = name.replace("-", "_")
        if name == "grammar":
            row = ruled(rng, row, alone, _TRIES_AGAIN) if row.options.grammar else row
        elif getattr(row.options, field) != SCORING[field]:
            off, few = row_with(row, **{field: SCORING[field]}), bool(row.options.allowed_ids)
            row = _until_changed(rng, off, name, alone, _TRIES_AGAIN, few)
    return row


def _until_changed(
    rng: random.Random, row: EngineRow, name: str, alone: Truth, most: int = _TRIES, few: bool = True
) -> EngineRow:
    """The row with the option; without it, where no try changes a token. ``few``: it may be allowed a few ids alone."""
    output, field = alone.row(row), name.replace("-", "_")
    for _ in range(most):
        asked = CHANGING[name](rng, row, output)
        joined = field != "allowed_ids" and asked.options.allowed_ids != row.options.allowed_ids
        without = alone.row(row_with(asked, **{field: SCORING[field]})) if joined else output
        if (few or not joined) and alone.row(asked) != without:
            return asked
    return row


def triggered(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> set[str]:
    """The counters of options that decided a token of the outputs."""
    chosen = [number for number, row in enumerate(case.rows) if row.options.changes_scores]
    alone = truth(case.checkpoint)
    scores = alone.together([case.rows[n] for n in chosen], [outputs[n] for n in chosen]) if chosen else []
    counters = set[str]()
    for number, plain in zip(chosen, scores, strict=True):
        row, output = case.rows[number], outputs[number]
        with_all = with_options(plain, row, output)[:-1].argmax(-1).tolist()
        for counter, names in COUNTERS.items():
            off = row_with(row, **{name: SCORING[name] for name in names})
            if off != row and with_options(plain, off, output)[:-1].argmax(-1).tolist() != with_all:
                counters.add(counter)
    return counters
