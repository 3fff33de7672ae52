"""Grammars of rows: automata over token ids, so that no text is needed; free of torch and of any engine.

A grammar is a tuple of edges ``(state, ids, next)``: in ``state`` each of these ids may be emitted, and leads to the
state ``next``. A row begins in state 0. An edge without ids says that the row may end in its state: then, and only
then, the row's EOS ids are allowed there, whatever edges name them. A token that is not allowed leads nowhere, as in
the matchers of engines: the state stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

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


def simpler(grammar: Grammar) -> Iterator[Grammar]:
    """Grammars with a state less, whose edges lead to the one before it, and with half of the ids of an edge."""
    for gone in sorted({state for state, *_ in grammar} - {0}, reverse=True):
        number = {state: state - (state >= gone) for state in range(1 + max(state for state, *_ in grammar))}
        yield tuple((number[state], ids, number[after]) for state, ids, after in grammar if state != gone)
    for at, (state, ids, after) in enumerate(grammar):
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]) if len(ids) > 1 else ():
            yield (*grammar[:at], (state, half, after), *grammar[at + 1 :])


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
