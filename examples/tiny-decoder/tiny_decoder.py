"""A small batch speculative decoder: left padding, a KV cache for target and draft, rollback to the batch minimum.

Every round commits as many tokens to each row as the row with the fewest accepted draft tokens has. So all rows stay
equally long, and one ``crop`` serves the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache


class CachedModel:
    """A causal LM and its cache: it is fed the tokens ``[batch, length]`` that it has not seen yet."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache, self.seen = model, DynamicCache(config=model.config), 0

    def choices(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The most likely next id after each token that is new, ``[batch, new]``."""
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = self.model(
            tokens[:, self.seen :],
            attention_mask=mask,
            position_ids=positions[:, self.seen :],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.seen = tokens.shape[1]
        return output.logits.argmax(dim=-1)

    def keep(self, length: int) -> None:
        """Forget what was seen behind the first ``length`` tokens."""
        if self.seen > length:
            self.cache.crop(length - self.seen)
            self.seen = length


@torch.no_grad()
def generate(
    target: Any,
    draft: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    num_draft_tokens: int,
    eos_token_ids: Sequence[int] = (),
    pad_token_id: int = 0,
) -> list[list[int]]:
    """The new ids of each row: up to ``max_new_tokens``, and nothing after an EOS."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    verifier, drafter = CachedModel(target), CachedModel(draft)
    while True:
        rows = [_ended(row, eos_token_ids) for row in tokens[:, width:].tolist()]
        active = [row for row, new in enumerate(rows) if not new or new[-1] not in eos_token_ids]
        room = width + max_new_tokens - tokens.shape[1]
        if not room or not active:
            return rows
        length, drafts = tokens.shape[1], min(num_draft_tokens, room - 1)
        block = tokens
        for _ in range(drafts):
            block = torch.cat([block, drafter.choices(block, _longer(mask, block))[:, -1:]], dim=1)
        choices = verifier.choices(block, _longer(mask, block))[:, -drafts - 1 :]
        equal = block[:, length:] == choices[:, :drafts]
        accepted = int(equal[active].int().cumprod(dim=1).sum(dim=1).min())
        # Where every draft token is accepted, the last choice is the bonus; otherwise it is the correction.
        tokens = torch.cat([block[:, : length + accepted], choices[:, accepted : accepted + 1]], dim=1)
        mask = _longer(mask, tokens)
        verifier.keep(length + accepted)
        drafter.keep(length + accepted)


def _longer(mask: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mask with ones for the tokens that were appended."""
    return torch.nn.functional.pad(mask, (0, tokens.shape[1] - mask.shape[1]), value=1)


def _ended(row: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    ends = [index for index, token in enumerate(row) if token in eos_token_ids]
    return row[: ends[0] + 1] if ends else row
