"""Rows of a model that rounds, judged as a gate judges a server: by gaps, with the model's own choices as the control.

The model scores each row alone, in one call: how many nats does each token lie below its own choice? The control are
its choices at the same places, behind the same tokens, where it computes otherwise: in a batch with the other rows, and
some tokens at a time with a cache. `eqcheck.transparent.truth.rounding_evidence` has the bets and the proof of their
bound. No padding is ever seen, and a cache that changes scores by more than `BROKEN` is no control: what a user broke
there must not count as noise. Nothing is compared in another dtype.

These calls may agree to the last bit, although a call of another shape does not: how a kernel adds up depends on the
machine and the shape, and a server may use any. And where experts are chosen by their scores, rounding exchanges an
expert at a few places of a row and moves scores by nats there, which a control at other places does not show. So before
a token counts, the row is scored again with every result rounded otherwise at random (`rounded_otherwise`). That is
stochastic arithmetic, which numerical analysis measures rounding by (Vignes, Numerical Algorithms 37, 2004). A token
counts only if its gap is more than `ROOM` times what this changes that very gap by. That only lowers gaps of rows that
are judged, and no threshold, so a token somewhere else counts as before.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

import torch

from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.statements import power_of_ten, state
from eqcheck.core.result.outcome import RowVerdict, Verdict
from eqcheck.transparent.truth.generation import GENERATED, WITH, WITHOUT, Alone, Way, chosen
from eqcheck.transparent.truth.rounding_evidence import BROKEN, CROSSES, ROOM, Exceedances, step

LIKELY = 20  # tokens of a place whose scores are compared between two ways to compute them
PIECES: tuple[int, ...] = (1, 4)  # tokens of a call with a cache, in turn: a decode, and one that verifies drafts
BATCH = 8  # rows
DRAWS = 4  # calls of a batch of copies in which rounding is drawn
# An expert that is exchanged in a share q of all computations is missed in all n copies with a chance of q (1 - q)^n,
# which is below 1/(e n) for any q: 1 in 87 at a place with the worst q, and most places are far from it.
SMALL = 10**7  # parameters of a model that one thread computes
_Ids = Sequence[int]


def coarse(target: Any) -> bool:
    """Return whether a target computes in less than float32."""
    dtype = getattr(target, "dtype", None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize < 4


class Measured(NamedTuple):
    """Hold the gap of each token of a row as far as a right row may go, and the target's own choice at its place."""

    gaps: list[float]
    choices: list[int]

    def differing(self, row: _Ids) -> list[int]:
        """Return the places where a row has another token than the target's own choice."""
        return [at for at, (own, got) in enumerate(zip(self.choices, row, strict=False)) if own != got]


