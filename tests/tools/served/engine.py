"""A small speculative engine: rows join and leave a batch, prompts come in chunks, drafts are verified, greedily.

Rows are taken in as slots get free, so a request with more rows than slots is a sequence for the engine: later rows
follow earlier ones in their slots, and find their prefixes cached, in a build that keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import transformers
from transformers import AutoModelForCausalLM

from eqcheck.contract.decoders import Request
from eqcheck.engines.abduction.queries import looked_up
from served.memory import Feed, Memory, Row, wrap

_LOADED: dict[tuple[str, str], Any] = {}


class Engine:
    """An engine; a build names its memory, its slots, and how many tokens of a prompt it takes in a step."""

    memory: ClassVar[type[Memory]]
    slots: ClassVar[int] = 2
    chunk: ClassVar[int] = 24

    def open(self) -> None:
        self.version = transformers.__version__
        torch.set_num_threads(1)

    def close(self) -> None: ...

    @torch.no_grad()
    def __call__(self, target: str, draft: str, request: Request) -> list[list[int]]:
        model = loaded(target, request.dtype)
        self.request, self.drafter = request, loaded(draft, request.dtype) if request.drafting == "model" else None
        asked = zip(request.prompts, request.rows, strict=True)
        rows = [Row(n, list(prompt), len(prompt), options) for n, (prompt, options) in enumerate(asked)]
        self.observed: dict[str, Any] = {"drafted": 0, "accepted": 0, "prefix_hits": 0, "rounds": [[] for _ in rows]}
        verified = request.num_draft_tokens + 1
        longest = max(len(row.text) + row.options.max_new_tokens for row in rows) + verified
        store = self.store = self.memory(model, self.slots, longest, self.chunk, verified)
        waiting, running = list(rows), list[Row]()
        while waiting or running:
            while waiting and len(running) < self.slots:
                row = waiting.pop(0)
                row.slot = len(running)
                row.fed = store.open(row)
                self.observed["prefix_hits"] += row.fed > 0
                running.append(row)
            feeds = [self.feed(row) for row in self.stepping(running)]
            for feed, answers in zip(feeds, self.forward(model, feeds), strict=True):
                self.answered(feed, answers)
            for row in [row for row in running if row.ended]:
                self.leave(row, running)
        return [row.new for row in rows]

    def stepping(self, running: list[Row]) -> list[Row]:
        """The rows that take part in a step."""
        return running

    def leave(self, row: Row, running: list[Row]) -> None:
        """A row leaves the batch."""
        running.remove(row)
        self.store.close(row, running)

    def feed(self, row: Row) -> Feed:
        """The next tokens of a row: of its prompt, or its newest one and drafts."""
        if row.fed < len(row.text) - 1 or not row.new:
            return Feed(row, row.text[row.fed : row.fed + self.chunk])
        drafts = self.drafts(row)
        return Feed(row, [row.text[-1], *drafts], drafts)

    def drafts(self, row: Row) -> list[int]:
        """Draft tokens for a row; its last place belongs to what follows them."""
        n = len(row.new)
        k = min(self.request.num_draft_tokens, row.options.max_new_tokens - n - 1)
        if self.request.drafting == "dictated":
            return list(self.request.drafts[row.number][n : n + k])
        if self.request.drafting == "ngram":
            return looked_up(row.text, k)
        drafts = list[int]()
        while self.drafter is not None and len(drafts) < k:
            ids = torch.tensor([[*row.text, *drafts]])
            drafts.append(int(self.drafter(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
        return drafts

    def forward(self, model: Any, feeds: list[Feed]) -> list[list[int]]:
        """The target's answer to each token that is fed."""
        width = max(len(feed.tokens) for feed in feeds)
        fill = [width - len(feed.tokens) for feed in feeds]
        self.store.begin(feeds)
        positions = [self.positions(feed) for feed in feeds]
        output = model(
            input_ids=torch.tensor(
                [f.tokens + [self.request.pad_token_id] * n for f, n in zip(feeds, fill, strict=True)]
            ),
            position_ids=torch.tensor([p + p[-1:] * n for p, n in zip(positions, fill, strict=True)]),
            attention_mask=_masks(model, len(feeds), width),
            past_key_values=self.store,
            use_cache=True,
        )
        best = output.logits.argmax(-1).tolist()
        return [answers[: len(feed.tokens)] for feed, answers in zip(feeds, best, strict=True)]

    def positions(self, feed: Feed) -> list[int]:
        """The position ids of the tokens that are fed."""
        return feed.positions

    def answered(self, feed: Feed, answers: Sequence[int]) -> None:
        """Accept drafts, and append what follows them; or go on with the prompt."""
        row, given = feed.row, len(feed.tokens) - len(feed.drafts)
        if row.fed + given < len(row.text):
            self.store.commit(feed, given)
            row.fed += given
            return
        accepted = self.accepted(feed, answers[given - 1 :])
        start = len(row.new)
        self.append(row, [*feed.drafts[:accepted], answers[given - 1 + accepted]])
        if start:
            self.observed["rounds"][row.number].append([start, feed.drafts, len(row.new)])
        self.observed["drafted"] += len(feed.drafts)
        self.observed["accepted"] += accepted
        self.store.commit(feed, given + accepted)
        row.fed += given + accepted

    def accepted(self, feed: Feed, answers: Sequence[int]) -> int:
        """How many drafts agree with the target."""
        agree = [draft == answer for draft, answer in zip(feed.drafts, answers, strict=False)]
        return agree.index(False) if False in agree else len(agree)

    def append(self, row: Row, tokens: list[int]) -> None:
        """Append tokens to a row, up to its end."""
        for token in tokens:
            if not row.ended:
                row.text.append(token)
                row.ended = token in row.options.eos_token_ids or len(row.new) >= row.options.max_new_tokens


def loaded(folder: str, dtype: str) -> Any:
    """The model of a folder, whose layers ask a `Memory`."""
    if (folder, dtype) not in _LOADED:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        wrap(model)
        _LOADED[folder, dtype] = model
    return _LOADED[folder, dtype]


def _masks(model: Any, rows: int, width: int) -> Any:
    """A mask that the model takes as it is; its attention asks the memory."""
    if not hasattr(model.config, "layer_types") and not hasattr(model.config, "layers_block_type"):
        return torch.ones(rows, 1, width, width, dtype=torch.bool)
    return dict.fromkeys(("full_attention", "sliding_attention", "linear_attention", "conv", "attention", "mamba"))
