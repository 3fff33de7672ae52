"""Rounds whose draft tokens are known, and every law of `eqcheck.sampling.betting.laws` at their tokens.

Rounds say for each law of a part a sum of log-likelihoods; `eqcheck.sampling.betting.naming` puts the parts together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqcheck.sampling.betting.laws import (
    BASES,
    MATCH,
    Bools,
    Floats,
    Ints,
    PartLaw,
    Verification,
    normal,
    race,
    refusing,
    spent,
    tighter,
)

FLOOR = 0.005  # no law calls anything impossible: one odd token must not decide
NEVER = 1e-6


@dataclass(frozen=True, eq=False)
class Read:
    """The tokens of one row whose places in their rounds are known, and the laws around them.

    ``role [n]`` is as in `eqcheck.sampling.decode.Mark`; ``token``, ``draft`` (-1: none) and ``column`` are
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


# Check that a name fits all tokens: bets that learn as they go, against each law of the round.
#
# A name may be the likeliest of all and still be false, where the fault is one that nobody has named. Each bet is an
# e-process against the law that is tested: the chance that a table of counts gives what comes next, over the chance
# that the law gives it (Krichevsky and Trofimov, 1981, https://doi.org/10.1109/TIT.1981.1056331). Where the law is
# right, it exceeds 1,000 once in 1,000 audits.

BINS = 6
STRAY, WAITING = 1e-3, 10
"""Tokens that a law forbids may come this often, for a round may be read wrongly; so many count before the first."""


def misfit(reads: Sequence[Read], part: str, name: Any, less: bool = False) -> float:
    """The logarithm of the evidence that a part of the rounds does not follow the law of this name.

    ``less`` looks only for draft tokens that are accepted less often than the law has it.
    """
    told = [read for read in (read.of(part) for read in reads) if len(read)]
    if part != "accept":
        seen = (read.draft if part == "draft" else read.token for read in told)
        return misfit_of_laws(
            (PartLaws(read).law(part, name), read.q[""], tokens) for read, tokens in zip(told, seen, strict=True)
        )
    # Acceptance may be wrong along any of these: by its own chance, by the place in the round, by what the target gives
    # the token. A table by one of them is blind to a fault along another, so all three bet.
    tables = [_Acceptance(by, less) for by in ("chance", "column", "p")]
    for read in told:
        for t, chance in enumerate(bounded(PartLaws(read).acceptance(name)).tolist()):
            for table in tables:
                table.see(read, t, chance)
    return _together([table.log for table in tables])


def misfit_of_laws(told: Iterable[tuple[Floats, Floats, Ints]]) -> float:
    """The logarithm of the evidence that tokens ``[n]`` do not follow laws ``[n, V]``; each with the draft's laws."""
    orders = [_Order(by) for by in ("id", "likely", "draft")]
    least = 0.0  # of a bet that the least likely token that the law allows never comes
    for laws, drafts, tokens in told:
        own, short = (law[np.arange(len(tokens)), tokens] for law in (laws, tighter(laws)))
        least += float(np.log((1 + np.divide(short, own, out=np.ones_like(own), where=own > 0)) / 2).sum())
        for law, draft, token in zip(laws, drafts, tokens.tolist(), strict=True):
            for order in orders:
                order.see(law, draft, token)
    return _together([*(order.log for order in orders), least])


def _together(logs: list[float]) -> float:
    return float(np.logaddexp.reduce(logs) - math.log(len(logs)))


class _Acceptance:
    """Learn how often draft tokens are accepted, for each of some groups of chances."""

    def __init__(self, by: str, less: bool = False) -> None:
        self.by, self.less, self.log = by, less, 0.0
        self.ups: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # accepted, expected, all

    def see(self, read: Read, t: int, chance: float) -> None:
        likely = float(read.p[""][t, read.draft[t]])
        group = {"chance": int(chance * BINS), "column": (int(read.column[t]), chance > 0.5), "p": int(likely * BINS)}
        table = self.ups[group[self.by]]
        accepted, expected, count = table
        # The learnt chance lies from the law's by what the group showed so far, as if two more had gone as expected.
        rate, usual = (accepted + 2 * chance) / (count + 2), (expected + 2 * chance) / (count + 2)
        learnt = min(max(_logistic(_logit(chance) + _logit(_open(rate)) - _logit(_open(usual))), 0.01), 0.99)
        learnt = min(learnt, chance) if self.less else learnt
        taken = read.role[t] == "accepted"
        self.log += math.log((learnt if taken else 1 - learnt) / (chance if taken else 1 - chance))
        self.ups[group[self.by]] = [accepted + taken, expected + chance, count + 1]


