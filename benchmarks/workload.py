"""What engines are timed on: prompts from text the models were not trained on, and the truth for each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.dictated import dictated
from benchmarks.pair import Pair
from eqcheck.contract.decoders import Request
from eqcheck.contract.errors import OutputError
from eqcheck.core.result.outcome import Verdict
from eqcheck.transparent.oracle import Oracle
from eqcheck.transparent.truth import ties

LENGTHS = ("uniform", "mixed")
UNIFORM = 64
SHORTEST, LONGEST = 16, 256  # of mixed prompts, evenly spread on a logarithmic scale
# Multiples of these fill a square evenly (the R2 sequence of M. Roberts, "The unreasonable effectiveness of
# quasirandom sequences"), so that the first prompts are a fair sample however many one takes.
SPREAD = (0.7548776662466927, 0.5698402909980532)


class Job(NamedTuple):
    """One prompt and how many new tokens it is to get; what an engine's ``stream`` takes."""

    token_ids: list[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    id: Any = None
    sampling: Any = None


def greedy(target: Any, draft: Any, request: Request) -> list[list[int]]:
    """Plain decoding of a batch by ``transformers``' own ``generate``: no draft."""
    width = max(map(len, request.prompts))
    gaps = [width - len(prompt) for prompt in request.prompts]
    pad = request.pad_token_id
    ids = torch.tensor([[pad] * gap + prompt for gap, prompt in zip(gaps, request.prompts, strict=True)])
    mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps])
    output = target.generate(
        ids.to(target.device),
        attention_mask=mask.to(target.device),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=pad,
    )
    rows: list[list[int]] = output[:, width:].tolist()
    return rows


class Workload:
    """``count`` prompts from a text ``[bytes]``, the same every time.

    ``uniform``: prompts of one length, each to get ``max_new_tokens``. ``mixed``: prompts of `SHORTEST` to `LONGEST`
    tokens, each to get a quarter to seven quarters of ``max_new_tokens``, so that the mean is the same.
    """

    def __init__(self, pair: Pair, text: torch.Tensor, lengths: str, count: int, max_new_tokens: int) -> None:
        self.pair, self.lengths = pair, lengths
        sizes, limits = np.full(count, UNIFORM), np.full(count, max_new_tokens)
        if lengths == "mixed":
            first, second = ((0.5 + step * np.arange(count)) % 1 for step in SPREAD)
            sizes = np.exp(np.log(SHORTEST) + first * np.log(LONGEST / SHORTEST)).astype(int)
            limits = np.ceil(max_new_tokens * (0.25 + 1.5 * second)).astype(int)
        starts = np.random.default_rng(0).integers(len(text) - LONGEST, size=count)
        self.prompts = [
            Job(text[at : at + size].tolist(), limit)
            for at, size, limit in zip(starts, sizes, limits.tolist(), strict=True)
        ]
        self._oracle = Oracle(copy.deepcopy(pair.target).double())
        self._verified: set[tuple[int, ...]] = set()
        self.ties = 0

    @cached_property
    def truth(self) -> list[list[int]]:
        """What the target emits for each prompt: plain decoding in batches, verified like every output."""
        rows: list[list[int]] = []
        for start in range(0, len(self.prompts), 32):
            some = self.prompts[start : start + 32]
            prompts, limit = [one.token_ids for one in some], max(one.max_new_tokens for one in some)
            rows += greedy(self.pair.target, None, Request(prompts, limit, 1, (), 0, "left"))
        truth = [row[: one.max_new_tokens] for row, one in zip(rows, self.prompts, strict=True)]
        if wrong := self.wrong(truth):
            raise RuntimeError(f"the target's own generate() is not what the target emits: {wrong}")
        return truth

    def draft(self, acceptance: float | str | None) -> Any:
        """The pair's own draft, or one that is accepted at this rate per token, or as this generator has it."""
        if acceptance is None:
            return self.pair.draft
        draft = dictated(self.pair.draft)
        rows = [one.token_ids + row for one, row in zip(self.prompts, self.truth, strict=True)]
        draft.teach(rows, [len(one.token_ids) for one in self.prompts], acceptance, seed=1)
        return draft

    def wrong(self, outputs: Sequence[Sequence[int]], prompts: Sequence[Job] | None = None) -> str:
        """What is wrong with the outputs of these prompts, or of all; empty if the oracle finds them the target's."""
        prompts = self.prompts if prompts is None else prompts
        if len(outputs) != len(prompts):
            return f"{len(outputs)} outputs for {len(prompts)} prompts"
        for number, (one, output) in enumerate(zip(prompts, outputs, strict=True)):
            row = (*one.token_ids, -1, *output)
            if row in self._verified:
                continue
            try:
                verdict = self._oracle.check([one.token_ids], [output], max_new_tokens=one.max_new_tokens)
            except OutputError as error:
                return f"prompt {number}, {error}"
            if not verdict:
                if not self._tie(one, output):
                    return f"prompt {number}, {_difference(verdict)}"
                self.ties += 1
            self._verified.add(row)
        return ""

    def _tie(self, job: Job, output: Sequence[int]) -> bool:
        """Whether each token is as good as the target's choice after what comes before it
        (`eqcheck.transparent.truth.ties`).
        """
        if len(output) != job.max_new_tokens:
            return False
        prompt = job.token_ids
        ids = torch.tensor([[*prompt, *output]], device=self._oracle.target.device)
        with torch.no_grad():
            exact, rounded = (
                target(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
                for target in (self._oracle.target, self.pair.target)
            )
        chosen = exact.gather(1, ids[0, len(prompt) :, None])[:, 0]
        return bool((exact.amax(1) - chosen <= ties.bound([exact], [rounded])).all())


def _difference(verdict: Verdict) -> str:
    """The first difference between the only row of a verdict and the truth."""
    (row,) = verdict.rows
    assert row.first is not None
    expected, got = (list(tokens[row.first : row.first + 1]) for tokens in (row.expected, row.observed))
    return f"new token {row.first}: expected {expected or 'no more'}, got {got or 'no more'}"
