"""Each row alone, token by token: right but for penalties, which it says it takes."""

from __future__ import annotations

from typing import Any

import torch

import eqcheck


@eqcheck.decoder(name="without_penalties", capabilities=("row-limits", "row-eos", "frequency-penalty"))
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    rows = []
    for prompt, options in zip(request.prompts, request.rows, strict=True):
        new = list[int]()
        while len(new) < options.max_new_tokens and new[-1:] not in [[eos] for eos in options.eos_token_ids]:
            scores = target(input_ids=torch.tensor([[*prompt, *new]])).logits[0, -1]
            new.append(int(scores.argmax()))
        rows.append(new)
    return rows
