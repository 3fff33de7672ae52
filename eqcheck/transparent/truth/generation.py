"""Rows as a target generates them alone: without a cache or with one, and whether one call over a row tells it.

After each token of a causal model one call tells what follows, whatever stands behind. So one call over prompt and
output judges a whole row. Some models are not like that: a rope whose frequencies depend on the length rotates all
positions for the last one, and attention may look ahead. `Alone.whole` holds the call over a row against the call over
its prompt; where scores differ by more than rounding, the row is judged token by token, as ``generate`` makes it.

Such a model has more than one answer of its own. Without a cache all positions are rotated anew for each token; with a
cache each stays as it was written. A dynamic rope also keeps the frequencies of the longest row since the last short
one. `Way` names these answers. Each of them is what the target generates alone, so a row that is one of them is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.core.explanation.statements import Statement, state
from eqcheck.core.result.outcome import common_start
from eqcheck.transparent.real.loading import GROWS, SWITCHES, Rope, ropes_of
from eqcheck.transparent.truth.rounding_evidence import BROKEN

_Ids = Sequence[int]
_Choices = Sequence[int | None]
_Row = tuple[int, ...]
_HELD = 16  # the last positions of a prompt whose scores are compared: all of them may be too large to keep twice
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How far scores may be off, as a share of the greatest one. Too little costs time and no verdict."""


class Way(NamedTuple):
    """One way in which a target generates a row: by its calls or its ``generate``; after a row of ``after`` tokens."""

    cached: bool = False
    generate: bool = False
    after: int = 0


WITHOUT, GENERATED, WITH = Way(), Way(generate=True), Way(cached=True, generate=True)
"""By calls without a cache; by ``generate``, which may pass other position ids than a call has; with a cache."""


@dataclass(frozen=True)
class Expected:
    """The row that a target generates alone in the way that agrees longest with an observed one.

    ``apart`` is the first new token at which it answers otherwise with a cache than without, None where it does not, or
    where that was not asked.
    """

    tokens: tuple[int, ...]
    way: Way = WITHOUT
    apart: int | None = None