class _Order:
    """Learn where tokens fall in an order of all, as shares of equal parts of the distribution."""

    def __init__(self, by: str) -> None:
        self.by, self.log = by, 0.0
        self.counts = np.full(BINS, 1.0)
        self.strays, self.seen = 0, 0

    def see(self, law: Floats, q: Floats, token: int) -> None:
        own = float(law[token])
        rate = (self.strays + WAITING * STRAY) / (self.seen + WAITING)
        self.seen += 1
        if own <= 0:
            self.log += math.log(rate / STRAY)
            self.strays += 1
            return
        self.log += math.log((1 - rate) / (1 - STRAY))
        key = {"id": np.arange(len(law)), "likely": -law, "draft": law / np.maximum(q, 1e-9)}[self.by]
        ahead = (key < key[token]) | ((key == key[token]) & (np.arange(len(law)) < token))
        start = float(law[ahead].sum())
        edges = np.linspace(0, 1, BINS + 1)
        end = min(start + own, 1.0)
        shares = np.maximum(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0.0)
        if shares.sum() <= 0:  # too little to say where it falls
            return
        shares /= shares.sum()
        self.log += math.log(float((shares * self.counts).sum()) * BINS / self.counts.sum())
        self.counts += shares


def _logit(x: float) -> float:
    return math.log(x / (1 - x))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _open(x: float) -> float:
    return min(max(x, 1e-3), 1 - 1e-3)


# Find the random numbers of a row that are used again, and when: the draft's, those of acceptance, or the target's.
#
# Two draws that one random number makes depend on each other. Where it is used again, the law of the second draw
# given the first is known, and so is the factor by which what was drawn is likelier than by the right law. Given all
# tokens before it, the mean of that factor is 1 for a right sampler, whatever came first: the product over all pairs
# is ever above c with a probability of 1/c at most.

_SHARE = 0.5  # of the pairs is taken to use a number again, so that one pair refutes nothing

Numbers = Literal["draft", "acceptance", "target"]
When = Literal["round", "round-before"]


class Repeated(NamedTuple):
    """Random numbers that are used again, and the logarithm of how much likelier that makes what was drawn."""

    numbers: Numbers
    when: When
    log_factor: float

    @property
    def words(self) -> str:
        return _WORDS[self.numbers, self.when]


_WORDS: dict[tuple[Numbers, When], str] = {
    ("draft", "round"): "the draft tokens of a round are drawn with the same random numbers",
    ("draft", "round-before"): "draft tokens are drawn with the random numbers that drew those of the round before",
    ("acceptance", "round"): "the draft tokens of a round are accepted or rejected by the same random number",
    ("acceptance", "round-before"): "draft tokens are accepted or rejected by the random numbers of the round before",
    ("target", "round-before"): "corrections and bonus tokens are drawn with the random numbers of the round before",
}
_TRIED = 8  # a uniform number and a race, for each pair that is drawn; a number, for acceptance


class _Draw(NamedTuple):
    token: int
    law: Floats


class _Coin(NamedTuple):
    """A draft token that was accepted or not, where it has to be with probability ``bound``."""

    accepted: bool
    bound: float


class _Round(NamedTuple):
    """One round of a row: by column what the draft drew and whether it was accepted, and the target's own token."""

    drafts: dict[int, _Draw]
    coins: dict[int, _Coin]
    own: _Draw | None


