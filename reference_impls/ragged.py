"""Ragged: batch speculative decoding without realignment.

Every row of the caches has a write offset of its own. A round writes each row's newest token and its drafts behind the
row's tokens, wherever that is, and a rejected draft is simply overwritten by the next round: there is nothing to
unpad, append and repad. Masks and positions follow from the offsets. So a row may join or leave between any two
rounds (continuous batching). Prompts are fed in a forward of their own, which costs about what a round costs however
few they are; so they wait until a quarter of the batch is free. Equally long prompts that find the engine idle need
none: their first round feeds them.

Rows are greedy or sampled, each by options of its own, in one batch; `serving.sampling` says how.

    >>> from eqcheck.transparent.hashlm.model import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Ragged(target, draft, num_draft_tokens=4, batch_size=8)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls
    ([10, 10], 2)

Works on causal LMs of ``transformers`` that take ``position_ids`` and a 4-D ``attention_mask`` and keep keys and values
of every token (Llama, Qwen3, GPT-2, GPT-NeoX, Mixtral, Mistral with its window), on any device, in any floating dtype.

Memory: in either model, keys and values of at most ``4 * rows * (longest row + num_draft_tokens + 1)`` slots, where
rows are those in flight (`serving.row_cache.WASTE`); a row much longer than the others makes room for each of them.
With ``kv_bytes`` the caches of both models together never take more than so many bytes (`serving.bounded`).
"""

from __future__ import annotations

from typing import Any

import eqcheck

from .serving import SAMPLING, Bounded, Row, decode, speculate


class Ragged(Bounded):
    """One write offset per row, no realignment; see the module."""

    def round(self) -> list[Row]:
        took_part, k = self.let_in(), self.pool.draft_tokens()
        speculate(self.pool.target, self.pool.draft, took_part, k, self.stats, self.noise)
        self.let_go()
        return took_part


@eqcheck.decoder(
    name="ragged",
    padding_sides=("left", "right"),
    families=("rotary", "learned", "window"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows"),
    origin="one write offset per row, no realignment: see the module's docstring",
    engine=Ragged,
    capabilities=SAMPLING,
    seeds="mates",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of each row, two rows at a time, so that rows join and leave."""
    return decode(Ragged, target, draft, request, batch_size=2)