class Alone:
    """The answers of one target for rows alone; its findings on a batch of rows are kept from `begin` to `note`."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._ropes = ropes_of(target.config)
        self._rounding = _ROUNDING.get(getattr(target, "dtype", None) or torch.float64)
        self._repeats = False
        self._lengths: tuple[tuple[int, int], ...] = ()
        self._apart: dict[tuple[int, ...], tuple[Way, int]] = {}

    @property
    def ropes(self) -> str:
        """The types of the target's ropes that depend on the length of what one call feeds; empty without one."""
        return " and ".join(dict.fromkeys(rope.kind for rope in self._ropes))

    # One call.

    def scores(self, tokens: _Ids) -> torch.Tensor:
        """The scores ``[tokens, vocabulary]`` of one call without a cache."""
        return self.called([list(tokens)])[0]

    @torch.no_grad()
    def called(self, rows: list[list[int]]) -> torch.Tensor:
        """The scores ``[rows, tokens, vocabulary]`` of one call without a cache; `UsageError` where there are none."""
        ids = torch.tensor(rows, device=getattr(self._target, "device", "cpu"))
        try:
            logits = self._target(input_ids=ids, use_cache=False).logits
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise UsageError(
                f"target: expected a causal LM that takes input_ids alone, and for {ids.shape[1]} tokens it raised "
                f"{type(error).__name__}: {one_line(str(error), 200)}"
            ) from error
        if getattr(logits, "shape", ())[:2] != ids.shape or logits.dim() != 3:
            got = tuple(getattr(logits, "shape", ())) or type(logits).__name__
            raise UsageError(f"target: expected logits of each token, {(*ids.shape, 'vocabulary')}, got {got}")
        scores: torch.Tensor = logits
        return scores

    def forget(self, token: int) -> None:
        """Feed one token, after which a dynamic rope has the frequencies that it began with."""
        with suppress(UsageError):  # a model that takes no single token has its say where it is asked for answers
            self.called([[token]])

    # One call over prompt and row.

    def whole(self, prompt: _Ids, row: _Ids) -> torch.Tensor | None:
        """Return the scores ``[tokens, vocabulary]`` of one call over prompt and row; None where they tell no row.

        They tell it unless scores of the prompt depend on what stands behind it. Raises `UsageError` for a target whose
        scores change from call to call.
        """
        length = len(prompt) + len(row)
        if any(rope.original < length and not _settled(rope, len(prompt)) for rope in self._ropes):
            return None
        self.forget(prompt[0])
        alone, whole = self.scores(prompt)[-_HELD:], self.scores([*prompt, *row])
        same = self._same(alone, whole[: len(prompt)][-_HELD:])
        if not (same and self._repeats):
            self.forget(prompt[0])
            self._repeats = self._repeated(alone, self.scores(prompt)[-_HELD:])
        return whole if same else None

    def _repeated(self, first: torch.Tensor, again: torch.Tensor) -> bool:
        """Return True where two calls with the same tokens agree; `UsageError` where they do not."""
        if self._same(first, again):
            return True
        off = float((first - again).abs().nan_to_num(nan=0.0).max())
        raise UsageError(
            f"target: expected the same logits for the same tokens, got some that are {off:.2g} apart in two calls, so "
            "no output can be judged; look for random numbers, or for a state that calls leave"
        )

    def _same(self, former: torch.Tensor, other: torch.Tensor) -> bool:
        counts = former.isfinite() & other.isfinite()
        if not bool(counts.any()):
            return True
        if self._rounding is None:  # likely scores, in nats: below float32 rounding moves the others far
            former, other = (scores.float().log_softmax(-1) for scores in (former, other))
            likely = former.topk(2).indices
            return float((former - other).gather(1, likely).abs().nan_to_num(nan=0.0).max()) <= BROKEN
        former, other = former[counts].double(), other[counts].double()
        return float((former - other).abs().max()) <= self._rounding * float(former.abs().max())

    # Rows.

    def begin(self, prompts: Sequence[_Ids], rows: Sequence[_Ids]) -> None:
        """Begin with a batch of rows: the lengths of those before a row may stay in a dynamic rope."""
        self._lengths = tuple((len(prompt), len(prompt) + len(row)) for prompt, row in zip(prompts, rows, strict=True))
        self._apart.clear()

    def expected(self, prompt: _Ids, observed: _Ids, limit: int, eos: _Ids, rounds: bool = False) -> Expected:
        """Return the row that the target generates alone, in the way that agrees longest with the observed one.

        ``rounds``: rounding decides near-ties, so a cache that answers otherwise shows nothing by itself.
        """
        # The cheapest way that explains the observed row is taken: one call, then token by token without a cache, then
        # the other ways. Each may only free the decoder: a row is accused after all of them disagree with it, and
        # after the model has given the same scores twice.
        kept = observed[:limit]
        whole = self.whole(prompt, kept)
        steady = whole is not None
        known = [] if whole is None else _followed(_best(whole), prompt, kept, eos)
        plain = self.generated(prompt, limit, eos, known=known)  # one call does not accuse: it goes on token by token
        assert plain is not None
        first = common_start(plain, observed)
        if steady and first in (len(plain), len(observed)):
            return Expected(plain)
        if steady and rounds:  # rounding parts ways, too, so nothing less than the whole row shows another one
            rows = (self.generated(prompt, limit, eos, way, along=kept, least=len(kept)) for way in (GENERATED, WITH))
            return Expected(next((row for row in rows if row is not None), plain))
        nearest, ways = Expected(plain), (GENERATED, WITH, *self.remembered(prompt))
        if not steady:
            cached = self.generated(prompt, limit, eos, WITH)
            nearest = Expected(plain, WITH, None if cached in (None, plain) else common_start(plain, cached or ()))
        for way in ways if first < limit and plain != tuple(observed) else ():
            row = self.generated(prompt, limit, eos, way, along=observed, least=first + 1)
            if row is not None and common_start(row, observed) > first:
                nearest = Expected(row, way, common_start(plain, row))
                first = common_start(row, observed)
            if nearest.tokens == tuple(observed):
                break
        if nearest.apart is not None:
            self.part(prompt, nearest.way, nearest.apart)
        if nearest.tokens != tuple(observed):  # before a row is accused: some hash at random, and only from a length on
            text = [*prompt, *nearest.tokens]
            self.forget(prompt[0])
            before = self.scores(text)
            self.forget(prompt[0])
            self._repeated(before, self.scores(text))
        return nearest

    def remembered(self, prompt: _Ids) -> list[Way]:
        """Return the ways after longer rows: what a dynamic rope keeps where the rows came in order, once or again."""
        growing = [rope.original for rope in self._ropes if rope.kind == GROWS]
        if not growing:
            return []
        original, kept, lengths = min(growing), 0, list[int]()
        for begin, end in self._lengths * 2:
            kept = 0 if begin < original else kept
            lengths += [kept] if begin == len(prompt) and kept > begin else []
            kept = max(kept, end - 1)  # the last token is not fed
        return [Way(cached, True, after) for after in dict.fromkeys(lengths) for cached in (False, True)]

    def generated(
        self,
        prompt: _Ids,
        limit: int,
        eos: _Ids,
        way: Way = WITHOUT,
        *,
        known: _Ids = (),
        along: _Ids = (),
        least: int = 0,
    ) -> _Row | None:
        """Return the new tokens of a row alone, with the EOS that ends it; those that are ``known`` are not asked for.

        None where the first ``least`` tokens are not those of ``along``, or where the target cannot be asked that way.
        """
        if way.generate and hasattr(self._target, "generate"):
            return self._by_generate(prompt, limit, eos, way, tuple(along[:least]))
        return self._by_calls(prompt, limit, eos, way, list(known), along, least)

    def _by_generate(self, prompt: _Ids, limit: int, eos: _Ids, way: Way, start: tuple[int, ...]) -> _Row | None:
        """The row of `generate`, with no option that a generation config of the target has; it is asked for the start
        first, since most rows are wrong in the same way with a cache and without."""
        from transformers import GenerationConfig

        ids = torch.tensor([list(prompt)], device=getattr(self._target, "device", "cpu"))
        options = {"do_sample": False, "use_cache": way.cached, "pad_token_id": 0, "eos_token_id": list(eos) or None}
        kept, row = getattr(self._target, "generation_config", None), None
        self._target.generation_config = GenerationConfig()
        try:
            for length in dict.fromkeys((len(start) or limit, limit)):
                self._begin(prompt[0], way)
                told = self._target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **options)
                row = tuple(told[0, len(prompt) :].tolist())
                if row[: len(start)] != start:
                    return None
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model whose `generate` fails is judged by its calls
            return None
        finally:
            self._target.generation_config = kept
        return row

    def _by_calls(
        self, prompt: _Ids, limit: int, eos: _Ids, way: Way, row: list[int], along: _Ids, least: int
    ) -> _Row | None:
        if way.generate and not way.cached and not way.after:
            return None  # the same as without
        text = self._text([*prompt, *row], way)
        while len(row) < limit and not (row and row[-1] in eos):
            scores = text.scores()
            choice = None if scores is None else _best(scores)[0]
            if choice is None and way != WITHOUT:
                return None
            row.append(chosen(choice, len(text.tokens) - 1))
            if len(row) <= least and tuple(row) != tuple(along[: len(row)]):
                return None
            text.tokens.append(row[-1])
        return tuple(row) if len(row) >= least else None

    def laws(self, prompt: _Ids, row: _Ids, way: Way, copies: int = 1) -> torch.Tensor | None:
        """The scores ``[tokens, vocabulary]`` from which each token of a row was to be chosen, asked one at a time.

        ``copies`` of the row stand in one batch. None where the target cannot be asked that way, as where its
        ``generate`` does something else than call it again and again.
        """
        if way.generate:
            count = len(row)
            if self.generated(prompt, count, (), way) != self._by_calls(prompt, count, (), way, [], (), 0):
                return None
        text, laws = self._text(prompt, way, copies), list[torch.Tensor]()
        for token in row:
            if (scores := text.scores()) is None:
                return None
            laws.append(scores[0])
            text.tokens.append(token)
        return torch.stack(laws) if laws else None

    def _text(self, tokens: _Ids, way: Way, copies: int = 1) -> _Text:
        self._begin(tokens[0], way)
        return _Text(self, list(tokens), way.cached, copies)

    def _begin(self, token: int, way: Way) -> None:
        self.forget(token)
        if way.after:
            self.called([[token] * way.after])

    @torch.no_grad()
    def with_cache(self, rows: list[list[int]], cache: Any) -> tuple[torch.Tensor, Any] | None:
        """The scores after the last token of each row behind a cache, and the cache; None where there is none."""
        ids = torch.tensor(rows, device=getattr(self._target, "device", "cpu"))
        try:
            told = self._target(input_ids=ids, use_cache=True, **cache_argument(self._target, cache))
            kept = cache_of(told)
            return None if kept is None else (told.logits[:, -1], kept)
        except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None

    # The differences that are told.

    def part(self, prompt: _Ids, way: Way, index: int) -> None:
        """Keep that the target answers a row otherwise in one way than in another, from a new token on."""
        self._apart.setdefault(tuple(prompt), (way, index))

    def note(self, prompts: Sequence[_Ids]) -> Statement | None:
        """Say where a target has several answers of its own, and which rope is why; None where it has one."""
        row = next((row for row, prompt in enumerate(prompts) if tuple(prompt) in self._apart), None)
        if row is None:
            return None
        way, index = self._apart[tuple(prompts[row])]
        facts: dict[str, int | str] = {"row": row, "token_index": index}
        if way.after:
            return state("after-longer-rows", **facts, rope=GROWS, tokens=way.after)
        if self._ropes:
            return state("rope-by-length", **facts, rope=self.ropes)
        if not way.cached:
            return state("generate-answers-otherwise", **facts)
        return state("cache-answers-otherwise", **facts)