@contextmanager
def calmly(target: Any) -> Iterator[None]:
    """Compute a small model on one thread.

    Its tensors are too small to be shared out: on a busy machine the threads wait for each other many times longer
    than they compute.
    """
    parameters = getattr(target, "parameters", None)
    small = parameters is not None and sum(one.numel() for one in parameters()) <= SMALL
    before = torch.get_num_threads()
    try:
        if small and before > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def rounded_otherwise(target: Any, seed: int) -> Iterator[None]:
    """Round what each module of a target computes up or down at random, by at most one unit in the last place.

    Another order of additions changes a result by as much. Zeros, infinities and numbers of other dtypes stay.
    """
    chance: dict[torch.device, torch.Generator] = {}

    def other(value: Any, given: tuple[Any, ...]) -> Any:
        if type(value) is tuple:
            return tuple(other(one, given) for one in value)
        if not isinstance(value, torch.Tensor) or value.dtype != target.dtype or any(value is one for one in given):
            return value
        device = value.device
        if device not in chance:
            chance[device] = torch.Generator(device).manual_seed(seed)
        way = torch.randint(-1, 2, value.shape, generator=chance[device], device=device)
        return (value.float() * (1 + way * (torch.finfo(value.dtype).eps / 2))).to(value.dtype)

    hooks = [
        module.register_forward_hook(lambda _, given, value: other(value, given))
        for module in target.modules()
        if not isinstance(module, torch.nn.Embedding)  # which looks up, and computes nothing
        and (next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class RowGaps:
    """The bets on rows of one model, over all that it is asked. ``threshold`` is in nats.

    A row that comes again counts once, and so does one that is the same up to its first token that counts.
    """

    def __init__(self, target: Any, alone: Alone) -> None:
        self._target, self._alone, self._bets = target, alone, Exceedances()
        self._seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self._highest = 0.0
        self._noise: dict[tuple[tuple[int, ...], tuple[int, ...]], list[torch.Tensor]] = {}
        # Sizes that hold, of which the first is used. A recurrent state takes one token at a time: with several at once
        # many models begin anew, which changes scores by less than `BROKEN` where they are flat.
        self._pieces = [(1,)] if getattr(target, "_is_stateful", False) else [PIECES, (1,)]

    @property
    def threshold(self) -> float:
        """A gap beyond it counts."""
        return self._bets.threshold

    def verdict(self, rows: tuple[RowVerdict, ...], said: Explanation, measured: Sequence[Measured]) -> Verdict:
        """The verdict on rows with tokens that count, ``inconclusive`` as long as the evidence does not decide.

        ``said`` is told of them; their tokens were ``measured``.
        """
        assert said.row is not None
        known = state(
            "beyond-noise",
            gap=f"{max(measured[said.row].gaps, default=0.0):.3g}",
            threshold=f"{self.threshold:.3g}",
            exceeding=self._bets.exceeding,
            counted=len(self._bets.gaps),
            log10=f"{self._highest / math.log(10):.1f}",
            weight=power_of_ten(self._highest / math.log(10)),
        )
        status = "violation" if self._highest >= math.log(CROSSES) else "inconclusive"
        return Verdict(status, rows, replace(said, detail=known.detail, facts=known.facts))

    def measure(self, prompt: _Ids, row: _Ids) -> Measured:
        """Measure the tokens of a row without counting it."""
        laws, _ = self._way(prompt, tuple(row))
        return Measured(self._unexplained(prompt, tuple(row), laws), laws.argmax(-1).tolist())

    def add(self, prompts: Sequence[_Ids], rows: Sequence[_Ids], limit: int, eos: _Ids) -> list[Measured]:
        """Count rows of new tokens, as far as a right row may go, and measure these tokens."""
        kept = [within(row, limit, eos) for row in rows]
        ways = [self._way(prompt, row) for prompt, row in zip(prompts, kept, strict=True)]
        laws = [its for its, _ in ways]
        gaps = [self._unexplained(*each) for each in zip(prompts, kept, laws, strict=True)]
        new, before = list[int](), self.threshold
        # Each beginning counts once: the same row decoded again brings the same rounding, so it would be one piece of
        # evidence multiplied.
        for at, (prompt, row) in enumerate(zip(prompts, kept, strict=True)):
            first = next((place for place, gap in enumerate(gaps[at]) if gap > before), len(row))
            name = tuple(prompt), row[: first + 1]
            new += [at] if row and name not in self._seen else []
            self._seen.add(name)
        if new:
            own = [max(gaps[at]) for at in new]
            self._count(own, [prompts[at] for at in new], [kept[at] for at in new], [ways[at] for at in new])
        return [Measured(own, its.argmax(-1).tolist()) for own, its in zip(gaps, laws, strict=True)]

    def _way(self, prompt: _Ids, row: tuple[int, ...]) -> tuple[torch.Tensor, Way | None]:
        """The laws of a row, and the way in which it was fed token by token; None where one call tells it.

        A row far from them may be near those of another way to generate it alone, such as with a cache.
        """
        # One call for the whole row is the cheapest and, where lengths change nothing, right for each prefix. Only a
        # row that is far from it is fed in other ways; each that comes nearer by half is believed, so that a decoder is
        # not accused of what the model itself does with a cache.
        whole = self._alone.whole(prompt, row)
        if not row:
            return torch.zeros(0, self._alone.scores(prompt).shape[-1]), None
        told = self._alone.laws(prompt, row, WITHOUT) if whole is None else whole[len(prompt) - 1 :][: len(row)]
        assert told is not None  # without a cache the target always answers
        for at in told.amax(-1).isnan().nonzero()[:1, 0].tolist():  # which would count as no gap at all
            chosen(None, len(prompt) - 1 + at)
        nearest: tuple[torch.Tensor, Way | None] = _logs(told), WITHOUT if whole is None else None
        plain, gaps = nearest[0], _gaps(nearest[0], torch.tensor(row))
        least = max(gaps)
        tried = (GENERATED, WITH, *self._alone.remembered(prompt)) if least > self.threshold or whole is None else ()
        for way in tried:
            if (told := self._alone.laws(prompt, row, way)) is None:
                if self._alone.generated(prompt, len(row), (), way) == row and least > self.threshold:
                    if least > BROKEN:
                        self._alone.part(prompt, way, next(at for at, gap in enumerate(gaps) if gap > BROKEN))
                    own = torch.tensor(row)[:, None]  # the laws are not known, but what they choose is
                    return plain.scatter(1, own, plain.amax(-1, keepdim=True)), way
                continue
            laws = _logs(told)
            changes = (plain - laws).gather(1, plain.topk(2).indices).abs().nan_to_num(nan=0.0).amax(-1).tolist()
            apart = next((at for at, change in enumerate(changes) if change > BROKEN), None)
            nearer = (gap := max(_gaps(laws, torch.tensor(row)))) < least / 2
            if nearer:
                nearest, least = (laws, way), gap
            if apart is not None and (nearer or (whole is None and way == WITH)):
                self._alone.part(prompt, way, apart)
        return nearest

    def _unexplained(self, prompt: _Ids, row: tuple[int, ...], laws: torch.Tensor) -> list[float]:
        """The gaps of a row, 0 where one would count and rounding explains it."""
        if not row:
            return []
        gaps, threshold = _gaps(laws, torch.tensor(row)), self.threshold
        for changes in self._changes(prompt, row) if max(gaps) > threshold else ():
            gaps = [0.0 if threshold < gap <= ROOM * change else gap for gap, change in zip(gaps, changes, strict=True)]
            if max(gaps) <= threshold:
                break
        return gaps

    def _changes(self, prompt: _Ids, row: tuple[int, ...]) -> Iterator[list[float]]:
        """Yield by how much rounding changes the gap of each token of a row, at most, each time after some more calls.

        They are kept, since a row that is wrong is measured several times.
        """
        if not isinstance(self._target, torch.nn.Module):
            return
        known, whole = self._noise.setdefault((tuple(prompt), row), []), [*prompt, *row]
        tokens, exact = torch.tensor(row), None
        for draw in range(DRAWS):
            if draw == len(known):
                if exact is None:
                    exact = torch.tensor(_gaps(_from(self._call([whole])[0], prompt, row), tokens))
                with rounded_otherwise(self._target, draw):
                    copies = self._call([whole] * BATCH)
                told = torch.tensor([_gaps(_from(its, prompt, row), tokens) for its in copies])
                known.append((told - exact).abs().nan_to_num(nan=0.0).amax(0))
            yield torch.stack(known[: draw + 1]).amax(0).tolist()

    def _count(
        self,
        own: Sequence[float],
        prompts: Sequence[_Ids],
        rows: Sequence[tuple[int, ...]],
        ways: Sequence[tuple[torch.Tensor, Way | None]],
    ) -> None:
        laws = [its for its, _ in ways]
        others = self._controls(prompts, rows, ways)
        controls, floor = list[list[float]](), self._bets.floor
        for its, other in zip(laws, others, strict=True):
            used = [way for way in other if way is not None]
            controls.append([max(_gaps(its, way.argmax(-1))) for way in used])
            likely, leads = its.topk(min(LIKELY, its.shape[-1])).indices, its.topk(2).values
            changes = [float((its - way).gather(1, likely).abs().nan_to_num(nan=0.0).max()) for way in used]
            floor = max(floor, step((leads[:, 0] - leads[:, 1]).tolist()), *changes)
        self._bets.add_requests(zip(own, controls, strict=True))  # before this control is counted
        self._bets.floor = floor
        self._bets.compare_with(gap for each in controls for gap in each)
        self._bets.add(own)
        self._highest = max(self._highest, self._bets.log_evidence)

    def _controls(
        self, prompts: Sequence[_Ids], rows: Sequence[tuple[int, ...]], ways: Sequence[tuple[torch.Tensor, Way | None]]
    ) -> list[list[torch.Tensor | None]]:
        """The laws of rows as the model computes them otherwise; where a length changes them, beside a copy alone."""
        # Controls are computed as unlike the row's own way as a right decoder may: beside other rows, and in pieces
        # with a cache. Their gaps are the noise that wrong tokens are held against.
        controls: list[list[torch.Tensor | None]] = [[] for _ in rows]
        for at, (prompt, row, (its, way)) in enumerate(zip(prompts, rows, ways, strict=True)):
            if way is not None:
                told = self._alone.laws(prompt, row, way, copies=2)
                controls[at].append(its if told is None else _logs(told))  # of an unknown law no noise is known
        one = [at for at, (_, way) in enumerate(ways) if way is None]
        if one:
            batch = self._in_a_batch([prompts[at] for at in one], [rows[at] for at in one])
            for at, its in zip(one, batch, strict=True):
                controls[at] += [its, self._in_pieces(prompts[at], rows[at], ways[at][0])]
        return controls

    def _in_a_batch(self, prompts: Sequence[_Ids], rows: Sequence[_Ids]) -> list[torch.Tensor]:
        """The laws of rows side by side, with other tokens behind the shorter ones: a causal model sees none of them.

        A row alone stands beside itself.
        """
        wholes = [[*prompt, *row] for prompt, row in zip(prompts, rows, strict=True)]
        if self._alone.ropes:  # a longer row would change the scores of the others
            twice = [self._call([whole, whole])[0] for whole in wholes]
            return [_from(*its) for its in zip(twice, prompts, rows, strict=True)]
        longest, laws = max(map(len, wholes)), list[torch.Tensor]()
        filled = [[*whole, *([whole[0]] * (longest - len(whole)))] for whole in wholes]
        for first in range(0, len(filled), BATCH):
            part = slice(first, first + BATCH)
            logits = self._call(filled[part] if len(filled[part]) > 1 else filled[part] * 2)
            laws += [_from(*its) for its in zip(logits, prompts[part], rows[part], strict=False)]
        return laws

    def _in_pieces(self, prompt: _Ids, row: _Ids, exact: torch.Tensor) -> torch.Tensor | None:
        """The laws of a row that is fed some tokens at a time, with a cache; None where there is none that holds."""
        changed = 0.0
        while self._pieces:
            logits = in_pieces(self._target, prompt, row, self._pieces[0])
            if logits is not None:
                laws = _from(logits, prompt, row)
                changed = float((exact - laws).gather(1, exact.topk(2).indices).abs().max())
                if changed <= BROKEN:
                    return laws
            del self._pieces[0]
        if changed:
            warnings.warn(
                f"target: with its cache a score is {changed:.2g} nats off its score in one call, so the cache is no "
                "measure of the noise",
                stacklevel=6,
            )
        return None

    @torch.no_grad()
    def _call(self, rows: Sequence[_Ids]) -> Any:
        return self._target(input_ids=torch.tensor(rows, device=_device(self._target)), use_cache=False).logits


@torch.no_grad()
def in_pieces(target: Any, prompt: _Ids, row: _Ids, sizes: _Ids) -> torch.Tensor | None:
    """The logits ``[tokens, vocabulary]`` of a row that is fed so many tokens at a time with a cache behind its prompt.

    None where the model takes no cache, or returns none.
    """
    parts, cache, at, later, whole, size = list[torch.Tensor](), None, 0, cycle(sizes), [*prompt, *row], len(prompt)
    try:
        while at < len(whole):
            ids = torch.tensor([whole[at : at + size]], device=_device(target))
            told = target(input_ids=ids, use_cache=True, **cache_argument(target, cache))
            cache, at, size = cache_of(told), at + size, next(later)
            parts.append(told.logits[0])
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    return torch.cat(parts)


def within(row: _Ids, limit: int, eos: _Ids) -> tuple[int, ...]:
    """Return a row up to its first EOS, or to the limit.

    >>> within([5, 6, 9, 7], 8, [9]), within([5, 6, 7], 2, [9])
    ((5, 6, 9), (5, 6))
    """
    end = next((at + 1 for at, token in enumerate(row) if token in eos), limit)
    return tuple(row[: min(limit, end)])


def _device(target: Any) -> Any:
    return getattr(target, "device", "cpu")


def _from(logits: torch.Tensor, prompt: _Ids, row: _Ids) -> torch.Tensor:
    first = len(prompt) - 1
    return _logs(logits[first : first + len(row)])


def _logs(scores: torch.Tensor) -> torch.Tensor:
    return scores.float().log_softmax(-1).cpu()


def _gaps(laws: torch.Tensor, tokens: torch.Tensor) -> list[float]:
    """Return how much the model prefers its own choice to each token, in nats."""
    told = laws.gather(1, tokens.long()[:, None])[:, 0]
    return [float(gap) for gap in (laws.amax(-1) - told).nan_to_num(nan=0.0)]
