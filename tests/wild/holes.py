"""Rejected tokens stay in the cache behind a mask, and the model counts positions for itself."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

import eqcheck


class Model:
    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, DynamicCache(config=model.config)
        self.mask: Any = None

    def feed(self, blocks: list[list[int]], pad: int) -> Any:
        width = max(map(len, blocks))
        ids = torch.tensor([[pad] * (width - len(block)) + block for block in blocks])
        new = torch.tensor([[0] * (width - len(block)) + [1] * len(block) for block in blocks])
        self.mask = new if self.mask is None else torch.cat([self.mask, new], dim=1)
        out = self.model(input_ids=ids, attention_mask=self.mask, past_key_values=self.cache, use_cache=True)
        return out.logits.argmax(-1)

    def reject(self, row: int, count: int) -> None:
        """Hide the newest ``count`` tokens that a row still shows."""
        shown = self.mask[row].nonzero().flatten()
        self.mask[row, shown[len(shown) - count :]] = 0


@eqcheck.decoder(name="holes", families=("rotary", "learned"))
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    pad, k = request.pad_token_id, request.num_draft_tokens
    rows, models = [list(prompt) for prompt in request.prompts], (Model(target), Model(draft))
    blocks = [[list(row) for row in rows], [list(row) for row in rows]]  # what each model has yet to be fed
    ends, done = [len(row) + request.max_new_tokens for row in rows], [False] * len(rows)
    while not all(done):
        guesses: list[list[int]] = [[] for _ in rows]
        step = blocks[1]
        for _ in range(k):
            for guess, token in zip(guesses, models[1].feed(step, pad)[:, -1].tolist(), strict=True):
                guess.append(token)
            step = [guess[-1:] for guess in guesses]
        models[1].feed(step, pad)
        answers = (
            models[0]
            .feed([block + guess for block, guess in zip(blocks[0], guesses, strict=True)], pad)[:, -k - 1 :]
            .tolist()
        )
        for n, (guess, answer) in enumerate(zip(guesses, answers, strict=True)):
            accepted = next((i for i in range(k) if guess[i] != answer[i]), k)
            for token in answer[: accepted + 1] if not done[n] else ():
                rows[n].append(token)
                done[n] = token in request.eos_token_ids or len(rows[n]) == ends[n]
                if done[n]:
                    break
            for model in models:
                model.reject(n, k - accepted)
            blocks[0][n] = blocks[1][n] = answer[accepted : accepted + 1]
    return [row[len(prompt) :] for row, prompt in zip(rows, request.prompts, strict=True)]