class _Text:
    """A text that is fed to a target token by token, with a cache or whole each time."""

    def __init__(self, alone: Alone, tokens: list[int], cached: bool, copies: int) -> None:
        self.tokens, self._alone, self._cached, self._copies = tokens, alone, cached, copies
        self._cache, self._fed = None, 0

    def scores(self) -> torch.Tensor | None:
        """The scores ``[copies, vocabulary]`` of the next token; None where the target has no cache."""
        rows = [self.tokens[self._fed :]] * self._copies
        if not self._cached:
            return self._alone.called(rows)[:, -1]
        answered = self._alone.with_cache(rows, self._cache)
        if answered is None:
            return None
        scores, self._cache = answered
        self._fed = len(self.tokens)
        return scores


def chosen(choice: int | None, position: int) -> int:
    """Return the choice at a position; `UsageError` where there is none, because of NaN."""
    if choice is None:
        raise UsageError(
            f"target: expected finite logits, got NaN or infinity at position {position}, so no output can be judged; "
            "compute in float32 or float64, and look for NaN in the weights"
        )
    return choice


def _best(scores: torch.Tensor) -> list[int | None]:
    finite = scores.amax(-1).isfinite()  # a NaN makes the greatest one NaN
    return [int(token) if fine else None for token, fine in zip(scores.argmax(-1), finite, strict=True)]


def _settled(rope: Rope, length: int) -> bool:
    """Return whether all that is longer than a length has the same frequencies."""
    return rope.kind == SWITCHES and length > rope.original


def _followed(predicted: _Choices, prompt: _Ids, observed: _Ids, eos: _Ids) -> list[int]:
    """The observed tokens up to the first that one call did not choose, or that ends the row."""
    row = list[int]()
    for token in observed:
        position = len(prompt) + len(row) - 1
        if chosen(predicted[position], position) != token:
            break
        row.append(token)
        if token in eos:
            break
    return row
