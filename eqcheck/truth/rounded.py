"""Rows of a model that rounds, judged as a gate judges a server: by gaps, with the model's own rows as the control.

The model scores each row alone, in one call: how many nats does each token lie below its own choice? It decodes the
same prompts itself, alone and as a batch, and scores these rows, too. `eqcheck.truth.evidence` has the bets and the
proof of their bound. Nothing is compared in another dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import state
from eqcheck.result.verdict import RowVerdict, Verdict
from eqcheck.truth.evidence import CROSSES, Exceedances, step

LIKELY = 20  # tokens of a place whose scores are held against those of the decode


def coarse(target: Any) -> bool:
    """Whether a target computes in less than float32."""
    dtype = getattr(target, "dtype", None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize < 4


class RowGaps:
    """The bets on rows of one model, over all that it is asked; a row that comes again counts once.

    ``threshold`` is the gap, in nats, beyond which a token counts; ``highest`` the greatest of the control.
    """

    def __init__(self, target: Any) -> None:
        self._target, self._bets = target, Exceedances()
        self._seen: set[tuple[Sequence[int], Sequence[int]]] = set()

    @property
    def threshold(self) -> float:
        """A gap beyond it counts."""
        return self._bets.threshold

    def verdict(self, rows: tuple[RowVerdict, ...], said: Explanation, gaps: Sequence[Sequence[float]]) -> Verdict:
        """The verdict on rows with tokens that count, ``inconclusive`` as long as the evidence does not decide.

        ``said`` is told of them; ``gaps`` are those of their tokens.
        """
        gap = max(max(its, default=0.0) for its in gaps)
        known = state(
            "beyond-noise",
            gap=f"{gap:.3g}",
            threshold=f"{self.threshold:.3g}",
            exceeding=self._bets.exceeding,
            counted=len(self._bets.gaps),
            controls=self._bets.controls,
            log10=f"{self._bets.log_evidence / math.log(10):.1f}",
        )
        status = "violation" if self._bets.log_evidence >= math.log(CROSSES) else "inconclusive"
        return Verdict(status, rows, replace(said, detail=known.detail, facts=known.facts))

    def add(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], limit: int, eos: Sequence[int]
    ) -> list[list[float]]:
        """Count rows of new tokens, and return the gap of each token. The control decodes up to ``limit`` tokens."""
        gaps = [_gaps(self._laws(prompt, row), row) for prompt, row in zip(prompts, rows, strict=True)]
        new = [at for at, pair in enumerate(zip(prompts, rows, strict=True)) if pair not in self._seen]
        self._seen |= {(prompts[at], rows[at]) for at in new}
        if not new:
            return gaps
        own, asked = [max(gaps[at], default=0.0) for at in new], [prompts[at] for at in new]
        alone = [control for prompt in asked for control in self._control([prompt], limit, eos)]
        controls = alone, self._control(asked, limit, eos)
        self._bets.add_requests(zip(own, zip(*controls, strict=True), strict=True))
        for each in controls:
            self._bets.compare_with(each)
        self._bets.add(own)
        return gaps

    def _control(self, prompts: Sequence[Sequence[int]], limit: int, eos: Sequence[int]) -> list[float]:
        """The greatest gap of each row that the model decodes; measures how rounding changes scores on the way."""
        told: list[list[torch.Tensor]] = [[] for _ in prompts]

        def ended(_: int, row: Sequence[int]) -> bool:
            return len(row) >= limit or (bool(row) and row[-1] in eos)

        def chosen(number: int, scores: torch.Tensor) -> int:
            told[number].append(scores.log_softmax(-1))
            return int(scores.argmax())

        gaps = []
        for prompt, row, decode in zip(prompts, decoded(self._target, prompts, ended, chosen), told, strict=True):
            laws, likely = self._laws(prompt, row), min(LIKELY, len(decode[0]))
            each = laws.topk(likely).indices
            changed = (laws - torch.stack(decode[: len(row)])).gather(1, each).abs().nan_to_num(nan=0.0)
            leads = laws.topk(2).values
            rounded = step((leads[:, 0] - leads[:, 1]).tolist())
            self._bets.floor = max(self._bets.floor, rounded, float(changed.max()))
            gaps.append(max(_gaps(laws, row)))
        return gaps

    @torch.no_grad()
    def _laws(self, prompt: Sequence[int], row: Sequence[int]) -> torch.Tensor:
        """The log-probabilities ``[tokens, vocabulary]`` from which each token of a row was to be chosen, float32."""
        ids = torch.tensor([[*prompt, *row]], device=self._target.device)
        logits = self._target(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        return torch.as_tensor(logits.float().log_softmax(-1).cpu())


def _gaps(laws: torch.Tensor, row: Sequence[int]) -> list[float]:
    """By how much the model prefers its own choice to each token, in nats."""
    told = laws.gather(1, torch.tensor(row, dtype=torch.long)[:, None])[:, 0]
    return [float(gap) for gap in (laws.amax(-1) - told).nan_to_num(nan=0.0)]


@torch.no_grad()
def decoded(
    target: Any,
    prompts: Sequence[Sequence[int]],
    ended: Callable[[int, list[int]], bool],
    chosen: Callable[[int, torch.Tensor], int],
) -> list[list[int]]:
    """The rows of new tokens that a model decodes as one batch, padded on the left, with a cache.

    ``ended`` says of a row's number and tokens whether it is over, ``chosen`` of its number and scores ``[vocabulary]``
    (float32) which token is next.
    """
    width, device = max(map(len, prompts)), target.device
    ids = torch.tensor([[0] * (width - len(its)) + list(its) for its in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(its)) + [1] * len(its) for its in prompts], device=device)
    positions, cache, rows = (mask.cumsum(-1) - 1).clamp(min=0), None, list[list[int]]([] for _ in prompts)
    while not all(ended(*pair) for pair in enumerate(rows)):
        told = target(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache, scores = told.past_key_values, told.logits[:, -1].float().cpu()
        new = [chosen(number, law) for number, law in enumerate(scores)]
        for number, (row, token) in enumerate(zip(rows, new, strict=True)):
            row += [] if ended(number, row) else [token]
        ids, positions = torch.tensor(new, device=device)[:, None], mask.sum(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(ids)], -1)
    return rows
