"""Samplers in numpy, right ones and faulty ones, over synthetic laws: rows advance side by side, as in an engine.

A context stands for a prefix; the token that is emitted chooses the next one. Every sampler is a function of a column:
it gives a token, and whether the next draft column is verified after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from eqcheck.sampling.betting.laws import Bools, Floats, Ints, SampledRow

Options = tuple[float, int, float]  # temperature, top-k (0: none), top-p (1: none)


@dataclass(frozen=True)
class Regime:
    """How laws are drawn: the spread of scores, how alike target and draft are, K, tokens that can come (0: all).

    Where the draft is ``unaware``, it proposes the others, too.
    """

    spread: float
    alike: float
    drafts: int
    live: int = 0
    unaware: bool = False


REGIMES = {
    "std": Regime(2.0, 0.8, 4),
    "near": Regime(1.5, 0.97, 1),
    "near4": Regime(1.5, 0.97, 4),
    "peaked": Regime(5.0, 0.6, 2),
    "far": Regime(2.0, -0.5, 1),
    "few": Regime(1.5, 0.0, 2, live=6),
    "equal": Regime(1.5, 1.0, 3),
    "dead": Regime(1.5, 0.8, 2, live=8, unaware=True),
}


def law(scores: Floats, options: Options) -> Floats:
    """Temperature, top-k, top-p of scores ``[P, V]``."""
    warm, top_k, top_p = options
    p = np.exp((scores - scores.max(-1, keepdims=True)) / warm)
    if top_k:
        p = np.where(p >= np.sort(p, -1)[:, [-top_k]], p, 0.0)
    p = p / p.sum(-1, keepdims=True)
    if top_p < 1:
        order = np.argsort(-p, -1)
        ranked = np.take_along_axis(p, order, -1)
        kept = np.empty_like(p, bool)
        np.put_along_axis(kept, order, ranked.cumsum(-1) - ranked < top_p, -1)
        p = np.where(kept, p, 0.0)
        p = p / p.sum(-1, keepdims=True)
    return np.asarray(p)


class World:
    """The laws of contexts: ``p`` and ``q [options, contexts, V]``, ``raw`` and ``raw_q [contexts, V]``."""

    def __init__(self, regime: Regime, options: tuple[Options, ...], size: int, contexts: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        one, other = rng.normal(size=(2, contexts, size))
        scores = [one, regime.alike * one + np.sqrt(1 - regime.alike**2) * other]
        if regime.live:
            dead = rng.random((contexts, size)).argsort(-1).argsort(-1) >= regime.live
            scores = [
                np.where(dead, -500.0, scores[0]),
                scores[1] if regime.unaware else np.where(dead, -500.0, scores[1]),
            ]
        target, draft = (regime.spread * score for score in scores)
        self.contexts, self.drafts, self.options = contexts, regime.drafts, options
        self.p, self.q = (np.stack([law(scores, one) for one in options]) for scores in (target, draft))
        self.raw, self.raw_q = law(target, (1.0, 0, 1.0)), law(draft, (1.0, 0, 1.0))

    def following(self, context: Ints, token: Ints) -> Ints:
        return np.asarray((context * 48271 + token * 7919 + 12345) * 69621 % 2147483647 % self.contexts)


@dataclass
class Noise:
    """Random numbers of rows; those named in ``shared`` are the same for all rows of a group, or, with ``repeated``,
    in every round."""

    rng: np.random.Generator
    groups: Ints
    shared: frozenset[str] = frozenset()
    repeated: bool = False
    kept: dict[tuple[str, int], Floats] = field(default_factory=dict)

    def uniform(self, name: str, column: int, rows: Ints, size: int = 0) -> Floats:
        """``[rows]``, or ``[rows, size]`` where there is one."""
        shape = (size,) if size else ()
        if self.repeated:
            if (name, column) not in self.kept:
                self.kept[name, column] = self.rng.random((len(self.groups), *shape))
            return self.kept[name, column][rows]
        if name in self.shared:
            return self.rng.random((int(self.groups.max()) + 1, *shape))[self.groups[rows]]
        return self.rng.random((len(rows), *shape))


def draw(chances: Floats, uniforms: Floats) -> Ints:
    """By the inverse distribution function; chances need not sum to 1."""
    sums = chances.cumsum(-1)
    return np.asarray((sums <= uniforms[:, None] * sums[:, -1:]).sum(-1))


class Column:
    """What a sampler sees at one draft column of the rows that are verified there."""

    def __init__(self, world: World, noise: Noise, rows: Ints, option: Ints, context: Ints, number: int) -> None:
        self.world, self.noise, self.rows, self.option, self.context = world, noise, rows, option, context
        self.number = number
        self.p, self.q = world.p[option, context], world.q[option, context]
        self.raw, self.raw_q = world.raw[context], world.raw_q[context]
        self.index = np.arange(len(rows))

    def uniform(self, name: str, size: int = 0) -> Floats:
        return self.noise.uniform(name, self.number, self.rows, size)

    def after(self, token: Ints) -> Column:
        """The column after this one, in the context that the token makes."""
        context = self.world.following(self.context, token)
        return Column(self.world, self.noise, self.rows, self.option, context, self.number + 1)


Verify = Callable[[Column], tuple[Ints, Bools]]
Bonus = Callable[[Column, Column], Ints]  # at the last column, and the one before it
Residual = Callable[[Column, Ints], Floats]
Ratio = Callable[[Column, Ints], Floats]


def positive(p: Floats, q: Floats) -> Floats:
    """``(p - q)+``; p where nothing is left."""
    rest = np.maximum(p - q, 0.0)
    return np.where(rest.sum(-1, keepdims=True) > 1e-14, rest, p)


def speculative(
    drafted: Callable[[Column], Floats] = lambda s: s.q,
    ratio: Ratio = lambda s, d: s.p[s.index, d] / s.q[s.index, d],
    residual: Residual = lambda s, d: positive(s.p, s.q),
    coin: Callable[[Column], Floats] = lambda s: s.uniform("coin"),
) -> Verify:
    """Rejection sampling: d is drawn, accepted where the coin is below the ratio, else drawn from the residual."""

    def verify(s: Column) -> tuple[Ints, Bools]:
        d = draw(drafted(s), s.uniform("draft"))
        with np.errstate(divide="ignore"):
            accepted = coin(s) < ratio(s, d)
        return np.where(accepted, d, draw(residual(s, d), s.uniform("correction"))), accepted

    return verify


def bonus_of(chances: Callable[[Column], Floats]) -> Bonus:
    return lambda s, before: draw(chances(s), s.uniform("bonus"))


RIGHT_BONUS = bonus_of(lambda s: s.p)


@dataclass(frozen=True)
class Sampler:
    """A decoder: how a column is verified, how the bonus is drawn, and which random numbers it shares."""

    verify: Verify
    bonus: Bonus = RIGHT_BONUS
    shared: tuple[str, ...] = ()
    repeated: bool = False
    drafts: int | None = None
    option_of_row_0: bool = False
    first: Callable[[Column], Ints] | None = None
    block: bool = False


def decode(
    sampler: Sampler, world: World, option: Ints, context: Ints, groups: Ints, length: int, rng: np.random.Generator
) -> Ints:
    """The tokens ``[rows, length]`` of rows that start in contexts."""
    rows = len(option)
    noise = Noise(rng, groups, frozenset(sampler.shared), sampler.repeated)
    drafts = world.drafts if sampler.drafts is None else sampler.drafts
    out = np.zeros((rows, length + drafts + 1), np.int64)
    done = np.zeros(rows, np.int64)
    context = context.copy()
    if sampler.option_of_row_0:
        option = option[np.searchsorted(groups, groups)]
    if sampler.first:
        s = Column(world, noise, np.arange(rows), option, context, -1)
        out[:, 0], done[:] = sampler.first(s), 1
        context = world.following(context, out[:, 0])
    while (done < length).any():
        going = np.flatnonzero(done < length)
        s = before = Column(world, noise, going, option[going], context[going], 0)
        if sampler.block:
            _block(s, drafts, out, done, context)
            continue
        for _ in range(drafts):
            token, accepted = sampler.verify(s)
            _emit(s, token, out, done, context)
            going = s.rows[accepted]
            number = s.number + 1
            before = Column(world, noise, going, s.option[accepted], s.context[accepted], s.number)
            s = Column(world, noise, going, option[going], context[going], number)
            if not len(going):
                break
        if len(s.rows):
            _emit(s, sampler.bonus(s, before), out, done, context)
    return out[:, :length]


def _emit(s: Column, token: Ints, out: Ints, done: Ints, context: Ints) -> None:
    out[s.rows, done[s.rows]] = token
    done[s.rows] += 1
    context[s.rows] = s.world.following(s.context, token)


def _block(first: Column, drafts: int, out: Ints, done: Ints, context: Ints) -> None:
    """One round of block verification (Sun and others, 2024, https://arxiv.org/abs/2403.10444, algorithm 2)."""
    columns, tokens = [first], []
    share = [np.ones(len(first.rows))]
    for _ in range(drafts):
        s = columns[-1]
        tokens.append(draw(s.q, s.uniform("draft")))
        share.append(np.minimum(share[-1] * s.p[s.index, tokens[-1]] / s.q[s.index, tokens[-1]], 1.0))
        columns.append(s.after(tokens[-1]))
    kept = np.zeros(len(first.rows), np.int64)
    for i in range(1, drafts + 1):
        s, weight = columns[i], share[i]
        rest = np.maximum(weight[:, None] * s.p - s.q, 0).sum(-1)
        chance = weight if i == drafts else rest / np.maximum(rest + 1 - weight, 1e-300)
        kept = np.where(s.uniform("coin") < chance, i, kept)
    for i in range(drafts + 1):
        ends = np.flatnonzero(kept == i)
        s, weight = columns[i], share[i][:, None]
        last = s.p if i == drafts else positive(weight * s.p, s.q)
        final = draw(last, s.uniform("correction"))
        for row in ends:
            block = [*(int(tokens[j][row]) for j in range(i)), int(final[row])][: out.shape[1] - done[first.rows[row]]]
            at = done[first.rows[row]]
            out[first.rows[row], at : at + len(block)] = block
            done[first.rows[row]] += len(block)
        context[s.rows[ends]] = s.world.following(s.context[ends], final[ends])


def as_case(
    world: World, option: Ints, context: Ints, tokens: Ints, *, twin: bool, skipping: bool = True
) -> list[SampledRow]:
    """Rows ``[B]`` of a case with the laws at their own prefixes; they end at token 0. Row 1 may be row 0's twin."""
    rows: list[SampledRow] = []
    for number, line in enumerate(tokens):
        ends = np.flatnonzero(line == 0)
        line = line[: ends[0] + 1] if len(ends) else line
        at = np.empty(len(line), np.int64)
        at[:1] = context[number]
        for t in range(1, len(line)):
            at[t] = world.following(at[t - 1], line[t - 1])
        one = int(option[number])
        skip = (at % 50 == 0) & skipping
        laws = world.p[one, at], world.q[one, at], world.raw[at]
        of_twin = 0 if twin and number == 1 else None
        rows.append(SampledRow(line, *laws, skip, None, of_twin, first_row=world.p[int(option[0]), at]))
    return rows
