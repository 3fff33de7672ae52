"""The laws of a round, as they are right and as they are got wrong: draft, acceptance, correction, bonus, first token.

Each law is computed under many names: with another option, another row's draft, another column, another rule. What the
tokens of an audit say for each name is a sum of log-likelihoods; `eqcheck.sampling.naming` puts names together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqcheck.sampling import reused
from eqcheck.sampling.reused import normal
from eqcheck.sampling.row import Bools, Floats, Ints

FLOOR = 0.005  # no law calls anything impossible: one odd token must not decide
NEVER = 1e-6
REJECTION, MATCH = "rejection", "match"
BASES = ("", "options", "cuts", "temperature")
"""Whose draft's law a right sampler may draw from and compare with: the row's options, or some of them left out."""
POWERS = (0.51, 0.72, 1.38, 1.96)
SHARP = ("greedy", "likeliest-2", "likeliest-3", "likeliest-5", "likeliest-10", "uniform")
FACTORS = (0.27, 0.38, 0.53, 0.68, 0.78, 0.88, 1.13, 1.3, 1.57, 1.95, 2.7, 4.2)
STEPS = tuple((step + 0.5) / 26 for step in range(26))
"""Thresholds of rules that accept without a random number; each stands for those around it."""

AROUND = ("before", "behind", "first-column", "round-before", "round-before-end")
"""The column before; that behind the draft token; the round's first; of the round before, its last token and column."""
STALE = ("before", "first-column", "round-before", "round-before-end")

FIRST = ("greedy", "options", "temperature", "cuts")
"""How a first token may be drawn, whatever the draft says."""

Name = tuple[str, ...]
"""What a law takes: for acceptance and correction the scheme, the variant of p, that of q, and a rule of its own."""


@dataclass(frozen=True, eq=False)
class Read:
    """The tokens of one row of which it is known where they came from, and the laws around them.

    ``role [n]`` is as in `eqcheck.attribution.sampling.Mark`; ``token``, ``draft`` (-1: none) and ``column`` are
    ``[n]``. ``p`` and ``q`` have the laws of target and draft ``[n, V]`` at the prefixes, by variant: ``""`` is right.
    ``around`` has the target's laws at other places of the row, by `AROUND`; the right one where there is none.
    ``beside`` has the draft's laws of other rows and columns of the round, zeros where they are not known. ``spent
    [n]`` bounds the random number that accepted the draft token before, ``lowest [n]`` all of the round so far.
    """

    role: NDArray[np.str_]
    drafted: Bools
    token: Ints
    draft: Ints
    column: Ints
    first: Bools
    p: Mapping[str, Floats]
    q: Mapping[str, Floats]
    around: Mapping[str, Floats]
    beside: Mapping[str, Floats]
    spent: Floats
    lowest: Floats

    def of(self, part: str) -> Read:
        """The tokens that tell about a part of a round."""
        if part in ("draft", "accept"):
            return self._only(self.drafted & (self.draft >= 0))
        if part == "correction":
            return self._only(self.drafted & (self.role == "corrected"))
        free = (self.role == "bonus") | (self.role == "plain")
        return self._only(free & (self.first if part == "first" else ~self.first))

    def first_columns(self) -> Read:
        """The tokens at the first draft token of a round, or without one."""
        return self._only(self.column == 0)

    def possible(self) -> Read:
        """The tokens that the target may emit."""
        return self._only(self.p[""][np.arange(len(self)), self.token] > 0)

    def beside_known(self, name: str) -> Read:
        """The tokens where this law of another row or column is known."""
        return self._only(~self.unknown(name))

    def unknown(self, name: str) -> Bools:
        """Whether it is not known at a token what law another row or column has: it may be any there."""
        return np.asarray(self.beside[name].sum(-1) <= 0) if name in self.beside else np.zeros(len(self), bool)

    @property
    def drafts(self) -> dict[str, Floats]:
        """The draft's laws ``[n, V]`` that may be compared with the target's; its own where another is not known."""
        others = {name: np.where(law.sum(-1, keepdims=True) > 0, law, self.q[""]) for name, law in self.beside.items()}
        return {**self.q, **others}

    def _only(self, where: Bools) -> Read:
        return Read(*(_each(getattr(self, one.name), lambda array: array[where]) for one in fields(self)))

    def __len__(self) -> int:
        return len(self.token)


def together(reads: Iterable[Read], at_most: int = 1000) -> Iterator[Read]:
    """The same tokens in fewer and longer pieces: numpy is slow with short ones."""
    waiting: list[Read] = []
    for read in reads:
        waiting.append(read)
        if sum(map(len, waiting)) >= at_most:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(reads: list[Read]) -> Read:
    joined: list[Any] = []
    for one in fields(Read):
        values = [getattr(read, one.name) for read in reads]
        if isinstance(values[0], Mapping):
            joined.append({name: np.concatenate([value[name] for value in values]) for name in values[0]})
        else:
            joined.append(np.concatenate(values))
    return Read(*joined)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: change(array) for name, array in value.items()}
    return change(value)


