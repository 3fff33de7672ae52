"""The random checkpoint, a token at a time, without the modules of transformers, which take most of the time there.

Drawing asks for thousands of tokens one after the other. Verdicts rest on forwards of the whole text by transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

_PADDED = -1e30  # of an attention's score, where a column is a pad


class Steps:
    """The scores of a tiny Llama for rows that grow together; prompts are padded behind their ends.

    ``model`` is a `LlamaForCausalLM` with default rotary positions. `next` returns ``[rows, vocabulary]``, as the model
    does up to rounding.

    >>> from eqcheck.engines.checkpoints.folders import checkpoint
    >>> model = checkpoint().models()[0]
    >>> steps = Steps(model, [[1, 2, 3]])
    >>> bool(torch.allclose(steps.next([4])[0], model(torch.tensor([[1, 2, 3, 4]])).logits[0, -1]))
    True
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        config = model.config
        self.weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self.heads, self.groups, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.layers, self.epsilon = range(config.num_hidden_layers), config.rms_norm_eps
        self.rotary = model.model.rotary_emb  # its own, since it rounds angles to float32
        self.cached: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.lengths = torch.tensor(list(map(len, prompts)))
        places = torch.arange(int(self.lengths.max())).expand(len(prompts), -1)
        ids = torch.zeros_like(places)
        for line, prompt in zip(ids, prompts, strict=True):
            line[: len(prompt)] = torch.tensor(prompt)
        like = self.weights["lm_head.weight"]
        self.padded = torch.where(places < self.lengths[:, None], 0.0, _PADDED).to(like)
        causal = torch.full((places.shape[1],) * 2, _PADDED).to(like).triu(1)
        scores = self._forward(ids, places, causal)
        self.first = scores[torch.arange(len(prompts)), self.lengths - 1]  # the scores after each prompt

    def next(self, tokens: Sequence[int]) -> torch.Tensor:
        """The scores after one token more of each row."""
        self.padded = functional.pad(self.padded, (0, 1))
        scores = self._forward(torch.tensor(tokens)[:, None], self.lengths[:, None], self.padded.new_zeros(1, 1))
        self.lengths = self.lengths + 1
        return scores[:, 0]

    @torch.no_grad()
    def _forward(self, ids: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights, (rows, count) = self.weights, ids.shape
        held, begins = functional.embedding(ids, weights["model.embed_tokens.weight"]), not self.cached
        cosines, sines = (angles[:, None] for angles in self.rotary(held, places))
        seen = self.padded[:, None, None] + mask
        for layer in self.layers:
            at = f"model.layers.{layer}."
            normed = self._norm(held, f"{at}input_layernorm.weight")
            query, key, value = (
                (normed @ weights[f"{at}self_attn.{name}_proj.weight"].T)
                .view(rows, count, heads, self.width)
                .transpose(1, 2)
                for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups))
            )
            query, key = (_turned(vectors, cosines, sines) for vectors in (query, key))
            if begins:
                self.cached.append((key, value))
            else:
                keys, values = self.cached[layer]
                self.cached[layer] = torch.cat([keys, key], 2), torch.cat([values, value], 2)
            key, value = (kept.repeat_interleave(self.heads // self.groups, 1) for kept in self.cached[layer])
            told = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            joined = told.transpose(1, 2).reshape(rows, count, -1)
            held = held + joined @ weights[f"{at}self_attn.o_proj.weight"].T
            normed = self._norm(held, f"{at}post_attention_layernorm.weight")
            gate, up = (normed @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            held = held + (functional.silu(gate) * up) @ weights[f"{at}mlp.down_proj.weight"].T
        scores: torch.Tensor = self._norm(held, "model.norm.weight") @ weights["lm_head.weight"].T
        return scores

    def _norm(self, held: torch.Tensor, name: str) -> torch.Tensor:
        rounded = held.float()  # as the model's own norms do
        scale = (rounded.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()
        normed: torch.Tensor = self.weights[name] * (rounded * scale).to(held)
        return normed


def _turned(vectors: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = vectors.chunk(2, -1)
    return vectors * cosines + torch.cat([-second, first], -1) * sines
