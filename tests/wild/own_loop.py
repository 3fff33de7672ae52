"""Own loop over the model's layers, with keys and values in plain tensors that are gathered by row from their end."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import eqcheck

SHIFTED = 0  # by how many slots the gather is wrong; a test sets it


class Runner:
    """Rows end at the right edge; ``keep`` says how many entries of each row are valid."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: list[Any] = [None] * len(model.model.layers)
        self.keep: Any = None

    def feed(self, ids: torch.Tensor, counts: list[int]) -> Any:
        """Logits of a right-aligned block, of which the last ``counts`` tokens of each row are real."""
        inner, (batch, block) = self.model.model, ids.shape
        real = torch.arange(block) >= block - torch.tensor(counts)[:, None]
        before = torch.zeros(batch, 0, dtype=torch.bool) if self.keep is None else self.keep
        seen = torch.cat([before, real], dim=1)
        positions = (seen.long().cumsum(1) - 1).clamp(min=0)[:, -block:]
        slots = torch.arange(seen.shape[1])
        mask = seen[:, None] & (slots[None, None] <= slots[None, -block:, None])
        mask = (mask | torch.eye(seen.shape[1], dtype=torch.bool)[None, -block:])[:, None]
        states = inner.embed_tokens(ids)
        rotary = inner.rotary_emb(states, positions)
        for number, layer in enumerate(inner.layers):
            states = states + self.attend(number, layer.self_attn, layer.input_layernorm(states), rotary, mask)
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        self.keep = seen
        return self.model.lm_head(inner.norm(states))

    def attend(self, number: int, attention: Any, states: torch.Tensor, rotary: Any, mask: Any) -> Any:
        batch, block, _ = states.shape
        parts = (attention.q_proj(states), attention.k_proj(states), attention.v_proj(states))
        q, k, v = (part.view(batch, block, -1, attention.head_dim).transpose(1, 2) for part in parts)
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        if self.cache[number] is not None:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(self.cache[number], (k, v), strict=True))
        self.cache[number] = (k, v)
        more = q.shape[1] // k.shape[1]
        out = sdpa(q, k.repeat_interleave(more, 1), v.repeat_interleave(more, 1), attn_mask=mask)
        return attention.o_proj(out.transpose(1, 2).reshape(batch, block, -1))

    def drop(self, counts: list[int]) -> None:
        """Forget the newest entries of each row, by a gather from the end."""
        size = self.keep.shape[1]
        index = torch.arange(size)[None] - torch.tensor(counts)[:, None]
        self.keep = self.keep.gather(1, index.clamp(min=0)) & (index >= 0)
        index = (index - SHIFTED).clamp(min=0)
        for number, pair in enumerate(self.cache):
            self.cache[number] = tuple(
                one.gather(2, index[:, None, :, None].expand(-1, one.shape[1], -1, one.shape[3])) for one in pair
            )


def decode(runners: tuple[Any, Any], request: eqcheck.Request) -> list[list[int]]:
    rows, done = [list(prompt) for prompt in request.prompts], [False] * len(request.prompts)
    fed = [[0] * len(rows), [0] * len(rows)]

    def feed(which: int, until: list[list[int]]) -> Any:
        new = [row[fed[which][n] :] for n, row in enumerate(until)]
        width = max(map(len, new))
        ids = torch.tensor([[request.pad_token_id] * (width - len(block)) + block for block in new])
        fed[which][:] = map(len, until)
        return runners[which].feed(ids, list(map(len, new)))

    def take(row: int, token: int) -> bool:
        rows[row].append(token)
        length = len(rows[row]) - len(request.prompts[row])
        done[row] = token in request.eos_token_ids or length >= request.max_new_tokens
        return not done[row]

    while not all(done):
        guesses = [list(row) for row in rows]
        for _ in range(request.num_draft_tokens):
            for row, token in zip(guesses, feed(1, guesses)[:, -1].argmax(-1).tolist(), strict=True):
                row.append(token)
        before = list(map(len, rows))
        answers = feed(0, guesses).argmax(-1)
        for n, guess in enumerate(guesses):
            for at in range(before[n], len(guess) + 1):
                if done[n]:
                    break
                token = int(answers[n, at - len(guess) - 1])
                if not take(n, token) or at == len(guess) or token != guess[at]:
                    break
        for which, runner in enumerate(runners):  # finished rows are fed their last token again
            kept = [min(len(row) - 1, fed[which][n]) for n, row in enumerate(rows)]
            runner.drop([fed[which][n] - count for n, count in enumerate(kept)])
            fed[which][:] = kept
    return [row[len(prompt) :] for row, prompt in zip(rows, request.prompts, strict=True)]


@eqcheck.decoder(name="own-loop", families=("rotary",), padding_sides=("left",))
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    return decode((Runner(target), Runner(draft)), request)