PARTS = ("draft", "accept", "correction", "bonus", "first")
Sums = dict[str, dict[Name, float]]


def likelihoods(reads: Iterable[Read]) -> Sums:
    """The log-likelihood of every name of every part, over all tokens that tell about it."""
    sums: Sums = {part: defaultdict(float) for part in PARTS}
    for read in reads:
        for part in PARTS:
            told = read.of(part)
            for name, chance in chances(told, part) if len(told) else ():
                sums[part][name] += float(np.log(chance).sum())
    return sums


def chances(read: Read, part: str) -> Iterator[tuple[Name, Floats]]:
    """Every name of a part with the chance ``[n]`` of what is seen there."""
    if part == "accept":
        accepted = read.role == "accepted"
        for name, chance in acceptances(read):
            chance = bounded(chance)
            yield name, np.where(accepted, chance, 1 - chance)
        return
    seen = np.where(read.draft >= 0, read.draft, 0) if part == "draft" else read.token
    for name, law in laws(read, part):
        yield name, soft(law)[np.arange(len(seen)), seen]


def laws(read: Read, part: str) -> Iterator[tuple[Name, Floats]]:
    """Every name of a part with its law ``[n, V]``."""
    if part == "draft":
        yield from _free(read.q)
        for k in (2, 3, 5, 10):
            yield (f"likeliest-{k}",), _likeliest(read.q[""], k)
        yield ("uniform",), np.full_like(read.q[""], 1 / read.q[""].shape[1])
    elif part == "correction":
        yield from corrections(read)
    else:
        yield from _free(read.p)
        if part == "bonus":
            behind_drafts = (read.role == "bonus")[:, None]
            for name in STALE:
                yield (name,), np.where(behind_drafts, read.around[name], read.p[""])
            yield ("coin",), reused.spent(read.p[""], read.spent)


def _free(variants: Mapping[str, Floats]) -> Iterator[tuple[Name, Floats]]:
    """What is drawn from a law alone, by its variants and at other temperatures."""
    for variant, law in variants.items():
        yield (variant,), law
    for power in POWERS:
        yield (f"power-{power}",), _power(variants[""], power)


def acceptances(read: Read) -> Iterator[tuple[Name, Floats]]:
    """Every rule of acceptance with the chance ``[n]`` that the draft token is accepted."""
    n = np.arange(len(read.draft))
    d = np.where(read.draft >= 0, read.draft, 0)
    p = {variant: law[n, d] for variant, law in read.p.items()}
    q = {variant: law[n, d] for variant, law in read.drafts.items()}

    def ratio(of: Floats, to: Floats) -> Floats:
        return np.divide(of, to, out=np.where(of > 0, 1.0, 0.0), where=to > 0)

    for variant, own in p.items():
        yield (MATCH, variant, "", ""), own
        for base in BASES:
            yield (REJECTION, variant, base, ""), ratio(own, q[base])
        if variant in q and variant not in BASES:
            yield (REJECTION, variant, variant, ""), ratio(own, q[variant])
    beside = {variant: np.minimum(ratio(p[""], other), 1.0) for variant, other in q.items() if variant not in BASES}
    any_of_them = sum(beside.values()) / max(len(beside), 1)
    for variant, chance in beside.items():
        yield (REJECTION, "", variant, ""), np.where(read.unknown(variant), any_of_them, chance)
    for scheme, base in ((MATCH, ""), *((REJECTION, base) for base in BASES)):
        right = p[""] if scheme == MATCH else ratio(p[""], q[base])
        left = normal(np.maximum(read.p[""] - read.q[base], 0), read.p[""])[n, d] if scheme == REJECTION else 0.0
        for rule, chance in _rules(right, read.column):
            accepted = np.minimum(chance, 1.0)
            yield (scheme, "", base, rule), accepted + (1 - accepted) * left  # what is left may have the draft token
        for variant in FIRST:
            yield (scheme, "", base, f"first-{variant}"), np.where(read.first, p[variant], np.minimum(right, 1.0))
        if scheme == REJECTION:
            yield (scheme, "", base, "one-coin"), np.minimum(np.minimum(right, 1.0) / read.lowest, 1.0)
        refused = 1 - np.minimum(right, 1.0)
        for rule, law in _redrawn(read, base).items():  # a correction that is the draft token looks accepted
            yield (scheme, "", base, rule), 1 - refused + refused * law[n, d]


