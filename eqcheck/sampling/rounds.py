"""Rounds whose draft tokens are known, and every law of `eqcheck.sampling.laws` at their tokens.

Rounds say for each law of a part a sum of log-likelihoods; `eqcheck.sampling.naming` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqcheck.sampling.laws import BASES, MATCH, PartLaw, Verification
from eqcheck.sampling.reuse import normal, race, refusing, spent
from eqcheck.sampling.row import Bools, Floats, Ints

FLOOR = 0.005  # no law calls anything impossible: one odd token must not decide
NEVER = 1e-6


@dataclass(frozen=True, eq=False)
class Read:
    """The tokens of one row whose places in their rounds are known, and the laws around them.

    ``role [n]`` is as in `eqcheck.lanes.sampling.decode.Mark`; ``token``, ``draft`` (-1: none) and ``column`` are
    ``[n]``. ``p`` and ``q`` have the laws of target and draft ``[n, V]`` at the prefixes, by the option that is wrong;
    the right ones under ``""``. ``around`` has the target's laws at other places of the row, by `PLACES`; the right one
    where there is none. ``beside`` has the draft's laws of other rows and columns of the round, zeros where they are
    not known. ``spent [n]`` bounds the random number that accepted the draft token before, ``lowest [n]`` all of the
    round so far.
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
        """Return whether it is not known at a token what law another row or column has: it may be any there."""
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


class PartLaws:
    """The laws of one read, by name; what several of them share is computed once."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.n, self.d = np.arange(len(read)), np.where(read.draft >= 0, read.draft, 0)
        self.drafts = read.drafts
        self._known: dict[tuple[Any, ...], Floats] = {}

    def _once(self, key: tuple[Any, ...], made: Callable[[], Floats]) -> Floats:
        if key not in self._known:
            self._known[key] = made()
        return self._known[key]

    def chance(self, part: str, name: Any) -> Floats:
        """The chance ``[n]`` that this law of a part gives what is seen there."""
        if part == "accept":
            chance = bounded(self.acceptance(name))
            return np.where(self.read.role == "accepted", chance, 1 - chance)
        seen = self.d if part == "draft" else self.read.token
        return soft(self.law(part, name))[self.n, seen]

    def law(self, part: str, name: Any) -> Floats:
        """A law ``[n, V]`` of draft tokens, corrections, bonus tokens or first tokens."""
        if part == "correction":
            return self.correction(name)
        read = self.read
        law = drawn(read.q if part == "draft" else read.p, name)
        if name.rule == "place":
            return np.where((read.role == "bonus")[:, None], read.around[name.of], read.p[""])
        return spent(read.p[""], read.spent) if name.rule == "coin" else law

    def acceptance(self, name: Verification) -> Floats:
        """The chance ``[n]`` that the draft token is accepted, or looks so because it is drawn again."""
        read, rule = self.read, name.rule
        if name.q.rule == "beside":
            known = {other: np.minimum(self._ratio(way), 1.0) for other, way in self._others(name).items()}
            return np.where(read.unknown(name.q.of), sum(known.values()) / len(known), known[name.q.of])
        right = self._ratio(name)
        once = np.minimum(right, 1.0)
        if not rule.rule:
            return right
        if rule.rule == "first":
            return np.where(read.first, read.p[rule.of][self.n, self.d], once)
        if rule.rule == "one-coin":
            return np.minimum(once / read.lowest, 1.0)
        if rule.redraws:
            return once + (1 - once) * self._again(name)[self.n, self.d]
        accepted = np.minimum(accepting(rule, right, read.column == 0), 1.0)
        left = 0.0 if name.scheme == MATCH else self._left(name)[self.n, self.d]
        return accepted + (1 - accepted) * left  # what is left may have the draft token

    def correction(self, name: Verification) -> Floats:
        """The law ``[n, V]`` of what is seen to be a correction."""
        read, rule = self.read, name.rule.rule
        if name.rule.redraws:
            # Behind a token that only looks accepted, the column was not judged in this call: either is as likely.
            unjudged = np.where(read.column > 0, 0.5, 0.0)[:, None]
            return (1 - unjudged) * self._without(self._again(name)) + unjudged * read.p[""]
        if name.q.rule == "beside":
            known = {other: self._residual(way) for other, way in self._others(name).items()}
            any_of_them = sum([*known.values(), self._without(read.p[""])]) / (len(known) + 1)
            return np.where(read.unknown(name.q.of)[:, None], any_of_them, known[name.q.of])
        if rule == "draft":
            return self._without(read.q[""])
        left = self._residual(name)
        if rule == "first":
            return np.where(read.first[:, None], self._without(read.p[name.rule.of]), left)
        q = self.drafts[name.q.of]
        if rule == "argmax":
            return likeliest(left, 1)
        if rule == "backwards":
            return normal(np.maximum(q - read.p[""], 0), left)
        if rule == "coin":
            return refusing(left, read.p[""][self.n, self.d], q[self.n, self.d])
        return race(left, q) if rule == "race" else left

    def _others(self, name: Verification) -> dict[str, Verification]:
        """Any law of the draft that may be taken where another one is not known."""
        return {other: name._replace(q=PartLaw("beside", other)) for other in self.drafts if other not in ("", *BASES)}

    def _ratio(self, name: Verification) -> Floats:
        """The ratio ``[n]`` of the laws of target and draft at the draft token; matching has the target's alone."""

        def made() -> Floats:
            of = self.read.p[name.p.of][self.n, self.d]
            if name.scheme == MATCH:
                return of
            to = self.drafts[name.q.of][self.n, self.d]
            return np.divide(of, to, out=np.where(of > 0, 1.0, 0.0), where=to > 0)

        return self._once(("ratio", name[:3]), made)

    def _left(self, name: Verification) -> Floats:
        """The part of the target's law ``[n, V]`` that the draft leaves, as a law."""

        def made() -> Floats:
            p = self.read.p[name.p.of]
            return normal(np.maximum(p - self.drafts[name.q.of], 0), p)

        return self._once(("left", name[:3]), made)

    def _residual(self, name: Verification) -> Floats:
        """A correction by its scheme alone, which is not the draft token."""
        law = self.read.p[name.p.of] if name.scheme == MATCH else self._left(name)
        return self._once(("residual", name[:3]), lambda: self._without(law))

    def _without(self, law: Floats) -> Floats:
        law = law.copy()
        law[self.n, self.d] = 0.0
        return normal(law, self.read.p[""])

    def _again(self, name: Verification) -> Floats:
        """The law ``[n, V]`` of a correction that may be the refused draft token."""
        read, rule = self.read, name.rule
        p, q = read.p[""], read.q[name.q.of]
        if rule.rule == "again-options":
            return read.p["options"]
        if rule.rule == "again-absolute":
            return self._once(("absolute", name.q), lambda: normal(abs(p - q), p))
        if rule.rule == "again-argmax":
            return self._once(("argmax",), lambda: likeliest(p, 1))
        if rule.rule == "again-place":
            return read.around[rule.of]
        if rule.rule == "again":
            return p
        at = read.around[rule.of]
        left = normal(np.maximum(at - read.beside[_LEFT_BESIDE[rule.of]], 0), at)
        # A round has no column before its first.
        return left if rule.of == "behind" else np.where((read.column > 0)[:, None], left, self._left(name))


