"""The options of a row, the promises of a decoder that samples, and the checks of both.

A decoder declares the options that it takes by `eqcheck.contract.decoders.CAPABILITIES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from sys import float_info
from typing import Annotated, Any, ClassVar

from eqcheck.contract.endings import RowEnd, ended_by, row_end
from eqcheck.contract.errors import UsageError, did_you_mean
from eqcheck.contract.fields import Meta, check

# Grammars of rows: automata over token ids, so that no text is needed; free of torch and of any engine.
#
# A grammar is a tuple of edges ``(state, ids, next)``: in ``state`` each of these ids may be emitted, and leads to
# the state ``next``. A row begins in state 0. An edge without ids says that the row may end in its state: then, and
# only then, the row's EOS ids are allowed there, whatever edges name them. A token that is not allowed leads nowhere,
# as in the matchers of engines: the state stays.

Edge = tuple[int, tuple[int, ...], int]
Grammar = tuple[Edge, ...]
States = dict[int, dict[int, int]]
"""By state, the ids that are allowed in it, each with the state to which it leads."""


def complaints(grammar: Grammar) -> Iterator[str]:
    """Yield why edges are no grammar, a line each."""
    if grammar and grammar[0][0] != 0:
        yield f"grammar: expected an edge of state 0 first, got state {grammar[0][0]}"
    begun = {state for state, *_ in grammar}
    for state, _, after in grammar:
        if after not in begun:
            yield f"grammar: expected a state with an edge behind state {state}, got {after}"
    for state in begun:
        named = [token for one, ids, _ in grammar if one == state for token in ids]
        if len(named) > len({*named}):
            yield f"grammar: expected each id once in state {state}, got {max(named, key=named.count)} again"


@lru_cache(maxsize=1024)
def states_of(grammar: Grammar, eos: tuple[int, ...] = ()) -> States:
    """The states of a grammar for a row with these EOS ids.

    >>> states_of(((0, (4, 5), 1), (1, (6,), 0), (1, (), 1)), eos=(9,))
    {0: {4: 1, 5: 1}, 1: {6: 0, 9: 1}}
    """
    states: States = {}
    for state, ids, after in grammar:
        leads = dict.fromkeys(ids, after) if ids else dict.fromkeys(eos, state)
        states.setdefault(state, {}).update({token: to for token, to in leads.items() if not ids or token not in eos})
    return states


def reached(states: States, tokens: Sequence[int]) -> int:
    """The state after these new tokens."""
    state = 0
    for token in tokens:
        state = states[state].get(token, state)
    return state


def stuck(grammar: Grammar, eos: tuple[int, ...]) -> bool:
    """Return whether there is a state in which nothing is allowed: a row that comes there can neither go on nor end."""
    return not all(states_of(grammar, eos).values())


def ended(grammar: Grammar, tokens: Sequence[int], eos: tuple[int, ...]) -> bool:
    """Return whether after these new tokens nothing but an EOS is allowed."""
    states = states_of(grammar, eos)
    return bool(states) and {*states[reached(states, tokens)]} <= {*eos}


def choice(sequences: Collection[Sequence[int]], ends: bool) -> Grammar:
    """The grammar of a row that is one of these sequences, or a chain of them if it does not end behind the first.

    Sequences may share beginnings; of one that begins another the longer one is meant.

    >>> choice([(4, 5), (4, 6)], ends=True)
    ((0, (4,), 1), (1, (5,), 2), (1, (6,), 2), (2, (), 2))
    """
    inside = sorted({tuple(one[:size]) for one in sequences for size in range(len(one))})
    numbers = {begun: number for number, begun in enumerate(inside)}
    end = len(numbers) if ends else 0
    steps = sorted({(numbers[tuple(one[:at])], tuple(one[: at + 1])) for one in sequences for at in range(len(one))})
    edges = tuple((state, (begun[-1],), numbers.get(begun, end)) for state, begun in steps)
    return (*edges, (end, (), end)) if ends else edges


def shifted(grammar: Grammar, step: int, vocabulary: int) -> Grammar:
    """The grammar with ids so much higher."""
    return tuple((state, tuple((token + step) % vocabulary for token in ids), after) for state, ids, after in grammar)


def rules(row: Any, by_text: bool = False) -> str:
    """The grammar of a row as rules of texts, where the text of id 17 is ``[17]``, as xgrammar and llama.cpp read them.

    Where the row may end the rules end, so that engines allow its EOS ids; ``by_text`` they have the texts of these.

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(eos_token_ids=(9,), grammar=((0, (4, 5), 1), (1, (6, 9), 0), (1, (), 1)))
    >>> print(rules(row))
    root ::= s0
    s0 ::= ("[4]" | "[5]") s1
    s1 ::= ("[6]") s0 | ""
    >>> print(rules(row, by_text=True).splitlines()[-1])
    s1 ::= ("[6]") s0 | ("[9]") s1
    """
    alternatives: dict[int, list[str]] = {}
    for state, ids, after in row.grammar:
        named = [token for token in ids if token not in row.eos_token_ids] if ids else row.eos_token_ids
        texts = " | ".join(f'"[{token}]"' for token in named)
        said = f"({texts}) s{after if ids else state}" if ids or by_text else '""'
        alternatives.setdefault(state, []).extend([said] if texts else [])
    return "\n".join(["root ::= s0", *(f"s{state} ::= {' | '.join(each)}" for state, each in alternatives.items())])


def spelled_rules(row: Any, before: str = "") -> str:
    """The same rules a letter at a time, with ``before`` each text: no two alternatives begin alike.

    Of alternatives that begin alike, some versions of xgrammar allow others as well
    (https://github.com/mlc-ai/xgrammar/issues/618).

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(eos_token_ids=(9,), grammar=((0, (14, 15), 1), (1, (6, 9), 0), (1, (), 1)))
    >>> print(spelled_rules(row))
    root ::= s0
    s0 ::= "[" ("1" ("4" ("]" s1) | "5" ("]" s1)))
    s1 ::= "[" ("6" ("]" s0) | "9" ("]" s1)) | ""
    """

    def spelled(texts: dict[str, int]) -> str:
        begun: dict[str, dict[str, int]] = {}
        for text, after in texts.items():
            begun.setdefault(text[0], {})[text[1:]] = after
        alike = [(letter, f"s{rest['']}" if "" in rest else f"({spelled(rest)})") for letter, rest in begun.items()]
        return " | ".join(f'"{letter}" {rest}' for letter, rest in alike)

    states: dict[int, dict[str, int]] = {}
    for state, ids, after in row.grammar:
        named = [token for token in ids if token not in row.eos_token_ids] if ids else row.eos_token_ids
        leads = dict.fromkeys((f"{before}[{token}]" for token in named), after if ids else state)
        states.setdefault(state, {}).update(leads)
    # An EOS of the row is a stop token of the matcher: it is allowed for sure where it is text and the rules may end.
    ends = {state for state, ids, _ in row.grammar if not ids and row.eos_token_ids}
    rules = [f"s{state} ::= {spelled(texts)}" + ' | ""' * (state in ends) for state, texts in states.items()]
    return "\n".join(["root ::= s0", *rules])


ORDER = ("temperature", "top-k", "top-p", "min-p")
"""In which options are applied, as in transformers; vLLM cuts by min-p before top-k. Penalties come before all."""

SEEDS = {
    "none": "no promise",
    "repeatable": "the same request with the same seeds returns the same tokens",
    "mates": "also with other rows in the batch, in another order, or alone",
    "speculation": "also with another draft, another number of draft tokens, or none",
}
"""Promises for rows with a seed; each includes those before it."""


PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Options that change the scores of earlier tokens, with the values that turn them off."""

LISTS = ("logit_bias", "bad_words", "allowed_ids", "grammar")
"""Options that change the scores of the tokens they list; an empty list turns them off."""

SCORING: dict[str, Any] = {"min_new_tokens": 0, "no_repeat_ngram_size": 0, **PENALTIES, **dict.fromkeys(LISTS, ())}
"""All options that change scores, also in greedy rows, with the values that turn them off."""


_TOKENS = {"is": "a list of token ids"}
_STOPS = {"is": "a list of lists of token ids"}
_BIAS = {"is": "finite numbers by token id"}
_EDGES = {"is": "edges: a state, a list of token ids, and the next state"}
_State = Annotated[int, Meta(ge=0, le=4095)]
_ABOVE_0 = {"is": "a number above 0"}
_FINITE = {"is": "a finite number"}
_WARM = {"is": "0 (greedy) or a number from 1e-6 to 1e6"}
_RANK = {"is": "a whole number from 0 (no cut) to 2**31 - 1"}
_SHARE = {"is": "a number above 0 and at most 1 (no cut)"}
_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max, extra=_FINITE)]
_SEED = {"is": "a whole number from 0 to 2**64 - 1, or None"}


