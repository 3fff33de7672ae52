"""What engines are timed on: prompts from text the models were not trained on, and the truth for each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from eqcheck.bench.dictated import dictated
from eqcheck.oracle import Oracle
from eqcheck.pair import Pair

LENGTHS = ("uniform", "mixed")
UNIFORM = 64
SHORTEST, LONGEST = 16, 256  # of mixed prompts, evenly spread on a logarithmic scale
# Engines compute in float32, with an error of about 1e-5 in a logit. Where the two best are closer than this in
# float64, either is right: a near-tie.
NEAR = 1e-4


class Asked(NamedTuple):
    """One prompt and how many new tokens it is to get; what an engine's ``stream`` takes."""

    token_ids: list[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    id: Any = None


class Workload:
    """``count`` prompts from a text ``[bytes]``, the same every time.

    ``uniform``: prompts of one length, each to get ``max_new_tokens``. ``mixed``: prompts of `SHORTEST` to `LONGEST`
    tokens, each to get a quarter to seven quarters of ``max_new_tokens``, so that the mean is the same.
    """

    def __init__(self, pair: Pair, text: torch.Tensor, lengths: str, count: int, max_new_tokens: int) -> None:
        self.pair, self.lengths = pair, lengths
        random = np.random.default_rng(0)
        sizes, limits = np.full(count, UNIFORM), np.full(count, max_new_tokens)
        if lengths == "mixed":
            sizes = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), count)).astype(int)
            limits = random.permutation(np.linspace(max_new_tokens / 4, 7 * max_new_tokens / 4, count).astype(int))
        starts = random.integers(len(text) - LONGEST, size=count)
        self.asked = [
            Asked(text[at : at + size].tolist(), limit)
            for at, size, limit in zip(starts, sizes, limits.tolist(), strict=True)
        ]
        self._oracle = Oracle(copy.deepcopy(pair.target).double())
        self._verified: set[tuple[int, ...]] = set()
        self.ties = 0

    @cached_property
    def truth(self) -> list[list[int]]:
        """What the target emits for each prompt, by its own ``generate`` on rows of equal length."""
        rows: dict[int, list[int]] = {}
        by_size: dict[int, list[int]] = {}
        for number, one in enumerate(self.asked):
            by_size.setdefault(len(one.token_ids), []).append(number)
        for size, numbers in by_size.items():
            asked = [self.asked[number] for number in numbers]
            given = torch.tensor([one.token_ids for one in asked], device=self.pair.target.device)
            ids = self.pair.target.generate(
                given,
                attention_mask=torch.ones_like(given),  # else it takes tokens that equal the pad for pads
                max_new_tokens=max(one.max_new_tokens for one in asked),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            rows.update(zip(numbers, ids[:, size:].tolist(), strict=True))
        truth = [rows[number][: one.max_new_tokens] for number, one in enumerate(self.asked)]
        if wrong := self.wrong(truth):
            raise RuntimeError(f"the target's own generate() is not what the target emits: {wrong}")
        return truth

    def draft(self, acceptance: float | None) -> Any:
        """The pair's own draft, or one that is accepted at this rate per token."""
        if acceptance is None:
            return self.pair.draft
        draft = dictated(self.pair.draft)
        rows = [one.token_ids + row for one, row in zip(self.asked, self.truth, strict=True)]
        draft.teach(rows, [len(one.token_ids) for one in self.asked], acceptance, seed=1)
        return draft

    def wrong(self, outputs: Sequence[Sequence[int]]) -> str:
        """What is wrong with the outputs of all prompts; empty if the oracle finds them to be the target's."""
        return self.wrong_of(self.asked, outputs)

    def wrong_of(self, asked: Sequence[Asked], outputs: Sequence[Sequence[int]]) -> str:
        """What is wrong with the outputs of these prompts."""
        if len(outputs) != len(asked):
            return f"{len(outputs)} outputs for {len(asked)} prompts"
        for number, (one, output) in enumerate(zip(asked, outputs, strict=True)):
            row = (*one.token_ids, -1, *output)
            if row in self._verified:
                continue
            verdict = self._oracle.check([one.token_ids], [output], max_new_tokens=one.max_new_tokens)
            if not verdict:
                if not self._tie(one, output):
                    assert verdict.explanation is not None
                    return f"prompt {number}: {verdict.explanation.fingerprint}"
                self.ties += 1
            self._verified.add(row)
        return ""

    def _tie(self, asked: Asked, output: Sequence[int]) -> bool:
        """Whether each token is as good as the target's choice after what comes before it, in float64."""
        if len(output) != asked.max_new_tokens:
            return False
        target, prompt = self._oracle.target, asked.token_ids
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *output]], device=target.device)
            logits = target(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        return bool((logits.amax(1) - chosen < NEAR).all())
