"""BSP, batched speculation by masking (Su et al. 2023, arXiv 2310.18813), as published in the eBay/spec_dec baselines.

Nothing is ever moved: prompts are padded on the right, rejected tokens stay in both caches and are hidden by the
attention mask. Two faults are the publication's own and are kept: the models are called without
``position_ids``, so hidden columns advance every later position; and EOS is not looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.cache_names import cache_argument

SOURCE = "https://github.com/eBay/spec_dec/blob/main/src/baselines/bsp.py"


@eqcheck.decoder(
    name="bsp",
    padding_sides=("right",),
    origin=SOURCE,
    known={"position/query-position": SOURCE, "bookkeeping/past-eos": SOURCE},
)
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """Speculate in lock step; every row runs to ``max_new_tokens``."""
    k = request.num_draft_tokens
    lengths = [len(prompt) for prompt in request.prompts]
    width = max(lengths)
    rows = torch.arange(len(lengths))
    ids = torch.tensor([p + [request.pad_token_id] * (width - len(p)) for p in request.prompts])  # [batch, width]
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    its_cache, drafts_cache = (cache_argument(model, DynamicCache()) for model in (target, draft))

    prefill = target(input_ids=ids, attention_mask=mask, use_cache=True, **its_cache).logits
    newest = prefill[rows, torch.tensor(lengths) - 1].argmax(-1)[:, None]  # [batch, 1]
    ids, mask = torch.cat([ids, newest], 1), torch.cat([mask, torch.ones_like(newest)], 1)
    unseen_by_draft = ids
    while int(mask[:, width:].sum(1).min()) < request.max_new_tokens:
        drafts = ids[:, :0]
        block, seen = unseen_by_draft, mask
        for _ in range(k):
            logits = draft(input_ids=block, attention_mask=seen, use_cache=True, **drafts_cache).logits
            block = logits[:, -1].argmax(-1)[:, None]
            drafts = torch.cat([drafts, block], 1)
            seen = torch.cat([seen, torch.ones_like(block)], 1)

        fed = torch.cat([newest, drafts], 1)  # [batch, 1 + k]
        logits = target(input_ids=fed, attention_mask=seen, use_cache=True, **its_cache).logits
        predicted = logits.argmax(-1)  # [batch, 1 + k]
        accepted = (drafts == predicted[:, :-1]).long().cumprod(1)  # [batch, k]: ones up to the first mismatch
        newest = predicted[rows, accepted.sum(1)][:, None]
        ids = torch.cat([ids, drafts, newest], 1)
        mask = torch.cat([mask, accepted, torch.ones_like(newest)], 1)
        unseen_by_draft = ids[:, -2:]  # the last draft token, hidden if rejected, and the newest token
    outputs = []
    for row, row_mask in zip(ids, mask, strict=True):
        new = row[width:][row_mask[width:].bool()].tolist()
        outputs.append(new[: request.max_new_tokens])
    return outputs
