"""DSD (Yan et al. 2024, arXiv 2402.01528), as published in the eBay/spec_dec baselines.

The faults are the publication's own and are kept: the first rejected draft token is emitted and the target's
correction never is; the models are called without mask and positions, so the pads inserted on the left are
attended to, and they are never removed; the loop ends with the fastest row; EOS is not looked at; rows that
overshoot are not cut.
"""

from __future__ import annotations

from typing import Any

import torch

import eqcheck

SOURCE = "https://github.com/eBay/spec_dec/blob/main/src/baselines/dsd.py"


@eqcheck.decoder(
    name="dsd",
    padding_sides=("left",),
    origin=SOURCE,
    known={
        "mask/pad-visible": SOURCE,
        "bookkeeping/over-accept": SOURCE,
        "bookkeeping/past-eos": SOURCE,
    },
)
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """Speculate on a rectangle that is padded on the left again after every round."""
    rows = _pad_left([list(prompt) for prompt in request.prompts], request.pad_token_id)
    new: list[list[int]] = [[] for _ in rows]
    while min(map(len, new)) < request.max_new_tokens:
        k = min(request.num_draft_tokens, min(request.max_new_tokens - len(row) for row in new))
        if k <= 0:
            break
        ids = torch.tensor(rows)  # [batch, width]
        for _ in range(k):
            logits = draft(input_ids=ids, use_cache=False).logits
            ids = torch.cat([ids, logits[:, -1].argmax(-1)[:, None]], 1)
        drafts = ids[:, -k:]
        logits = target(input_ids=ids, use_cache=False).logits
        predicted = logits[:, -k - 1 : -1].argmax(-1)  # [batch, k]
        leading = (drafts == predicted).long().cumprod(1).sum(1)
        for row, accepted in enumerate(leading.tolist()):
            block = drafts[row, : accepted + 1].tolist()  # one more than matched
            new[row] += block
            rows[row] += block
        rows = _pad_left(rows, request.pad_token_id)
    return new


def _pad_left(rows: list[list[int]], pad: int) -> list[list[int]]:
    width = max(map(len, rows))
    return [[pad] * (width - len(row)) + row for row in rows]
