"""Own loop over the model's layers, with tensors made before, which rows are written into from their own lengths on."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import eqcheck
from wild.own_loop import Runner, decode

FAULT = ""  # a test sets it
ROOM = 256


class Slab(Runner):
    """``lengths`` has the valid entries of each row; what is behind them is overwritten."""

    def feed(self, ids: torch.Tensor, counts: list[int]) -> Any:
        inner, (batch, block) = self.model.model, ids.shape
        self.lengths = getattr(self, "lengths", torch.zeros(batch, dtype=torch.long))
        gaps = block - torch.tensor(counts)[:, None]
        ids = ids.gather(1, (torch.arange(block) + gaps) % block)  # pads go behind
        self.slots = self.lengths[:, None] + torch.arange(block)
        positions = self.slots + int(FAULT == "position") * (self.lengths[:, None] > 6)
        self.mask = (torch.arange(int(self.slots.max()) + 1) <= self.slots[..., None])[:, None]
        if FAULT == "mask":
            self.mask = self.mask & (torch.arange(self.mask.shape[-1]) != self.lengths[:, None, None, None] - 1)
        states = inner.embed_tokens(ids)
        rotary = inner.rotary_emb(states, positions)
        for number, layer in enumerate(inner.layers):
            states = states + self.attend(number, layer.self_attn, layer.input_layernorm(states), rotary, self.mask)
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        self.lengths = self.lengths + torch.tensor(counts)
        logits = self.model.lm_head(inner.norm(states))
        return logits[torch.arange(batch)[:, None], (torch.arange(block) - gaps) % block]

    def attend(self, number: int, attention: Any, states: torch.Tensor, rotary: Any, mask: Any) -> Any:
        batch, block, _ = states.shape
        parts = (attention.q_proj(states), attention.k_proj(states), attention.v_proj(states))
        q, k, v = (part.view(batch, block, -1, attention.head_dim).transpose(1, 2) for part in parts)
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        if self.cache[number] is None:
            self.cache[number] = [one.new_zeros(batch, one.shape[1], ROOM, one.shape[3]) for one in (k, v)]
        late = int(FAULT == "values" and int(self.lengths.min()) > 4)
        for held, new, moved in zip(self.cache[number], (k, v), (0, late), strict=True):
            held[torch.arange(batch)[:, None], :, self.slots + moved] = new.transpose(1, 2)
        k, v = (held[:, :, : mask.shape[-1]] for held in self.cache[number])
        more = q.shape[1] // k.shape[1]
        out = sdpa(q, k.repeat_interleave(more, 1), v.repeat_interleave(more, 1), attn_mask=mask)
        return attention.o_proj(out.transpose(1, 2).reshape(batch, block, -1))

    def drop(self, counts: list[int]) -> None:
        kept = torch.tensor(counts) - (torch.tensor(counts) > 1) * int(FAULT == "rollback")
        self.lengths = self.lengths - kept


@eqcheck.decoder(name="slab", families=("rotary",), padding_sides=("right",))
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    return decode((Slab(target), Slab(draft)), request)
