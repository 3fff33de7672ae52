"""Prompts for an engine, its answers, and its state of a row while it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqcheck.contract.decoders import RowOptions

GREEDY = RowOptions(1)


class PromptError(ValueError):
    """A prompt that the engine cannot decode; nothing of it was started."""


@dataclass(frozen=True)
class Prompt:
    """Token ids to continue, by at most ``max_new_tokens`` or up to the first of ``stop_token_ids``.

    ``id`` is whatever tells the caller's prompts apart; updates carry it. Of ``sampling``, temperature, top-k, top-p,
    min-p and seed are read; without it the prompt is decoded greedily.
    """

    token_ids: Sequence[int]
    max_new_tokens: int = 64
    stop_token_ids: Sequence[int] = ()
    id: Any = None
    sampling: RowOptions | None = None


@dataclass(frozen=True)
class Update:
    """Tokens just committed to a prompt. With ``finish_reason`` set they are its last.

    ``finish_reason`` is ``"stop"`` (the last token is a stop id), ``"length"`` or ``"error"``; then ``error`` says
    what is wrong with the prompt.
    """

    id: Any
    token_ids: list[int]
    finish_reason: str | None = None
    error: PromptError | None = None


class Row:
    """A prompt being decoded. ``tokens`` are the prompt and what is committed; all but the newest are cached.

    ``behind`` is how many tokens the draft's cache holds less than that, ``unfed`` how many the target's does: after a
    round none, for a round feeds them first. ``waiting_since`` is for engines that let rows wait. ``seed`` and
    ``random`` are where the row's noise comes from, if not from torch's global generator (`sampling`).
    """

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.tokens = list(prompt.token_ids)
        self.end = len(self.tokens) + prompt.max_new_tokens
        self.stop = frozenset(prompt.stop_token_ids)
        self.behind = self.unfed = 0
        self.waiting_since = 0
        self.options = prompt.sampling or GREEDY
        self.seed = self.options.seed
        self.random: np.random.Generator | None = None
        self.finish_reason: str | None = None
        self._reported = len(self.tokens)

    @property
    def cached(self) -> int:
        """Return how many tokens the target's cache holds between rounds, once it was fed."""
        return len(self.tokens) - 1

    @property
    def committed(self) -> int:
        """Return how many new tokens there are."""
        return len(self.tokens) - len(self.prompt.token_ids)

    def budget(self, num_draft_tokens: int) -> int:
        """Return how many draft tokens can still be accepted:
        the last place belongs to the correction or bonus token.
        """
        return min(num_draft_tokens, self.end - len(self.tokens) - 1)

    def commit(self, block: Sequence[int]) -> int:
        """Append tokens up to the first stop id, and say how many; the limit is the caller's to keep."""
        for count, token in enumerate(block, start=1):
            self.tokens.append(token)
            if token in self.stop:
                self.finish_reason = "stop"
                return count
        if len(self.tokens) == self.end:
            self.finish_reason = "length"
        return len(block)

    def update(self) -> Update:
        """The tokens that were committed since the last update."""
        new = self.tokens[self._reported :]
        self._reported = len(self.tokens)
        return Update(self.prompt.id, new, self.finish_reason)
