"""EQSPEC: batch speculative decoding by unpad, append, repad (arXiv 2510.22876, Algorithms 2 and 3), done right.

The invariant of every round: a row of content length n has its first n - 1 tokens in the target's cache, each once,
aligned to the padding side; the newest token is fed with the drafts. Masks and positions follow from row lengths,
never from token ids, so pads may be any token. The draft keeps a cache of its own in step.

Works on any Hugging Face causal LM that takes a 2-D ``attention_mask`` and ``position_ids`` and whose cache layers
hold ``[batch, heads, slots, dim]`` (Llama, Qwen, NeoX, GPT-2, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

import eqcheck

Rows = list[list[int]]


class AlignedModel:
    """A causal LM with a cache whose rows are realigned after every round.

    ``lengths[i]`` tokens of row i are cached; between calls they are contiguous on the padding side, and
    ``self.kept`` ``[batch, slots]`` says which slots hold them.
    """

    def __init__(self, model: Any, batch: int, pad_token_id: int, padding_side: str) -> None:
        self.model, self.pad, self.side = model, pad_token_id, padding_side
        self.cache = DynamicCache()
        self.lengths = [0] * batch
        self.kept = torch.zeros(batch, 0, dtype=torch.bool, device=model.device)

    def feed(self, blocks: Rows) -> list[torch.Tensor]:
        """Feed each row its block (ragged, may be empty); returns per row the logits ``[len(block), vocab]``."""
        width = max(map(len, blocks))
        left = self.side == "left"
        tokens, real, positions = [], [], []
        for block, n in zip(blocks, self.lengths, strict=True):
            gap = width - len(block)
            before, after = (gap, 0) if left else (0, gap)
            tokens.append([self.pad] * before + block + [self.pad] * after)
            real.append([False] * before + [True] * len(block) + [False] * after)
            positions.append([0] * before + list(range(n, n + len(block))) + [0] * after)
        device = self.model.device
        fed = torch.tensor(real, device=device)  # [batch, width]
        self.kept = torch.cat([self.kept, fed], dim=1)  # [batch, slots + width]
        output = self.model(
            input_ids=torch.tensor(tokens, device=device),
            attention_mask=self.kept.long(),
            position_ids=torch.tensor(positions, device=device),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        return [logits[mask] for logits, mask in zip(output.logits, fed, strict=True)]

    def realign(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep these rows with the first ``lengths[i]`` tokens of each: drop rejected tokens and pads, repad."""
        kept = self.kept[list(rows)]
        rank = kept.cumsum(1)  # of a row's tokens, from 1
        kept = kept & (rank <= torch.tensor(lengths, device=kept.device)[:, None])
        # Stable sorting moves a row's kept slots to the padding side's other end, in order.
        order = kept.long().argsort(dim=1, stable=True, descending=self.side == "right")
        width = max(lengths)
        order = order[:, order.shape[1] - width :] if self.side == "left" else order[:, :width]
        index = torch.tensor(list(rows), device=kept.device)[:, None]
        for layer in self.cache.layers:
            # [batch, heads, slots, dim] -> [rows, width, heads, dim] -> [rows, heads, width, dim]
            layer.keys = layer.keys[index, :, order].transpose(1, 2)
            layer.values = layer.values[index, :, order].transpose(1, 2)
        self.kept = kept.gather(1, order)
        self.lengths = list(lengths)


@eqcheck.decoder(
    name="eqspec",
    padding_sides=("left", "right"),
    origin="EQSPEC of arXiv 2510.22876, repaired: see the module's docstring",
)
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> Rows:
    """New tokens of each row, equal to what ``target`` emits for that row alone."""
    outputs: Rows = [[] for _ in request.prompts]
    rows = [list(prompt) for prompt in request.prompts]
    limits = [len(prompt) + request.max_new_tokens for prompt in request.prompts]
    active = list(range(len(rows)))
    side, pad = request.padding_side, request.pad_token_id
    verifier = AlignedModel(target, len(rows), pad, side)
    drafter = AlignedModel(draft, len(rows), pad, side)
    while active:
        # The last place of a row belongs to the correction or bonus token, so K is clamped row by row.
        budget = [min(request.num_draft_tokens, limits[i] - len(rows[i]) - 1) for i in active]
        drafts = propose(drafter, [rows[i] for i in active], budget)
        going, lengths = [], []
        fed = [rows[i][n:] + d for i, n, d in zip(active, verifier.lengths, drafts, strict=True)]
        for slot, (i, logits) in enumerate(zip(active, verifier.feed(fed), strict=True)):
            predicted = logits[-len(drafts[slot]) - 1 :].argmax(-1).tolist()  # one more than drafts: the bonus
            accepted = leading_matches(drafts[slot], predicted)
            block = until_eos(predicted[: accepted + 1], request.eos_token_ids)
            rows[i] += block
            if block[-1] in request.eos_token_ids or len(rows[i]) == limits[i]:
                outputs[i] = rows[i][len(request.prompts[i]) :]
            else:
                going.append(slot)
                lengths.append(len(rows[i]) - 1)
        if not going:
            break
        verifier.realign(going, lengths)
        # The draft has not been fed its last token: after full acceptance its cache is one token shorter.
        drafter.realign(going, [min(drafter.lengths[s], n) for s, n in zip(going, lengths, strict=True)])
        active = [active[slot] for slot in going]
    return outputs


def propose(drafter: AlignedModel, rows: Rows, budget: Sequence[int]) -> Rows:
    """Draft ``budget[i]`` tokens for row i, greedily; rows that have theirs are fed nothing."""
    drafts: Rows = [[] for _ in rows]
    waiting = [row[n:] for row, n in zip(rows, drafter.lengths, strict=True)]
    while any(len(d) < k for d, k in zip(drafts, budget, strict=True)):
        blocks = [w if len(d) < k else [] for w, d, k in zip(waiting, drafts, budget, strict=True)]
        for i, logits in enumerate(drafter.feed(blocks)):
            if blocks[i]:
                drafts[i].append(int(logits[-1].argmax()))
                waiting[i] = drafts[i][-1:]
    return drafts


def leading_matches(drafts: Sequence[int], predicted: Sequence[int]) -> int:
    """How many draft tokens, from the first, are the target's own."""
    for count, (proposed, wanted) in enumerate(zip(drafts, predicted, strict=False)):
        if proposed != wanted:
            return count
    return len(drafts)


def until_eos(block: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    """A block up to and including its first EOS."""
    for count, token in enumerate(block, start=1):
        if token in eos_token_ids:
            return block[:count]
    return block
