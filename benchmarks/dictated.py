"""A draft that costs about what a real draft costs and is accepted as often as one says.

It runs the real draft's layers, and then proposes the target's true next token where a table of contexts says so. It
never knows which row it is in: an extra cache layer carries the token and the position of every entry, through whatever
the engine does to its cache, and the last few tokens that a query sees identify its context.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from benchmarks.traces import accepted
from eqcheck.contract.cache_names import cache_of, named_as_installed

MEMORY = 8  # tokens that identify a context
ANSWERED = 16  # of a longer block only so many last tokens are answered: nobody drafts in the middle of a prompt
SURE = 30.0
ELSE = 1  # proposed where nothing was dictated; no EOS, at which some engines stop drafting
_BASE = 256  # numbers are kept as two digits, which every floating dtype holds exactly
_FACTOR = 0x1E3779B97F4A7C15
_FACTORS = torch.from_numpy(np.random.default_rng(7).integers(1 << 62, size=MEMORY))


class DictatedDraft(LlamaForCausalLM):
    """A Llama that proposes what a table says; make it with `dictated`."""

    def teach(self, rows: Sequence[Sequence[int]], starts: Sequence[int], acceptance: float | str, seed: int) -> None:
        """Agree with ``rows`` (prompts and true outputs, which begin at ``starts``) at this rate per token.

        Or as the generator of this name has it (`benchmarks.traces`), for as many draft tokens as it was made for.
        """
        table: dict[int, int] = {}
        for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
            right = _right(len(row) - start, acceptance, (seed, number))
            tokens = torch.tensor(row)
            at = torch.arange(start - 1, len(row) - 1)
            back = at[:, None] - torch.arange(MEMORY)
            recent = torch.where(back >= 0, tokens[back.clamp(min=0)], 0)
            for key, place in zip(_hash(recent, at).tolist(), at.tolist(), strict=True):
                wrong = (row[place + 1] + 1) % self.config.vocab_size
                table.setdefault(key, row[place + 1] if right[place + 1 - start] else wrong)
        keys = sorted(table)
        self._keys = torch.tensor(keys, device=self.device)
        self._next = torch.tensor([table[key] for key in keys], device=self.device)

    @named_as_installed
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As a Llama's, the logits replaced by the table's proposals; of a long block only after its last tokens."""
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(past, past + input_ids.shape[1], device=self.device)[None]
        output = super().forward(input_ids, attention_mask, position_ids, cache, **kwargs)
        positions = position_ids.expand_as(input_ids)
        tokens, places = self._remember(cache_of(output), input_ids, positions)
        if attention_mask is not None and attention_mask.dim() == 2:  # a 4-D mask hides only what comes later
            places = places.masked_fill(attention_mask == 0, -MEMORY)
        prompts = positions[:, -ANSWERED:]
        keys = _hash(_recent(tokens, places, prompts), prompts)
        found = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        proposed = torch.where(self._keys[found] == keys, self._next[found], ELSE)
        answers = output.logits[:, -proposed.shape[1] :]
        # So far above the rest that an engine that asks how sure the draft is finds it sure.
        answers.zero_().scatter_(2, proposed[:, -answers.shape[1] :, None], SURE)
        return output

    def _remember(self, cache: Any, tokens: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write tokens and positions into the extra cache layer; what it holds of all slots, ``[rows, slots]`` each."""
        if cache is None:
            return tokens, places
        fields = torch.stack([tokens // _BASE, tokens % _BASE, places // _BASE, places % _BASE], -1)
        entry = fields[:, None].to(self.dtype)  # [rows, 1 head, block, 4]
        held, _ = cache.update(entry, entry, self.config.num_hidden_layers - 1)
        digits = held[:, 0].long()
        return digits[..., 0] * _BASE + digits[..., 1], digits[..., 2] * _BASE + digits[..., 3]


def dictated(draft: LlamaForCausalLM) -> DictatedDraft:
    """A draft with these weights that can be taught what to propose."""
    model: DictatedDraft = DictatedDraft(copy.deepcopy(draft.config))
    model.load_state_dict(draft.state_dict())
    model.to(device=draft.device, dtype=draft.dtype)
    model.config.num_hidden_layers += 1  # of the cache; the model has as many layers as before
    model.generation_config = draft.generation_config
    model.eval()
    return model


def _right(tokens: int, acceptance: float | str, seed: tuple[int, int]) -> list[bool]:
    """Which of so many tokens of a row the draft is to have right."""
    if not isinstance(acceptance, str):
        return [bool(chance < acceptance) for chance in np.random.default_rng(seed).random(tokens)]
    found: list[bool] = []
    for count in accepted(acceptance, tokens, seed):
        found += [True] * count + [False]  # after all have been accepted nothing is asked of the draft
    return found[:tokens]


def _recent(tokens: torch.Tensor, places: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The last tokens up to each query by position, ``[rows, block, MEMORY]``; 0 where there is none."""
    recalled = positions[..., None] - torch.arange(MEMORY, device=tokens.device)  # [rows, block, MEMORY]
    there = recalled[..., None] == places[:, None, None]  # [rows, block, MEMORY, slots]
    return (there * tokens[:, None, None]).amax(-1)


def _hash(recent: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One int64 per context, ``[...]``, of its tokens ``[..., MEMORY]`` and position ``[...]``; it wraps around."""
    return (recent * _FACTORS.to(recent.device)).sum(-1) + positions * _FACTOR
