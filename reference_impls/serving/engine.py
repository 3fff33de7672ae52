"""The calling convention of the engines, and the loop around their rounds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from .checks import (
    OutOfMemory,
    at_least_one,
    check_model,
    check_pair,
    check_prompt,
    is_out_of_memory,
    max_positions,
    one_of,
    what_fits,
)
from .requests import Prompt, PromptError, Row, Update
from .row_cache import ROOM
from .sampling import NOISE
from .stats import Stats


class Engine:
    """A batch speculative decoder of a target and a draft, both causal LMs of ``transformers``.

    At most ``batch_size`` rows are verified in one forward, each with up to ``num_draft_tokens`` draft tokens.
    ``tokenizers``, the target's and the draft's, are compared if given. ``prefill_chunk`` bounds how many tokens of
    a prompt one forward takes. Prompts that ask for it are sampled; ``noise``, ``"row"`` or ``"position"``, says how
    (`sampling`). An engine decodes one `generate` or `stream` at a time.

    Raises `Unsupported` for models it cannot be right for and for numbers below 1.
    """

    windows: ClassVar[bool] = True  # whether it is right for models with a sliding window

    def __init__(
        self,
        target: Any,
        draft: Any,
        *,
        num_draft_tokens: int = 4,
        batch_size: int = 8,
        prefill_chunk: int | None = None,
        tokenizers: Sequence[Any] = (),
        noise: str = "row",
    ) -> None:
        self.target, self.draft = target, draft
        self.check_models(tokenizers)
        self.num_draft_tokens = at_least_one("num_draft_tokens", num_draft_tokens)
        self.batch_size = at_least_one("batch_size", batch_size)
        self.prefill_chunk = None if prefill_chunk is None else at_least_one("prefill_chunk", prefill_chunk)
        self.noise = one_of("noise", noise, NOISE)
        self.stats = Stats()
        self.rows: list[Row] = []
        self.waiting: list[Row] = []  # joined, but there is no room for them in a round yet
        self._joining: list[Row] = []
        self._streaming = False

    # The parts of an engine:

    def check_models(self, tokenizers: Sequence[Any]) -> None:
        """Refuse what the engine cannot be right for."""
        check_pair(self.target, self.draft, tokenizers)
        for name, model in (("target", self.target), ("draft", self.draft)):
            check_model(name, model, windows=self.windows)

    @property
    def models(self) -> tuple[Any, ...]:
        """The models that keep keys and values of the rows."""
        return self.target, self.draft

    def begin(self) -> None:
        """Empty caches."""
        raise NotImplementedError

    def room(self) -> int:
        """Return how many more rows could join now."""
        raise NotImplementedError

    def join(self, rows: list[Row]) -> None:
        """Take in rows, at most `room` many."""
        raise NotImplementedError

    def round(self) -> list[Row]:
        """Draft, verify and commit for some of ``self.rows``; drop finished rows; return the participants."""
        raise NotImplementedError

    # The interface for callers:

    @property
    def busy(self) -> bool:
        """Return whether there are rows to decode, those included that were taken since the last round."""
        return bool(self.rows or self.waiting or self._joining)

    def generate(
        self, prompts: Sequence[Prompt | Sequence[int]], *, max_new_tokens: int = 64, stop_token_ids: Sequence[int] = ()
    ) -> list[list[int]]:
        """New tokens of each prompt, in the order given: what the target emits for it alone, or drawn from its law.

        A plain list of token ids gets the limit and stop ids given here; a `Prompt` has its own. A row ends with its
        stop id, which is included. Raises `PromptError` before anything is decoded.
        """
        requests = [p if isinstance(p, Prompt) else Prompt(p, max_new_tokens, stop_token_ids) for p in prompts]
        numbered = [replace(prompt, id=i) for i, prompt in enumerate(requests)]
        for prompt in numbered:
            self._check(prompt)
        outputs: list[list[int]] = [[] for _ in numbered]
        for update in self.stream(numbered):
            outputs[update.id] += update.token_ids
        return outputs

    def stream(self, prompts: Iterable[Prompt | None]) -> Iterator[Update]:
        """Take prompts as they come and yield tokens as they are committed.

        ``None`` says that nothing has arrived yet: the engine goes on with the rows it has and asks again after
        the next round, or at once if it is not `busy`: only then let the iterator wait. No more is taken than fits. A
        prompt that cannot be decoded is answered with an update that carries the error; the others go on.
        """
        if self._streaming:
            raise RuntimeError(
                "this engine is decoding another stream; finish or close that one, or make a second engine"
            )
        self._streaming = True
        self.stats, self.rows, self.waiting = Stats(), [], []
        self.begin()
        try:
            yield from self._decode(iter(prompts))
        finally:
            self._streaming = False
            self.rows, self.waiting, self._joining = [], [], []
            self.begin()

    def _decode(self, arriving: Iterator[Prompt | None]) -> Iterator[Update]:
        open_ = True
        while open_ or self.rows or self.waiting:
            joining = self._joining = []
            while open_ and len(joining) < self.room():
                try:
                    prompt = next(arriving)
                except StopIteration:
                    open_ = False
                    break
                if prompt is None:
                    break
                try:
                    self._check(prompt)
                except PromptError as error:
                    yield Update(prompt.id, [], "error", error)
                    continue
                joining.append(Row(prompt))
            if not (joining or self.rows or self.waiting):
                continue
            began = time.perf_counter()
            updates = self._step(joining)
            self._joining = []
            self.stats.seconds["total"] += time.perf_counter() - began
            yield from updates

    @torch.no_grad()
    def _step(self, joining: list[Row]) -> list[Update]:
        live = self.rows + self.waiting + joining
        slots = max(len(row.tokens) for row in live) + self.num_draft_tokens + 1
        try:
            if joining:
                self.join(joining)
            done = self.round()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self.begin()
            traceback.clear_frames(error.__traceback__)  # they hold the caches
            message = what_fits(self.models, self.batch_size, len(live), slots, ROOM**2)
            raise OutOfMemory(message) from error
        self.stats.rounds += 1
        return [row.update() for row in done]

    def _check(self, prompt: Prompt) -> None:
        positions = min(map(max_positions, self.models))
        check_prompt(prompt, self.target.config.get_text_config().vocab_size, positions)
