"""Ragged: batch speculative decoding without realignment.

Every row of the caches has a write offset of its own. A round writes each row's newest token and its drafts behind the
row's tokens, wherever that is, and a rejected draft is simply overwritten by the next round: there is nothing to
unpad, append and repad. Masks and positions follow from the offsets. So a row may join or leave between any two
rounds (continuous batching). Prompts are fed in a forward of their own, which costs about what a round costs however
few they are; so they wait until a quarter of the batch is free. Equally long prompts that find the engine idle need
none: their first round feeds them.

Rows are greedy or sampled, each by options of its own, in one batch; `serving.sampling` says how.

    >>> from eqcheck.hashlm import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Ragged(target, draft, num_draft_tokens=4, batch_size=8)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls
    ([10, 10], 2)

Works on causal LMs of ``transformers`` that take ``position_ids`` and a 4-D ``attention_mask`` and keep keys and values
of every token (Llama, Qwen3, GPT-2, GPT-NeoX, Mixtral, Mistral with its window), on any device, in any floating dtype.

Memory: in either model, keys and values of at most ``4 * rows * (longest row + num_draft_tokens + 1)`` slots, where
rows are those in flight (`serving.row_cache.WASTE`); a row much longer than the others makes room for each of them.
With ``kv_bytes`` the caches of both models together never take more than so many bytes (after SpecMemo,
arXiv 2506.01986): rows wait until there is room for them up to their end, and where it becomes narrow fewer tokens are
drafted. A prompt for which there is no room even alone is refused before anything is decoded.
"""

from __future__ import annotations

from typing import Any

import eqcheck

from .serving import SAMPLING, Engine, Pool, Prompt, PromptError, Row, decode, enough, speculate
from .serving.checks import at_least_one, name_of
from .serving.pool import bytes_for, slots_within


class Ragged(Engine):
    """One write offset per row, no realignment; see the module."""

    def __init__(self, target: Any, draft: Any, *, kv_bytes: int | None = None, **settings: Any) -> None:
        super().__init__(target, draft, **settings)
        self.kv_bytes = None if kv_bytes is None else at_least_one("kv_bytes", kv_bytes)
        self.most = None if kv_bytes is None else slots_within(kv_bytes, (target, draft))

    def begin(self) -> None:
        self.pool = Pool(self.target, self.draft, self.num_draft_tokens, self.prefill_chunk, self.most)
        self.rows = self.pool.rows

    def room(self) -> int:
        return 0 if self.waiting else enough(self.batch_size - len(self.rows), self.batch_size)

    def join(self, rows: list[Row]) -> None:
        self.waiting += rows

    def round(self) -> list[Row]:
        self._let_in()
        took_part = list(self.rows)
        k = self.pool.draft_tokens()
        speculate(self.pool.target, self.pool.draft, took_part, k, self.stats, self.noise)
        self.stats.verify_calls += 1
        self.pool.drop_finished()
        self.stats.kv_bytes = max(self.stats.kv_bytes, self.pool.kv_bytes)
        return took_part

    def _let_in(self) -> None:
        """Let those join that there is room for; there is for the first where nobody is in flight."""
        joining: list[Row] = []
        for row in self.waiting:
            if self.pool.takes(row, joining):
                joining.append(row)
        if joining:
            self.waiting = [row for row in self.waiting if row not in joining]
            self.stats.prefill_calls += self.pool.join(joining)

    def _check(self, prompt: Prompt) -> None:
        super()._check(prompt)
        tokens, new = len(prompt.token_ids), prompt.max_new_tokens
        if self.most is not None and tokens + new > self.most:
            raise PromptError(
                f"{name_of(prompt)}: {tokens} tokens and {new} new ones need room for {tokens + new}, and kv_bytes "
                f"{self.kv_bytes} has room for {self.most}; shorten the prompt, ask for fewer new tokens, or give at "
                f"least {bytes_for(tokens + new, (self.target, self.draft))} bytes"
            )


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
