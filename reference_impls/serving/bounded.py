"""Decoding within a number of bytes of keys and values, after SpecMemo (arXiv 2506.01986): rows wait, drafts shrink."""

from __future__ import annotations

from typing import Any

from .checks import at_least_one, name_of
from .engine import Engine
from .pool import Pool, bytes_for, enough, slots_within
from .requests import Prompt, PromptError, Row


class Bounded(Engine):
    """An engine over a `Pool`; with ``kv_bytes`` the caches of both models never take more than so many bytes.

    A row joins when there is room for it up to its end, and waits until then. Where it becomes narrow fewer tokens are
    drafted (`Pool.draft_tokens`). A prompt for which there is no room even alone is refused before anything is decoded.
    """

    pool: Pool

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

    def let_in(self) -> list[Row]:
        """Let those join that there is room for, and say who is in flight; where nobody was, there is for the first."""
        joining: list[Row] = []
        for row in self.waiting:
            if self.pool.takes(row, joining):
                joining.append(row)
        if joining:
            self.waiting = [row for row in self.waiting if row not in joining]
            self.stats.prefill_calls += self.pool.join(joining)
        return list(self.rows)

    def let_go(self) -> None:
        """Let go of the rows that finished."""
        self.stats.verify_calls += 1
        self.pool.drop_finished()
        self.stats.kv_bytes = max(self.stats.kv_bytes, self.pool.kv_bytes)

    def _check(self, prompt: Prompt) -> None:
        super()._check(prompt)
        tokens, new = len(prompt.token_ids), prompt.max_new_tokens
        if self.most is not None and tokens + new > self.most:
            raise PromptError(
                f"{name_of(prompt)}: {tokens} tokens and {new} new ones need room for {tokens + new}, and kv_bytes "
                f"{self.kv_bytes} has room for {self.most}; shorten the prompt, ask for fewer new tokens, or give at "
                f"least {bytes_for(tokens + new, (self.target, self.draft))} bytes"
            )