def _redrawn(read: Read, base: str) -> dict[str, Floats]:
    """Laws ``[n, V]`` of corrections that may be the refused draft token, by rule."""
    p = read.p[""]
    own = normal(np.maximum(p - read.q[base], 0), p)
    left = {} if base else {f"again-left-{name}": _left(read, name, own) for name in _LEFT_BESIDE}
    return left | {
        "again": p,
        "again-options": read.p["options"],
        "again-absolute": normal(abs(p - read.q[base]), p),
        "again-argmax": _likeliest(p, 1),
        "again-before": read.around["before"],
        "again-behind": read.around["behind"],
    }


_LEFT_BESIDE = {"before": "q-column-before", "behind": "q-next-column", "first-column": "q-first-column"}


def _left(read: Read, where: str, own: Floats) -> Floats:
    """What the draft leaves of the target's law in another column; the ``own`` where a round has no column before."""
    p = read.around[where]
    left = normal(np.maximum(p - read.beside[_LEFT_BESIDE[where]], 0), p)
    return left if where == "behind" else np.where((read.column > 0)[:, None], left, own)


def _rules(right: Floats, column: Ints) -> Iterator[tuple[str, Floats]]:
    for factor in FACTORS:
        yield f"times-{factor:g}", factor * right
    yield "inverted", np.divide(1.0, right, out=np.ones_like(right), where=right > 0)
    right = np.minimum(right, 1.0)
    for factor in FACTORS:
        if factor < 1:
            yield f"then-times-{factor:g}", factor * right
    yield "always", np.ones_like(right)
    yield "never", np.zeros_like(right)
    yield "first-column", np.where(column == 0, 1.0, right)
    yield "later-columns", np.where(column > 0, 1.0, right)
    yield "impossible", np.where(right == 0, 0.01, right)
    yield "one-minus", 1 - right
    for step in STEPS:
        yield f"step-{step:g}", np.clip((right - step) / 0.04 + 0.5, 0.0, 1.0)


def corrections(read: Read) -> Iterator[tuple[Name, Floats]]:
    """Every way to correct with its law ``[n, V]``."""
    n, d = np.arange(len(read.draft)), np.where(read.draft >= 0, read.draft, 0)

    def without(law: Floats) -> Floats:
        law = law.copy()
        law[n, d] = 0.0
        return normal(law, read.p[""])

    def residual(p: Floats, q: Floats) -> Floats:
        return without(normal(np.maximum(p - q, 0), p))

    q = read.drafts
    for variant, own in read.p.items():
        yield (MATCH, variant, "", ""), without(own)
        for base in BASES:
            yield (REJECTION, variant, base, ""), residual(own, q[base])
        if variant in q and variant not in BASES:
            yield (REJECTION, variant, variant, ""), residual(own, q[variant])
    beside = {variant: residual(read.p[""], other) for variant, other in q.items() if variant not in BASES}
    any_of_them = sum([*beside.values(), without(read.p[""])]) / (len(beside) + 1)
    for variant, law in beside.items():
        yield (REJECTION, "", variant, ""), np.where(read.unknown(variant)[:, None], any_of_them, law)
    for scheme, base in ((MATCH, ""), *((REJECTION, base) for base in BASES)):
        left = without(read.p[""]) if scheme == MATCH else residual(read.p[""], q[base])
        for variant in FIRST:
            yield (scheme, "", base, f"first-{variant}"), np.where(read.first[:, None], without(read.p[variant]), left)
    for base in BASES:
        left = residual(read.p[""], q[base])
        yield (REJECTION, "", base, "likeliest"), _likeliest(left, 1)
        for rule, law in _redrawn(read, base).items():
            # Behind a token that only looks accepted, the column was not judged in this call.
            yield (
                ("", "", base, rule),
                np.where((read.column > 0)[:, None], 0.7, 1.0) * without(law)
                + (0.3 * (read.column > 0)[:, None] * read.p[""]),
            )
        yield (REJECTION, "", base, "backwards"), normal(np.maximum(q[base] - read.p[""], 0), left)
        yield (REJECTION, "", base, "coin"), reused.refusing(left, read.p[""][n, d], q[base][n, d])
        yield (REJECTION, "", base, "race"), reused.race(left, q[base])
    yield ("", "", "", "draft"), without(read.q[""])


def bounded(chance: Floats) -> Floats:
    """Chances of acceptance, none of them certain; what the target never emits is hardly ever accepted by mistake."""
    return np.where(chance <= 0, NEVER, np.clip(chance, FLOOR, 1 - FLOOR))


def soft(law: Floats) -> Floats:
    """A law with a little of all tokens mixed in."""
    return np.asarray((1 - FLOOR) * law + FLOOR / law.shape[1])


def _likeliest(law: Floats, k: int) -> Floats:
    least = np.sort(law, axis=-1)[:, -k][:, None]
    return normal(np.where(law >= least, law, 0.0), law)


def _power(law: Floats, power: float) -> Floats:
    return normal(np.where(law > 0, law, 0.0) ** power, law)
