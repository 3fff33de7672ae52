"""The conditions of a cause: on which side of a trait all its failing cases lie, and could not lie by chance.

A trait is what is known of a case before any decoder has seen it: how long its rows are, K, how many EOS ids there are,
whether the id 0 is emitted. Of a number the failing cases may lie from some value on, or up to one.

**Chance.** A condition that is named holds in all failing cases, those that were made small as well. Four ways in which
a fault without any condition may strike are held against it, and it has to beat each: all cases are hit alike, all new
tokens are, all tokens of prompts and outputs are, all rounds of rows are. The last three keep long rows from being a
condition just because they have more tokens and rounds that can go wrong. Each way to divide each trait might have been
named: a trait gets an equal share of `BY_CHANCE`, and each of its divisions an equal share of that.

**Where it begins.** The values next to a bound may have been spared by chance although those far from it were not.
They are told apart, since the fault may begin at any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log1p

from eqcheck.core.explanation.condition_words import Restriction, Side, Value, Way
from eqcheck.core.result.tally import Placed, log_comb

BY_CHANCE = 0.001
"""The probability at most that any condition is named of a cause that has none."""
_MOST = 3  # conditions that are told of a cause

NAMES = ("family", "padding_side", "cache_state")
NUMBERS = (
    *("rows", "num_draft_tokens", "max_new_tokens", "eos_ids"),
    *("longest_prompt", "shortest_prompt", "longest_row", "new_tokens", "rounds"),
)
FLAGS = (
    *("ragged_prompts", "equal_prompts", "prompt_begins_another"),
    *("zero_in_prompt", "zero_emitted", "last_id_in_prompt", "last_id_emitted"),
    *("pad_in_prompt", "pad_emitted", "pad_is_eos", "eos_in_prompt", "eos_first", "eos_absent", "ended_by_eos"),
    "goes_on_after_rejection",
    *("stops", "stopped", "stop_in_prompt", "to_cancel", "logprobs", "different_trees"),
)
_STRUCK = ("all_new_tokens", "all_tokens", "all_rounds")  # what a fault without a condition may strike in a case
TRAITS = (*NAMES, *NUMBERS, *FLAGS, *_STRUCK)
"""The traits, in the order of the values that `eqcheck.core.result.tally.Placed` has of a case."""


def conditions(failing: Sequence[Placed], right: Sequence[Placed], smallest: Sequence[Value] = ()) -> list[Restriction]:
    """Return the conditions of a cause, the surest first: each says more than those before it.

    ``smallest`` are the traits of the smallest failing case, which was made and not drawn; empty if it is not known.
    """
    every = _Cases([one.traits for one in failing], [one.traits for one in right])
    small = dict(zip(TRAITS, smallest, strict=False))
    left, restrictions = every, list[Restriction]()
    while left.failing and left.right and len(restrictions) < _MOST:
        varied = [trait for trait in (*NAMES, *NUMBERS, *FLAGS) if len(left.values(trait)) > 1]
        candidates = list[tuple[float, _Division]]()
        for trait in varied:
            level = BY_CHANCE / len(varied) / _ways(left, trait)
            for division in _divisions(left, trait, small.get(trait)):
                if (chance := left.chance(trait, division.spared)) < level:
                    candidates.append((chance, division))
        if not candidates:
            break
        best = min(candidates, key=lambda candidate: candidate[0])[1]
        restrictions.append(_condition(best, left, every))
        left = left.where(best.trait, lambda value, best=best: not best.spared(value))  # type: ignore[misc]
    return restrictions


@dataclass(frozen=True)
class _Division:
    """A way to divide a trait so that no failing case is on one side: values beyond a bound, or those of a set."""

    trait: str
    way: Way
    bound: int = 0
    free: frozenset[Value] = frozenset()

    def spared(self, value: Value) -> bool:
        if self.way == "among":
            return value in self.free
        return int(value) < self.bound if self.way == "from" else int(value) > self.bound


class _Cases:
    """Failing and right cases, by their traits."""

    def __init__(self, failing: list[tuple[Value, ...]], right: list[tuple[Value, ...]]) -> None:
        self.failing, self.right = failing, right

    def values(self, trait: str, failing_only: bool = False) -> Counter[Value]:
        at = TRAITS.index(trait)
        return Counter(one[at] for one in (self.failing if failing_only else [*self.failing, *self.right]))

    def where(self, trait: str, holds: Callable[[Value], bool]) -> _Cases:
        at = TRAITS.index(trait)
        return _Cases(*([one for one in side if holds(one[at])] for side in (self.failing, self.right)))

    def side(self, trait: str, holds: Callable[[Value], bool]) -> Side:
        counts = {value: count for value, count in self.values(trait).items() if holds(value)}
        failed = sum(count for value, count in self.values(trait, failing_only=True).items() if holds(value))
        return Side(_ordered(counts), failed, sum(counts.values()))

    def chance(self, trait: str, spared: Callable[[Value], bool]) -> float:
        """Return how likely no case on these values fails where nothing spares them: by the way that most likely does.

        The failing cases are as if drawn one after the other, each with the chance that its weight gives it. Where all
        weigh alike, that is the end of a hypergeometric distribution.
        """
        at = TRAITS.index(trait)
        free = [one for one in self.right if spared(one[at])]
        failed, total = len(self.failing), len(self.failing) + len(self.right)
        alike = log_comb(total - len(free), failed) - log_comb(total, failed)
        return exp(max([alike, *(self._by_tokens(TRAITS.index(name), free) for name in _STRUCK)]))

    def _by_tokens(self, place: int, free: list[tuple[Value, ...]]) -> float:
        """The logarithm of the chance where a case is hit the likelier the more tokens it has.

        Then those with more are hit first. To take them in any order leaves too much for the last ones, so that the
        evidence is understated.
        """
        left = sum(int(one[place]) for one in (*self.failing, *self.right))
        weight = sum(int(one[place]) for one in self.failing) / len(self.failing)
        spared = sum(int(one[place]) for one in free)
        return sum(log1p(-spared / (left - number * weight)) for number in range(len(self.failing)))


def _ways(left: _Cases, trait: str) -> int:
    """Return in how many ways a trait may be divided: each value may be spared, or all on one side of a bound."""
    values = len(left.values(trait))
    return values if trait in NAMES else 2 * (values - 1)


def _divisions(left: _Cases, trait: str, small: Value | None) -> list[_Division]:
    """The divisions of a trait that no failing case refutes."""
    hit = set(left.values(trait, failing_only=True)) | ({small} if small is not None else set())
    free = {value: count for value, count in left.values(trait).items() if value not in hit}
    if trait in NUMBERS:
        numbers = [int(value) for value in hit]
        both = [_Division(trait, "from", min(numbers)), _Division(trait, "to", max(numbers))]
        return [division for division in both if any(map(division.spared, free))]
    if trait in NAMES:
        if small is not None and small not in left.values(trait, failing_only=True):
            return []
        sure = _sure(left, trait, free)
        free = {value: count for value, count in free.items() if value in sure}
    return [_Division(trait, "among", free=frozenset(free))] if free else []


def _sure(left: _Cases, trait: str, free: Mapping[Value, int]) -> set[Value]:
    """The values without a failing case of which each by itself has not escaped by chance."""
    sure, level = set(free), BY_CHANCE / len(left.values(trait))
    while sure:
        least = min(_ordered(sure), key=free.__getitem__)  # it is the likeliest to escape by chance
        others = frozenset(sure - {least})
        rest = left.where(trait, lambda value, others=others: value not in others)  # type: ignore[misc]
        if rest.chance(trait, lambda value, least=least: value == least) < level:  # type: ignore[misc]
            break
        sure.remove(least)
    return sure


def _condition(division: _Division, left: _Cases, every: _Cases) -> Restriction:
    """The condition that a division is, with the counts of all cases, whatever the conditions before it left over."""
    trait, spared = division.trait, division.spared
    if division.way == "among":
        hit = set(every.values(trait, failing_only=True))
        unsure = [value for value in _ordered(every.values(trait)) if value not in hit and not spared(value)]
        groups = [
            tuple(every.side(trait, lambda value, one=one: value == one) for one in group)  # type: ignore[misc]
            for group in (_ordered(division.free), () if trait in FLAGS else unsure)
        ]
        hits = every.side(trait, lambda value: value in hit or (trait in FLAGS and not spared(value)))
        return Restriction(trait, "among", hits, groups[0], groups[1])
    sign = 1 if division.way == "from" else -1
    edge = _edge(division, left, sign)
    near = every.side(trait, lambda value: spared(value) and sign * int(value) > sign * edge)
    far = every.side(trait, lambda value: sign * int(value) <= sign * edge)
    hit_side = every.side(trait, lambda value: not spared(value))
    return Restriction(trait, division.way, hit_side, (far,), (near,) if near.of else (), division.bound, edge)


def _edge(division: _Division, left: _Cases, sign: int) -> int:
    """The spared value next to the bound at which the fault cannot begin: it would have shown between the two."""
    trait, spared = division.trait, division.spared
    outside = sorted((int(value) for value in left.values(trait) if spared(value)), key=lambda value: -sign * value)
    for edge in outside:
        rest = left.where(trait, lambda value, edge=edge: sign * int(value) >= sign * edge)  # type: ignore[misc]
        if rest.chance(trait, spared) < BY_CHANCE:
            return edge
    return outside[-1]


def _ordered(values: Collection[Value]) -> tuple[Value, ...]:
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))
