"""The verdict on an engine's rows; `eqcheck.transparent.truth.ties` has the policy on near-ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from eqcheck.contract.endings import EARLY
from eqcheck.contract.options import SCORING, RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.outcome import NearTie
from eqcheck.engines.checkpoints.continuations import FunctionTruth, ModelTruth, Truth, with_options
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.transparent.truth import ties
from eqcheck.transparent.truth.continuation import Logprobs, of_scores

ALL_KNOWN = ("", "full")  # checkpoints whose scores are all known, and not only those of the target's own tokens
# The scores of a built checkpoint have less noise in any dtype; margins are 1, and only penalties shrink them. Weights
# round the function's steps off, so scores differ from the function's in float64, too: by 0.018 at most.
BUILT_NOISE, _IN_FLOAT64 = 0.25, 0.03


@dataclass(frozen=True)
class RowJudgement:
    """One row: ``first`` is the index of the first wrong token or of a wrong end, None for a right row.

    ``expected`` is the target's token there, None where the row should have ended; ``ties`` are the
    near-ties before it; ``margin`` is by how much the target prefers its own token. ``end`` is the wrong end,
    see `RowOptions.end`.
    """

    row: int
    observed: tuple[int, ...]
    first: int | None = None
    expected: int | None = None
    ties: tuple[NearTie, ...] = ()
    margin: float = 0.0
    end: str = ""


class Judge:
    """Judges the rows of an engine that computes in ``dtype`` (a name of torch's).

    A row of a built checkpoint is right if it has the function's own tokens. Only where penalties move its scores, and
    for rows of the random checkpoint, there are near-ties.

    >>> from eqcheck.contract.decoders import RowOptions
    >>> case = EngineCase((EngineRow((1, 2, 3), RowOptions(max_new_tokens=4)),), checkpoint="full")
    >>> judge = Judge("bfloat16")
    >>> tokens = truth("full").row(case.rows[0])
    >>> judge.rows(case, [tokens])[0].first, judge.rows(case, [tokens[:2]])[0].first
    (None, 2)
    """

    def __init__(self, dtype: str) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.noise = _IN_FLOAT64 if dtype == "float64" else BUILT_NOISE

    def rows(self, case: EngineCase, outputs: Sequence[Sequence[int]]) -> list[RowJudgement]:
        """A judgement of each row. Rows are looked at together; one that seems wrong is judged alone."""
        kept = [output[: row.options.max_new_tokens] for row, output in zip(case.rows, outputs, strict=True)]
        alone = truth(case.checkpoint)
        together = alone.together(case.rows, kept)
        judgements = []
        bound: float | None = None
        for number, scores in enumerate(together):
            row, output = case.rows[number], tuple(outputs[number])
            seen = self._row(number, row, output, with_options(scores, row, kept[number]), 0.0)
            if seen.first is not None:
                bound = self._bound(case, kept, together) if bound is None else bound
                seen = self._row(number, row, output, alone.scores(row, kept[number]), bound)
            judgements.append(seen)
        return judgements

    def logprobs(self, case: EngineCase, row: int, output: Sequence[int]) -> Logprobs | None:
        """Return those of a row's tokens; None if several options change its distribution: engines apply some of them.

        On built checkpoints all the target's own tokens have about the same.
        """
        asked, options = case.rows[row], case.rows[row].options
        changing = [name for name, off in SCORING.items() if getattr(options, name) != off]
        if options.temperature or len(changing) > 1 or (options.changes_scores and options.min_new_tokens):
            return None
        scores, bound = self._scores(case.checkpoint, asked, output)
        own = of_scores(scores[: len(output)], output, bound)
        if not options.changes_scores:
            return own
        return own._replace(asked=of_scores(with_options(scores, asked, output)[: len(output)], output, bound).own)

    def prompt_logprobs(self, case: EngineCase, row: int) -> Logprobs | None:
        """Return those of a row's prompt tokens after the first; None if not all scores are known exactly."""
        first, *others = case.rows[row].prompt
        if checkpoint(case.checkpoint).kind not in ALL_KNOWN:
            return None
        scores, bound = self._scores(case.checkpoint, EngineRow((first,), RowOptions(len(others) + 1)), others)
        return of_scores(scores[: len(others)], others, bound)

    def _scores(self, name: str, row: EngineRow, output: Sequence[int]) -> tuple[torch.Tensor, float]:
        """The target's scores after each beginning of ``output``, without options, and by how much they may be off."""
        (scores,) = truth(name).together([row], [output])
        bound = self.noise
        if not (pair := checkpoint(name)).built:
            rounded = ModelTruth(pair.models(self.dtype)[0]).together([row], [output])
            bound = ties.bound([scores], rounded)
        return scores, bound

    def _row(
        self, number: int, row: EngineRow, observed: tuple[int, ...], scores: torch.Tensor, bound: float
    ) -> RowJudgement:
        choices = scores.argmax(-1).tolist()
        near: list[NearTie] = []
        wrong_end = row.options.end(observed)
        end, last = wrong_end.kind, wrong_end.first
        first, margin = last if end else None, 0.0
        for index, token in enumerate(observed[:last]):
            if token != choices[index]:
                margin = float(scores[index, choices[index]] - scores[index, token])
                if margin > bound:
                    first, end = index, ""
                    break
                near.append(NearTie(number, index, choices[index], token, margin, bound))
        expected = None if first is None or end not in ("", EARLY) else choices[first]
        return RowJudgement(number, observed, first, expected, tuple(near), margin, end)

    def _bound(self, case: EngineCase, outputs: Sequence[Sequence[int]], scores: Sequence[torch.Tensor]) -> float:
        """Return how much the target may prefer its own token at a tie on these rows."""
        if (pair := checkpoint(case.checkpoint)).built:
            return self.noise if any(row.options.changes_scores for row in case.rows) else 0.0
        return ties.bound(scores, ModelTruth(pair.models(self.dtype)[0]).together(case.rows, outputs))


@lru_cache(maxsize=1)
def random_truth() -> ModelTruth:
    """The truth of the random checkpoint: its target in float64."""
    return ModelTruth(checkpoint().models()[0])


@lru_cache(maxsize=32)
def truth(name: str = "") -> Truth:
    """The truth of a checkpoint: its function, or `random_truth`."""
    pair = checkpoint(name)
    return FunctionTruth(pair.built[0].function) if pair.built else random_truth()
