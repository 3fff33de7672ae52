"""The batching of huggingface/transformers PR #42655, re-implemented from its public description of December 2025.

`generate` of transformers 5.23 still refuses several rows with an assistant.

Per round: the assistant's cache is aligned to the new inputs by dropping what no longer matches; the target verifies;
acceptance is found for all items at once by a cumulative sum over mismatches; rejected and pad tokens are removed
from every item and inputs and cache are padded again; the draft length follows the average number of matches. The
loop ends as soon as one item meets the stopping criteria, so the other items may be short: the description says so
and reports 50, 41 and 40 new tokens where plain decoding gives 50, 50 and 50.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.cache_names import cache_argument

SOURCE = "https://github.com/huggingface/transformers/pull/42655"

Rows = list[list[int]]


@eqcheck.decoder(name="hf_pr", padding_sides=("left",), origin=SOURCE, known={"bookkeeping/premature-stop": SOURCE})
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> Rows:
    """Assisted generation for a batch, until one item is done."""
    rows = [list(prompt) for prompt in request.prompts]
    starts = [len(prompt) for prompt in request.prompts]
    pad, eos = request.pad_token_id, request.eos_token_ids
    cache, assistant_cache = DynamicCache(), DynamicCache()
    cached: Rows = [[] for _ in rows]
    assistant_cached: Rows = [[] for _ in rows]
    num_assistant_tokens = request.num_draft_tokens
    done = False
    while not done:
        room = min(start + request.max_new_tokens - len(row) for start, row in zip(starts, rows, strict=True))
        k = min(num_assistant_tokens, room - 1)

        assistant_cached = align_cache(assistant_cache, assistant_cached, rows)
        candidates = [list(row) for row in rows]
        for _ in range(k):
            logits = forward(draft, assistant_cache, assistant_cached, candidates, pad)
            assistant_cached = [list(row) for row in candidates]
            for row, token in zip(candidates, logits[:, -1].argmax(-1).tolist(), strict=True):
                row.append(token)

        logits = forward(target, cache, cached, candidates, pad)
        predicted = logits[:, logits.shape[1] - k - 1 :].argmax(-1)  # [batch, k + 1]
        proposed = torch.tensor([row[len(row) - k :] for row in candidates], dtype=torch.long)  # [batch, k]
        mismatches = (proposed != predicted[:, :k]).cumsum(-1)
        matches = (mismatches < 1).sum(-1)  # [batch]
        for row, count, tokens in zip(rows, matches.tolist(), predicted.tolist(), strict=True):
            for token in tokens[: count + 1]:
                row.append(token)
                if token in eos:
                    break
        cached = align_cache(cache, candidates, rows)

        average = matches.double().mean().item()
        num_assistant_tokens = num_assistant_tokens + 2 if average == k else max(1, num_assistant_tokens - 1)
        done = any(
            row[-1] in eos or len(row) - start >= request.max_new_tokens
            for start, row in zip(starts, rows, strict=True)
        )
    return [row[start:] for start, row in zip(starts, rows, strict=True)]


def forward(model: Any, cache: DynamicCache, cached: Rows, rows: Rows, pad: int) -> torch.Tensor:
    """Feed what is not cached yet; logits ``[batch, block, vocab]``, aligned on the right.

    The cache holds ``cached``, padded on the left. Every item is fed the same number of its tokens or, while
    nothing is cached, its whole row padded on the left.
    """
    blocks = [row[len(old) :] for row, old in zip(rows, cached, strict=True)]
    width, slots = max(map(len, blocks)), max(map(len, cached))
    mask = [
        [0] * (slots - len(old)) + [1] * len(old) + [0] * (width - len(block)) + [1] * len(block)
        for old, block in zip(cached, blocks, strict=True)
    ]
    attention_mask = torch.tensor(mask)
    position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, slots:]
    output = model(
        input_ids=torch.tensor([[pad] * (width - len(block)) + block for block in blocks]),
        attention_mask=attention_mask,
        position_ids=position_ids,
        use_cache=True,
        **cache_argument(model, cache),
    )
    repad(cache, [slot.nonzero().flatten() for slot in attention_mask])
    logits: torch.Tensor = output.logits
    return logits


def align_cache(cache: DynamicCache, cached: Rows, rows: Rows) -> Rows:
    """Drop from the cache what no longer matches the rows, and each row's newest token; returns what is left."""
    left = []
    for old, row in zip(cached, rows, strict=True):
        count = 0
        while count < min(len(old), len(row) - 1) and old[count] == row[count]:
            count += 1
        left.append(old[:count])
    width = max(map(len, cached))
    repad(
        cache,
        [torch.arange(width - len(old), width - len(old) + len(new)) for old, new in zip(cached, left, strict=True)],
    )
    return left


def repad(cache: DynamicCache, keep: list[torch.Tensor]) -> None:
    """Keep these slots of each item, in order, and pad them on the left with zeros to one width."""
    width = max(len(slots) for slots in keep)
    for layer in cache.layers:
        for name in ("keys", "values"):
            old = getattr(layer, name)  # [batch, heads, slots, dim]
            if old is None or old.dim() != 4:
                continue
            new = old.new_zeros(old.shape[0], old.shape[1], width, old.shape[3])
            for item, slots in enumerate(keep):
                new[item, :, width - len(slots) :] = old[item, :, slots]
            setattr(layer, name, new)