_LEFT_BESIDE = {"before": "q-column-before", "behind": "q-next-column", "first-column": "q-first-column"}


def drawn(laws: Mapping[str, Floats], law: PartLaw) -> Floats:
    """A law ``[n, V]`` that is drawn from alone, with its options got wrong or at another temperature."""
    right = laws[""]
    if law.rule == "power":
        return normal(np.where(right > 0, right, 0.0) ** law.amount, right)
    if law.rule == "likeliest":
        return likeliest(right, int(law.amount))
    if law.rule == "uniform":
        return np.full_like(right, 1 / right.shape[1])
    return laws[law.of] if law.rule in ("options", "first") else right


def accepting(rule: PartLaw, right: Floats, first: Bools) -> Floats:
    """The chance that a draft token is accepted by a rule in place of the ``right`` ratio.

    ``first`` is where a token stands in the first column of its round.
    """
    once = np.minimum(right, 1.0)
    chances: dict[str, Callable[[], Floats]] = {
        "times": lambda: rule.amount * right,
        "then-times": lambda: rule.amount * once,
        "inverted": lambda: np.divide(1.0, right, out=np.ones_like(right), where=right > 0),
        "always": lambda: np.ones_like(right),
        "never": lambda: np.zeros_like(right),
        "first-column": lambda: np.where(first, 1.0, once),
        "later-columns": lambda: np.where(first, once, 1.0),
        "impossible": lambda: np.where(once == 0, 0.01, once),
        "one-minus": lambda: 1 - once,
        "step": lambda: np.clip((once - rule.amount) / 0.04 + 0.5, 0.0, 1.0),
    }
    return chances[rule.rule]()


def bounded(chance: Floats) -> Floats:
    """Chances of acceptance, none of them certain; what the target never emits is hardly ever accepted by mistake."""
    return np.where(chance <= 0, NEVER, np.clip(chance, FLOOR, 1 - FLOOR))


def soft(law: Floats) -> Floats:
    """A law with a little of all tokens mixed in."""
    return np.asarray((1 - FLOOR) * law + FLOOR / law.shape[1])


def likeliest(law: Floats, count: int) -> Floats:
    """A law ``[n, V]`` of its so many likeliest tokens alone."""
    least = np.sort(law, axis=-1)[:, -count][:, None]
    return normal(np.where(law >= least, law, 0.0), law)
