"""What engines are timed on: prompts from text the models were not trained on, and the truth for each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

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


class Workload:
    """``count`` prompts of one kind from a text ``[bytes]``, each to get ``max_new_tokens``; the same every time."""

    def __init__(self, pair: Pair, text: torch.Tensor, lengths: str, count: int, max_new_tokens: int) -> None:
        self.pair, self.lengths, self.max_new_tokens = pair, lengths, max_new_tokens
        random = np.random.default_rng(0)
        sizes = np.full(count, UNIFORM)
        if lengths == "mixed":
            sizes = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), count)).astype(int)
        starts = random.integers(len(text) - LONGEST, size=count)
        self.prompts = [text[at : at + size].tolist() for at, size in zip(starts, sizes, strict=True)]
        self._oracle = Oracle(copy.deepcopy(pair.target).double())
        self._verified: set[tuple[int, ...]] = set()
        self.ties = 0

    @cached_property
    def truth(self) -> list[list[int]]:
        """What the target emits for each prompt, by its own ``generate`` on rows of equal length."""
        rows: dict[int, list[int]] = {}
        by_size: dict[int, list[int]] = {}
        for number, prompt in enumerate(self.prompts):
            by_size.setdefault(len(prompt), []).append(number)
        for size, numbers in by_size.items():
            given = torch.tensor([self.prompts[number] for number in numbers], device=self.pair.target.device)
            ids = self.pair.target.generate(
                given,
                attention_mask=torch.ones_like(given),  # else it takes tokens that equal the pad for pads
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            rows.update(zip(numbers, ids[:, size:].tolist(), strict=True))
        truth = [rows[number] for number in range(len(self.prompts))]
        if wrong := self.wrong(truth):
            raise RuntimeError(f"the target's own generate() is not what the target emits: {wrong}")
        return truth

    def draft(self, acceptance: float | None) -> Any:
        """The pair's own draft, or one that is accepted at this rate per token."""
        if acceptance is None:
            return self.pair.draft
        draft = dictated(self.pair.draft)
        rows = [prompt + row for prompt, row in zip(self.prompts, self.truth, strict=True)]
        draft.teach(rows, list(map(len, self.prompts)), acceptance, seed=1)
        return draft

    def wrong(self, outputs: Sequence[Sequence[int]]) -> str:
        """What is wrong with the outputs of all prompts; empty if the oracle finds them to be the target's."""
        return self.wrong_of(self.prompts, outputs)

    def wrong_of(self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> str:
        """What is wrong with the outputs of these prompts."""
        if len(outputs) != len(prompts):
            return f"{len(outputs)} outputs for {len(prompts)} prompts"
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            row = (*prompt, -1, *output)
            if row in self._verified:
                continue
            verdict = self._oracle.check([prompt], [output], max_new_tokens=self.max_new_tokens)
            if not verdict:
                if not self._tie(prompt, output):
                    assert verdict.explanation is not None
                    return f"prompt {number}: {verdict.explanation.fingerprint}"
                self.ties += 1
            self._verified.add(row)
        return ""

    def _tie(self, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Whether each token is as good as the target's choice after what comes before it, in float64."""
        if len(output) != self.max_new_tokens:
            return False
        target = self._oracle.target
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *output]], device=target.device)
            logits = target(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        return bool((logits.amax(1) - chosen < NEAR).all())
