"""The exact law of what a sampler emits: every outcome of its random numbers, each with its probability.

A source of random numbers that forks takes the place of the true one. A decode is repeated until every branch has been
taken; a coin forks where it is compared with a bound, a race where its winner is asked for. So a planted fault is known
to be one by a number, and a right sampler to be right, without any statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import torch

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.samplers.sampler_engine import Race, Randomness, Sampler, Uniform, engine_of, law_of
from eqcheck.contract.decoders import Request

Outputs = tuple[tuple[int, ...], ...]
NOTHING = 1e-13  # a branch less likely than this is rounding


class Fork:
    """One run: takes the branches of ``path``, then the first of each; the ``others`` are left to be taken."""

    def __init__(self, path: Sequence[int]) -> None:
        self._given, self.path, self.others = path, list[int](), list[list[int]]()
        self.weight = 1.0
        self.shared: dict[tuple[int, int], Any] = {}

    def choose(self, chances: Sequence[float]) -> int:
        """One of the outcomes with these probabilities."""
        live = [number for number, chance in enumerate(chances) if chance > NOTHING]
        if len(live) == 1:
            return live[0]
        at = len(self.path)
        if at < len(self._given):
            taken = self._given[at]
        else:
            taken = live[0]
            self.others += [[*self.path, other] for other in live[1:]]
        self.path.append(taken)
        self.weight *= chances[taken]
        return taken


class _Coin:
    """A number of [low, high): every comparison that is not decided yet forks, and leaves less of it."""

    def __init__(self, fork: Fork) -> None:
        self.fork, self.low, self.high = fork, 0.0, 1.0

    def __lt__(self, bound: float) -> bool:
        if not self.low < bound:  # nor is anything below what is no number
            return False
        bound = min(bound, self.high)
        share = (bound - self.low) / (self.high - self.low)
        below = self.fork.choose([share, 1 - share]) == 0
        self.low, self.high = (self.low, bound) if below else (bound, self.high)
        return below


class _Race(Race):
    """A race whose winner forks. It can be asked twice, by two laws; the second winner is likelier to be the first."""

    def __init__(self, fork: Fork) -> None:
        self.fork, self.asked = fork, list[tuple[list[float], int]]()

    def winner(self, law: torch.Tensor) -> int:
        chances = law.tolist()
        if len(self.asked) == 2:
            raise NotImplementedError("a race that is asked a third time")
        if self.asked:
            chances = second_winner(*self.asked[0], chances)
        self.asked.append((chances, self.fork.choose(chances)))
        return self.asked[-1][1]


def second_winner(q: Sequence[float], first: int, r: Sequence[float]) -> list[float]:
    """The law of who wins a race by the law ``r``, given who won it by the law ``q`` with the same times.

    Let t be the time of the ``first`` by q. Then the times by q of the others are later than t, and so token i arrives
    by r later than t q_i/r_i, at the rate r_i from there on; what is left is an integral over a = time/t.

    >>> second_winner([0.25, 0.75], 1, [0.25, 0.75])
    [0.0, 1.0]
    """
    others = [i for i, chance in enumerate(r) if chance > 0 and i != first]
    start = {i: q[i] / r[i] for i in others}
    end = q[first] / r[first] if r[first] > 0 else float("inf")

    def rate(at: float) -> float:
        return 1 + sum(max(0.0, at * r[i] - q[i]) for i in others)

    chances = [0.0] * len(r)
    if r[first] > 0:
        chances[first] = 1 / rate(end)
    for low, high in pairwise([*sorted({a for a in start.values() if a < end}), end]):
        running = [i for i in others if start[i] <= low]
        slope = sum(r[i] for i in running)
        until = 1 / rate(high) if high < float("inf") else 0.0
        for i in running:
            chances[i] += r[i] / slope * (1 / rate(low) - until)
    return chances


class _Forked(Randomness):
    """The random numbers of one seed in one run: the same seed gives the same numbers, none fresh ones."""

    def __init__(self, fork: Fork, seed: int | None) -> None:
        self.fork, self.seed, self.count = fork, seed, 0

    def uniform(self) -> Uniform:
        return cast(Uniform, self._next(_Coin(self.fork)))

    def race(self, size: int) -> Race:
        return cast(Race, self._next(_Race(self.fork)))

    def _next(self, fresh: Any) -> Any:
        self.count += 1
        return fresh if self.seed is None else self.fork.shared.setdefault((self.seed, self.count), fresh)


class Remembering:
    """A model that computes each input once."""

    def __init__(self, model: Any) -> None:
        self.model, self.known = model, dict[tuple[Any, ...], Any]()

    def __call__(self, **given: Any) -> Any:
        key = tuple((k, str(v.tolist()) if isinstance(v, torch.Tensor) else v) for k, v in sorted(given.items()))
        if key not in self.known:
            self.known[key] = SimpleNamespace(logits=self.model(**given).logits)
        return self.known[key]


def emitted_laws(scheme: type[Sampler], target: Any, draft: Any, request: Request) -> dict[Outputs, float]:
    """The probability of every answer of a sampler to a request."""
    engine = engine_of(scheme, "uncached")
    found: dict[Outputs, float] = {}
    for rows, weight in _runs(engine, target, draft, request):
        answer = tuple(tuple(row) for row in rows)
        found[answer] = found.get(answer, 0.0) + weight
    return found


def _runs(engine: type[Sampler], target: Any, draft: Any, request: Request) -> Iterator[tuple[Rows, float]]:
    pending: list[list[int]] = [[]]
    while pending:
        fork = Fork(pending.pop())
        enumerated = type(engine.__name__, (engine,), {"new_source": lambda self, seed, fork=fork: _Forked(fork, seed)})
        yield enumerated(target, draft, request).decode(), fork.weight
        pending += fork.others


def right_law(target: Any, request: Request, row: int) -> dict[tuple[int, ...], float]:
    """The probability of every answer to a row, if each token is drawn from the target's law."""
    options, prompt = request.rows[row], request.prompts[row]
    ended: dict[tuple[int, ...], float] = {}
    open_rows: dict[tuple[int, ...], float] = {(): 1.0}
    for number in range(request.max_new_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, weight in open_rows.items():
            scores = target(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0, -1:]
            for token, chance in enumerate(law_of(scores.double(), options)[0].tolist()):
                ends = token in request.eos_token_ids or number + 1 == request.max_new_tokens
                if chance:
                    (ended if ends else longer)[(*tokens, token)] = weight * chance
        open_rows = longer
    return ended


def distance(emitted: Mapping[Outputs, float], target: Any, request: Request, rows: Sequence[int]) -> float:
    """The total variation between the joint law of these rows' answers and the right one, in which rows are apart."""
    right: dict[Outputs, float] = {(): 1.0}
    for row in rows:
        law_of_row = right_law(target, request, row)
        right = {(*key, one): a * b for key, a in right.items() for one, b in law_of_row.items()}
    seen: dict[Outputs, float] = {}
    for outputs, weight in emitted.items():
        key = tuple(outputs[row] for row in rows)
        seen[key] = seen.get(key, 0.0) + weight
    return sum(abs(seen.get(key, 0.0) - right.get(key, 0.0)) for key in {*seen, *right}) / 2