def _bounds(options: RowOptions) -> Iterator[str]:
    for name in ("stop_sequences", "bad_words"):
        if not all(getattr(options, name)):
            yield f"{name}: expected at least one token id in each, got none"
    yield from complaints(options.grammar)
    if 0 < options.temperature < 1e-6:
        yield f"temperature: expected {_WARM['is']}, got {options.temperature!r}"
    if options.seed is not None and not 0 <= options.seed < 2**64:  # more than a bound of msgspec can say
        yield f"seed: expected {_SEED['is']}, got {options.seed!r}"


# A new option is a field here. With it go: a line of `SCORING` if it changes scores; its capability in `CAPABILITIES`
# of `eqcheck.contract.decoders`; its meaning in `eqcheck.core.law`; its draw in `eqcheck.engines.drawing`, or in
# `eqcheck.engines.option_effects` where it needs a case made for it; its counter in `COUNTERS` there, with words in
# `eqcheck.audit.coverage_words` and a place in `PAIRED` of `eqcheck.core.result.tally`; `omitted` below, if its default
# is not written; its default in scripts, in `row` of `eqcheck.engines.checkpoints.builder`; and for the tests a right
# engine that takes it, in `tests/tools/option_right.py`. An option that misses one of these is never drawn, or never
# judged; `make test-all` says which.


