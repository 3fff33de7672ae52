"""Every round starts anew: rows are padded on the left, and what equals the pad id is taken for a pad."""

from __future__ import annotations

from typing import Any

import torch

import eqcheck


def scores(model: Any, rows: list[list[int]], pad: int) -> Any:
    """Logits of rows that end at the right edge."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = ids.ne(pad).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits


@eqcheck.decoder(name="repad", families=("rotary", "learned"), requires=("pad-not-in-prompt",))
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    rows = [list(prompt) for prompt in request.prompts]
    ends = [len(row) + request.max_new_tokens for row in rows]
    live = list(range(len(rows)))
    while live:
        guesses = [list(rows[n]) for n in live]
        for _ in range(request.num_draft_tokens):
            for guess, token in zip(
                guesses, scores(draft, guesses, request.pad_token_id)[:, -1].argmax(-1).tolist(), strict=False
            ):
                guess.append(token)
        answers = scores(target, guesses, request.pad_token_id).argmax(-1).tolist()
        for n, guess, answer in zip(list(live), guesses, answers, strict=True):
            answer = answer[len(answer) - len(guess) :]
            while n in live:
                at = len(rows[n])
                rows[n].append(answer[at - 1])
                if rows[n][-1] in request.eos_token_ids or len(rows[n]) == ends[n]:
                    live.remove(n)
                elif at == len(guess) or rows[n][-1] != guess[at]:
                    break
    return [row[len(prompt) :] for row, prompt in zip(rows, request.prompts, strict=True)]
