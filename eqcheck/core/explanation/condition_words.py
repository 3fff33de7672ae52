"""The conditions of a cause as data, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Value = int | str
Way = Literal["from", "to", "among"]


@dataclass(frozen=True)
class Side:
    """Values of a trait, and how many of the cases on them fail."""

    values: tuple[Value, ...]
    failed: int
    of: int


@dataclass(frozen=True)
class Restriction:
    """All failing cases are on the ``hit`` values of a trait; the ``spared`` ones have not escaped by chance.

    ``way``: the hit values are all those from ``bound`` on, or up to it, or are ``among`` others without an order. The
    ``unsure`` values may have escaped by chance. ``edge`` is the spared value that is next to the bound.
    """

    trait: str
    way: Way
    hit: Side
    spared: tuple[Side, ...]
    unsure: tuple[Side, ...] = ()
    bound: int = 0
    edge: int = 0


_HOLDS = {
    "ragged_prompts": "prompts have different lengths",
    "equal_prompts": "two prompts are equal",
    "prompt_begins_another": "a prompt is the beginning of another",
    "zero_in_prompt": "a prompt contains the id 0",
    "zero_emitted": "the id 0 is an expected token",
    "last_id_in_prompt": "a prompt contains the last id of the vocabulary",
    "last_id_emitted": "the last id of the vocabulary is an expected token",
    "pad_in_prompt": "a prompt contains the pad id",
    "pad_emitted": "the pad id is an expected token",
    "pad_is_eos": "the pad id is an EOS",
    "eos_in_prompt": "a prompt contains an EOS",
    "eos_first": "the first new token of a row is an EOS",
    "eos_absent": "a row ends without an EOS",
    "ended_by_eos": "a row ends with an EOS",
    "goes_on_after_rejection": "a row goes on after a rejected draft token",
    "stops": "rows have stop sequences",
    "stopped": "a row ends with a stop sequence",
    "stop_in_prompt": "a prompt contains a stop sequence",
    "to_cancel": "a row is to be cancelled",
    "logprobs": "log-probabilities are requested",
    "different_trees": "rows have different trees",
}
"""Traits that hold or do not, as clauses."""


ENDS = {
    "last-token": "only the last token of the row is missing, an EOS or not",
    "own-eos": "only the row's own EOS is missing",
    "prompt-eos": "the prompt contains an EOS",
    "another-row": "another row ends in the same round",
    "limit": "the row is equally short of max_new_tokens",
}
"""By what ends a row too early, what is seen in such cases."""


def ended_by(ends: Sequence[tuple[str, int]], others: int, failing: int) -> str:
    """Say what is seen in cases with rows that end too early; in the ``others`` of the ``failing`` ones nothing is.

    >>> ended_by([("own-eos", 12)], 0, 12)
    "in all 12 failing cases only the row's own EOS is missing"
    >>> ended_by([("own-eos", 12), ("prompt-eos", 7)], 2, 21)
    "in 12 of 21 failing cases only the row's own EOS is missing; in 7 others the prompt contains an EOS; in 2 others \
nothing of that kind is seen"
    """
    (first, count), *more = ends
    if count == failing:
        return f"in all {failing} failing cases {ENDS[first]}"
    words = [f"in {count} of {failing} failing cases {ENDS[first]}", *(f"in {n} others {ENDS[end]}" for end, n in more)]
    if others and more:
        words.append(f"in {others} {'others' if others > 1 else 'other'} nothing of that kind is seen")
    return "; ".join(words)


_NUMBERS = {
    "rows": ("{} row{s}", "{} row{s}"),
    "num_draft_tokens": ("K of {}", "K of {}"),
    "max_new_tokens": ("max_new_tokens of {}", "max_new_tokens of {}"),
    "eos_ids": ("{} EOS ids", "{} EOS ids"),
    "longest_prompt": ("a prompt of {} token{s}", "prompts of {} token{s}"),
    "shortest_prompt": ("prompts of {} token{s}", "a prompt of {} token{s}"),
    "longest_row": ("a row of {} token{s} in all", "rows of {} token{s} in all"),
    "new_tokens": ("a row of {} new token{s}", "rows of {} new token{s}"),
    "rounds": ("a row of {} round{s}", "rows of {} round{s}"),
}
"""Traits that are numbers: from one on, and up to one. The longest of several is long where one of them is."""


def in_words(condition: Restriction) -> str:
    """A condition as a clause.

    >>> few, most = Side((1, 2), 0, 30), Side((3, 4), 22, 30)
    >>> in_words(Restriction("num_draft_tokens", "from", most, (few,), bound=3, edge=2))
    'only with K of 3 or more (22 of 30 cases), never with K of 1 or 2 (0 of 30)'
    >>> in_words(Restriction("new_tokens", "from", Side((9,), 56, 60), (Side((7,), 0, 9),), (Side((8,), 0, 1),), 9, 7))
    'only with a row of 9 or more new tokens (56 of 60 cases), never with rows of at most 7 new tokens (0 of 9), \
with 8 0 of 1, which may be chance'
    """
    own, trait, up = condition.hit, condition.trait, condition.way == "from"
    cases = f"({own.failed} of {own.of} cases)"
    if trait in _HOLDS:
        holds, (other,) = _HOLDS[trait], condition.spared
        if other.values == (0,):
            return f"only where {holds} {cases}, never elsewhere (0 of {other.of})"
        return f"never where {holds} (0 of {other.of} cases), elsewhere {own.failed} of {own.of}"
    if condition.way == "among":
        hit = _named(trait, *condition.hit.values)
        spared = [(_named(trait, *side.values), side.of) for side in condition.spared]
        unsure = [(_named(trait, *side.values), side.of) for side in condition.unsure]
    else:
        hit, beyond = _bounded(trait, condition.bound, up), _bounded(trait, condition.edge, not up)
        spared = [(beyond, side.of) for side in condition.spared]
        low, high = sorted((condition.bound, condition.edge))
        unsure = [(_range(low + 1, high - 1), side.of) for side in condition.unsure]
    never = [f"never with {name} (0 of {of})" for name, of in spared]
    chance = [f"with {name} 0 of {of}, which may be chance" for name, of in unsure]
    return ", ".join([f"only with {hit} {cases}", *never, *chance])


def _named(trait: str, *values: Value) -> str:
    """Values without an order."""
    text = " or ".join(map(str, values))
    name = {"family": "family", "cache_state": "cache state"}.get(trait)
    return f"{name} {text}" if name else f"{text} padding"


_FEW_EOS = {(0, False): "no EOS id", (1, True): "an EOS id", (1, False): "at most 1 EOS id"}


def _bounded(trait: str, bound: int, up: bool) -> str:
    """The numbers from a bound on, or up to it."""
    if trait == "eos_ids" and (words := _FEW_EOS.get((bound, up))):
        return words
    least = 0 if trait == "eos_ids" else 1
    amount = f"{bound} or more" if up else _range(least, bound) if bound < least + 2 else f"at most {bound}"
    return _NUMBERS[trait][0 if up else 1].format(amount, s="" if amount == "1" else "s")


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} or {high}" if high == low + 1 else f"{low} to {high}"