@dataclass(frozen=True)
class RowOptions:
    """Hold the options of one row; `Request.rows` has one per prompt if the decoder declares any of `CAPABILITIES`.

    - ``max_new_tokens``, ``eos_token_ids``: the row's limit and EOS ids. The EOS is returned; it is masked before
      ``min_new_tokens``.
    - ``stop_sequences``: the row ends as soon as its new tokens end with one, which is returned. The prompt is not
      part of a match.
    - ``arrival``: the request arrives after this many engine steps.
    - ``logprobs``, ``prompt_logprobs``: return the log-probabilities of the new tokens, of the prompt tokens.
    - ``cancel_after``: the caller cancels after this many new tokens; the row may end there or somewhat later.
    - ``n``: the request has this many outputs; each is a row of its own, next to the others.
    - ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias`` (numbers by token, kept as
      pairs), ``bad_words``, ``no_repeat_ngram_size``, ``allowed_ids`` (empty: all) change scores as in
      `eqcheck.core.law.penalised`. ``grammar`` is a list of edges (`eqcheck.contract.options`); tokens that it does
      not allow after the row's new tokens are masked.
    - ``temperature``: 0.0 is greedy. Above, scores are divided by it, then cut to the ``top_k`` highest (0: off), to
      the most likely ones that reach ``top_p`` (1.0: off), and to those of at least ``min_p`` times the highest
      probability (0.0: off); see `eqcheck.core.law`. ``seed`` is below ``2**64``.

    Raises `UsageError` for a value out of range.

    >>> RowOptions(4, temperature=0.7, top_p=1.5)
    Traceback (most recent call last):
    eqcheck.contract.errors.UsageError: top_p: expected a number above 0 and at most 1 (no cut), got 1.5
    """

    # Fields that came later: cases whose rows have none of them keep their ids.
    omitted: ClassVar[tuple[str, ...]] = ("stop_sequences", "frequency_penalty", *LISTS, "logprobs", "cancel_after",
                                          "prompt_logprobs", "no_repeat_ngram_size", "n")  # fmt: skip
    max_new_tokens: int
    eos_token_ids: Annotated[tuple[int, ...], Meta(extra=_TOKENS)] = ()
    min_new_tokens: Annotated[int, Meta(ge=0, extra={"is": "a whole number from 0"})] = 0
    repetition_penalty: Annotated[float, Meta(ge=float_info.min, le=float_info.max, extra=_ABOVE_0)] = 1.0
    presence_penalty: _Finite = 0.0
    arrival: int = 0
    temperature: Annotated[float, Meta(ge=0, le=1e6, extra=_WARM)] = 0.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1, extra=_RANK)] = 0
    top_p: Annotated[float, Meta(ge=float_info.min, le=1, extra=_SHARE)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1, extra={"is": "a number from 0 (no cut) to 1"})] = 0.0
    seed: Annotated[int | None, Meta(extra=_SEED)] = None
    stop_sequences: Annotated[tuple[tuple[int, ...], ...], Meta(extra=_STOPS)] = ()
    frequency_penalty: _Finite = 0.0
    logit_bias: Annotated[tuple[tuple[int, _Finite], ...], Meta(extra=_BIAS)] = ()
    bad_words: Annotated[tuple[tuple[int, ...], ...], Meta(extra=_STOPS)] = ()
    allowed_ids: Annotated[tuple[int, ...], Meta(extra=_TOKENS)] = ()
    logprobs: bool = False
    cancel_after: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    prompt_logprobs: bool = False
    grammar: Annotated[tuple[tuple[_State, tuple[int, ...], _State], ...], Meta(extra=_EDGES)] = ()
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=2**31 - 1, extra={"is": "a whole number from 0 (off)"})] = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        check(self, (_bounds,), UsageError)

    @cached_property
    def changes_scores(self) -> bool:
        """Return whether an option changes scores before a token is chosen."""
        own = any(getattr(self, name) != off for name, off in SCORING.items() if name != "min_new_tokens")
        return own or bool(self.min_new_tokens and self.eos_token_ids)

    def ruled(self, tokens: Sequence[int], start: int, count: int) -> Iterator[list[int]]:
        """Yield the tokens that the grammar allows after ``start`` new tokens, then after one more: ``count`` lists.

        >>> list(RowOptions(4, (9,), grammar=((0, (5,), 1), (1, (6,), 0), (1, (), 1))).ruled((5, 6), 0, 3))
        [[5], [6, 9], [5]]
        """
        states = states_of(self.grammar, self.eos_token_ids)
        state = reached(states, tokens[:start])
        for number in range(start, start + count):
            yield [*states[state]]
            state = states[state].get(tokens[number], state) if number < len(tokens) else state

    def stops_of(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the stop sequences that the new tokens end with."""
        return [stop for stop in self.stop_sequences if tuple(tokens[-len(stop) :]) == stop]

    def stop_within(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the first stop sequence that occurs in the new tokens; empty if none does."""
        ends = range(1, len(tokens) + 1)
        return next((stop for end in ends for stop in self.stops_of(tokens[:end])), ())

    def until(self, right: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the part of a correct row that is due if ``count`` tokens came back: a cancelled row may end early.

        >>> RowOptions(4, cancel_after=2).until((5, 6, 7, 8), 3), RowOptions(4).until((5, 6, 7, 8), 3)
        ((5, 6, 7), (5, 6, 7, 8))
        """
        return tuple(right[: len(right) if self.cancel_after is None else max(self.cancel_after, count)])

    def ended(self, tokens: Sequence[int]) -> bool:
        """Return whether the new tokens end with an EOS or a stop sequence."""
        return ended_by(tokens, self.eos_token_ids, self.stop_sequences) != "limit"

    def cut(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Cut new tokens after the first EOS or stop sequence.

        >>> RowOptions(4, (9,), stop_sequences=((2, 3), (5,))).cut((3, 2, 3, 9))
        (3, 2, 3)
        """
        return tuple(tokens[: row_end(tokens, len(tokens), self.eos_token_ids, self.stop_sequences).due])

    def end(self, tokens: Sequence[int]) -> RowEnd:
        """Return where a row with these new tokens had to end; a cancelled row may end early.

        >>> row = RowOptions(3, eos_token_ids=(9,))
        >>> [(end.kind, end.first) for end in map(row.end, ((1, 9, 2), (1, 2), (1, 2, 3)))]
        [('past-eos', 2), ('premature-stop', 2), ('', 3)]
        """
        end = row_end(tokens, self.max_new_tokens, self.eos_token_ids, self.stop_sequences)
        if end.early and self.cancel_after:
            return end._replace(due=max(len(tokens), min(end.due, self.cancel_after)))
        return end


def cancelled(options: Sequence[RowOptions], rows: Sequence[Sequence[int]]) -> dict[str, bool]:
    """Return whether rows were to be cancelled, and whether one was before its end, by counter name."""
    ends = [
        len(row) < asked.max_new_tokens and not asked.ended(row)
        for asked, row in zip(options, rows, strict=False)
        if asked.cancel_after is not None
    ]
    return {"to_cancel": bool(ends), "cancelled": any(ends)}


def sampling_of(options: RowOptions) -> str:
    """Describe how a row is sampled.

    >>> sampling_of(RowOptions(4, temperature=0.7, top_k=3))
    'temperature 0.7, top-k 3'
    """
    cuts = {"top-k": options.top_k or None, "top-p": options.top_p if options.top_p < 1 else None}
    cuts |= {"min-p": options.min_p or None}
    said = {"temperature": options.temperature, **{name: value for name, value in cuts.items() if value is not None}}
    return ", ".join(f"{name} {value:g}" for name, value in said.items())


def asked_of(options: RowOptions) -> str:
    """Describe how a row is sampled, with its seed; ``greedy`` if it is not.

    >>> asked_of(RowOptions(4)), asked_of(RowOptions(4, temperature=0.7, seed=5))
    ('greedy', 'temperature 0.7, seed 5')
    """
    seed = "" if options.seed is None else f", seed {options.seed}"
    return f"{sampling_of(options)}{seed}" if options.temperature else "greedy"


_SHOWN = 6  # entries of a list


def options_of(options: RowOptions) -> str:
    """Describe the options that change a row's scores or end it; long lists are shortened.

    >>> options_of(RowOptions(4, min_new_tokens=2, logit_bias={7: -1.5}, stop_sequences=((3, 9),)))
    'min_new_tokens 2, logit_bias 7: -1.5, stop_sequences [3 9]'
    """
    said = []
    for name in (*SCORING, "stop_sequences"):
        value = getattr(options, name)
        if name in ("bad_words", "stop_sequences"):
            entries = [f"[{' '.join(map(str, word))}]" for word in value]
        elif name == "grammar":
            entries = [f"{state}: {' '.join(map(str, ids)) or 'end'} to {after}" for state, ids, after in value]
        elif isinstance(value, tuple):
            entries = [f"{entry[0]}: {entry[1]:g}" if isinstance(entry, tuple) else str(entry) for entry in value]
        else:
            entries = [] if value == SCORING[name] else [f"{value:g}"]
        if entries:
            more = f", and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
            said.append(f"{name} {' / '.join(entries[:_SHOWN])}{more}")
    return ", ".join(said)


def check_claims(capabilities: Sequence[str], seeds: str, lossless: Any, option_order: Any) -> None:
    """`UsageError` for what a decoder may not say of its sampling."""
    if not isinstance(seeds, str) or seeds not in SEEDS:
        raise UsageError(f"seeds: expected one of {tuple(SEEDS)}, got {seeds!r}{did_you_mean(str(seeds), SEEDS)}")
    if seeds != "none" and "seeds" not in capabilities:
        raise UsageError(f"seeds: {seeds!r} is promised, but the decoder takes none; add 'seeds' to its capabilities")
    cuts = [name for name in (*ORDER[1:], "seeds") if name in capabilities]
    if cuts and "temperature" not in capabilities:
        raise UsageError(f"capabilities: {cuts[0]!r} means nothing without 'temperature': rows would all be greedy")
    if lossless is not True and not (isinstance(lossless, str) and lossless.strip()):
        raise UsageError(f"lossless: expected True or the reason why it is not, got {lossless!r}")
    if not isinstance(option_order, list | tuple) or sorted(map(str, option_order)) != sorted(ORDER):
        raise UsageError(f"option_order: expected {ORDER} in some order, got {option_order!r}")