def repeated(reads: Iterable[Read], least: float) -> list[Repeated]:
    """The numbers that are used again, each with a factor of ``least`` or more in spite of all that was tried."""
    total: dict[tuple[Numbers, When], Floats] = {key: np.zeros(2) for key in _WORDS}
    for read in reads:
        rounds = list(_rounds(read))
        for number, current in enumerate(rounds):
            before = rounds[number - 1] if number else None
            for key, factors in _pairs(current, before):
                total[key] += np.log1p(_SHARE * (np.array(factors) - 1))
    found = [Repeated(*key, float(logs.max())) for key, logs in total.items()]
    return sorted((one for one in found if one.log_factor >= math.log(least * _TRIED)), key=lambda one: -one.log_factor)


def _rounds(read: Read) -> Iterator[_Round]:
    """The rounds of one row's tokens, which follow each other."""
    p, q = read.p[""], read.q[""]
    starts = [i for i in range(len(read)) if not i or read.column[i] <= read.column[i - 1]]
    for start, end in zip(starts, [*starts[1:], len(read)], strict=True):
        drafts, coins, own = dict[int, _Draw](), dict[int, _Coin](), None
        for i in range(start, end):
            role, token, draft, column = read.role[i], int(read.token[i]), int(read.draft[i]), int(read.column[i])
            if draft >= 0 and read.drafted[i] and q[i, draft] > 0:
                drafts[column] = _Draw(draft, q[i])
                coins[column] = _Coin(role == "accepted", min(1.0, float(p[i, draft] / q[i, draft])))
            if role == "corrected" and read.drafted[i]:
                own = _Draw(token, normal(np.maximum(p[i] - q[i], 0)[None], p[i][None])[0])
            elif role in ("bonus", "plain"):
                own = _Draw(token, p[i])
        yield _Round(drafts, coins, own)


def _pairs(current: _Round, before: _Round | None) -> Iterator[tuple[tuple[Numbers, When], tuple[float, float]]]:
    """The pairs of draws in which a round uses numbers again, each with the factors of the ways to draw."""
    # The column before in this round, and the same column of the round before: a generator that is rewound to the
    # beginning of a round, or is not moved on within it, repeats at just these places.
    for column, draw in current.drafts.items():
        for when, other in (
            ("round", current.drafts.get(column - 1)),
            ("round-before", before and before.drafts.get(column)),
        ):
            if other:
                yield ("draft", when), _drawn(draw, other)  # type: ignore[misc]
    for column, coin in current.coins.items():
        for when, thrown in (
            ("round", current.coins.get(column - 1)),
            ("round-before", before and before.coins.get(column)),
        ):
            if thrown:
                yield ("acceptance", when), (_thrown(coin, thrown),) * 2  # type: ignore[misc]
    if current.own and before and before.own:
        yield ("target", "round-before"), _drawn(current.own, before.own)


def _drawn(draw: _Draw, other: _Draw) -> tuple[float, float]:
    """Return how much likelier a draw is with the other one's uniform number, and with the times of its race."""
    own, theirs = float(draw.law[draw.token]), float(other.law[other.token])
    if own <= 0 or theirs <= 0:
        return 1.0, 1.0
    low, start = float(draw.law[: draw.token].sum()), float(other.law[: other.token].sum())
    both = max(0.0, min(low + own, start + theirs) - max(low, start))
    hit = float(draw.law[other.token])
    race = 1.0
    if 1e-12 < hit < 1 - 1e-9:
        highest = np.maximum(other.law / theirs, draw.law / hit)
        equal = min(1.0, float(1 / highest.sum()) / theirs)
        race = equal / hit if draw.token == other.token else (1 - equal) / (1 - hit)
    return both / own / theirs, race


def _thrown(draw: _Coin, other: _Coin) -> float:
    """Return how much likelier it is that a draft token is accepted, or is not, where the other's number decides."""
    if not 0 < draw.bound < 1 or (not other.accepted and other.bound >= 1):
        return 1.0
    if other.accepted:
        accepts = min(draw.bound, other.bound) / other.bound if other.bound > 0 else draw.bound
    else:
        accepts = max(0.0, draw.bound - other.bound) / (1 - other.bound)
    return accepts / draw.bound if draw.accepted else (1 - accepts) / (1 - draw.bound)


def in_words(found: Sequence[Repeated]) -> str:
    """All numbers that are used again, as one clause."""
    return ", and ".join(one.words for one in found)
