"""Faults in feeding a row to its cache (K): of its tokens some are fed twice, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from eqcheck.catalogue.engines.batch import REJECTED, BatchCache, Batched
from eqcheck.catalogue.engines.blocks import PagedEngine, PagedModel
from eqcheck.catalogue.engines.columns import Static
from eqcheck.catalogue.engines.engine import RequestEngine, RoundEngine, Rows, left_padded
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.engines.rows import PerRow, Uncached
from eqcheck.catalogue.faults.fault import HANDED, amount, fault, planted
from eqcheck.catalogue.faults.rollback import (
    SHOWN,
    Remembering,
    Shifted,
    Showing,
    Stretched,
)

FED_OF_PROMPT = amount("prompt kept", 12, 10, 14)


@planted("realigned holes per_row staged", "continuous", edit="newest-again")
@fault("K4-last-token-twice", "cache/duplicate-entry", "huggingface/transformers#47433")
class LastTokenTwice:
    """The last cached token is fed again before the newest one."""

    shifted = Shifted

    class InBatch(Showing, Remembering):
        def feed(self, blocks: Rows) -> list[torch.Tensor]:
            if not self.holds.shape[1]:
                return super().feed(blocks)
            self.lengths = [length - 1 for length in self.lengths]
            rows = zip(self.texts, self.lengths, blocks, strict=True)
            blocks = [[text.get(at, self.pad), *block] for text, at, block in rows]
            logits = super().feed(blocks)
            for holds, block in zip(self.holds, blocks, strict=True):
                holds[-len(block)] = SHOWN
            return [row[1:] for row in logits]

    class FedTwice(Continuous):
        def verify(self, drafts: Rows) -> Rows:
            memory = cast(Shifted, self.verifier)
            if all(memory.lengths[i] for i in self.active):
                for i in self.active:
                    memory.lengths[i] -= 1
                    memory.shift[i] += 1
            return super().verify(drafts)

    class InRows(PerRow):
        def feed(self, i: int, block: list[int]) -> torch.Tensor:
            if self.lengths[i]:
                self.lengths[i] -= 1
                block = [self.rows[i][self.lengths[i]], *block]
            return super().feed(i, block)


@planted("per_row", "restored", cache_states=("chunked",), no_edit=HANDED)
@fault("K4-chunk-border-twice", "cache/duplicate-entry", "vllm-project/vllm#43996")
class ChunkBorderTwice(PerRow):
    """Each prefill chunk after the first begins one token early, at right positions."""

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        if 0 < self.lengths[i] < self.starts[i]:
            self.lengths[i] -= 1
            block = [self.rows[i][self.lengths[i]], *block]
        return super().feed(i, block)


@planted("realigned", "holes", cache_states=("prefix",), rows=2, no_edit=HANDED)
@fault("K10-prefix-of-first-row-only", "cache/missing-entry", "sgl-project/sglang#19897")
class PrefixOfFirstRowOnly(BatchCache):
    """Rows whose cache is empty are taken to hold the prefix that another row holds."""

    def start_from(self, handed: Any, prefix: int) -> None:
        super().start_from(handed, prefix)
        if prefix:
            self.holds[1:] = REJECTED
            for layer in self.cache.layers:
                layer.keys[1:], layer.values[1:] = 0, 0


@planted("continuous", rows=3, edit="not-prefilled-zeroed")
@fault("K10-joined-row-not-prefilled", "cache/missing-entry", "vllm-project/vllm#51865")
class JoinedRowNotPrefilled(Continuous):
    """A row that joins a batch in the middle of decoding is taken to be prefilled."""

    def join(self, i: int, line: int) -> None:
        super().join(i, line)
        if self.active:
            self.verifier.lengths[i] = self.starts[i] - 1


@planted("realigned", edit="prompt-end-lost")
@fault("K14-last-prompt-token-lost", "cache/missing-entry", "huggingface/transformers#47433")
class LastPromptTokenLost(BatchCache):
    """The crop after prefill takes the last prompt token with it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.last = torch.tensor([len(prompt) - 1 for prompt in self.prompts])[:, None]

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        self.last = self.last[list(rows)]
        super().keep(rows, lengths)

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        return super().left(holds, kept, surplus).masked_fill(holds == self.last, REJECTED)


@planted("rolled_back", "realigned continuous", cache_states=("chunked",), no_edit=HANDED)
@fault("K14-chunk-border-lost", "cache/missing-entry", "vllm-project/vllm#43996")
class ChunkBorderLost:
    """Each prefill chunk after the first begins one token late."""

    shifted = Shifted

    class OfBatch(Batched):
        def prefill(self, blocks: Rows, start: int) -> None:
            for place, block in enumerate(blocks if start else ()):
                self.verifier.lengths[place] += bool(block)
                blocks[place] = block[1:]
            super().prefill(blocks, start)

    class OfRow(Continuous):
        def prefill(self, i: int, piece: list[int], number: int) -> None:
            if number:
                cast(Shifted, self.verifier).skip(i, 1)
                piece = piece[1:]
            if piece:
                super().prefill(i, piece, number)


@planted("realigned per_row static", "continuous paged_small", cache_states=("chunked",), no_edit=HANDED)
@fault("K14-first-token-skipped", "cache/missing-entry", "vllm-project/vllm#43996")
class FirstTokenSkipped:
    """The first of a prompt's chunks begins one token late."""

    shifted, stretched = Shifted, Stretched

    class OfBatch(Batched):
        def prefill(self, blocks: Rows, start: int) -> None:
            for place, block in enumerate(blocks):
                if block and not self.verifier.lengths[place]:
                    self.verifier.lengths[place] += 1
                    blocks[place] = block[1:]
            super().prefill(blocks, start)

    class OfColumns(Static):
        def prefill_rows(self, blocks: Rows, start: int, width: int) -> None:
            if not start:
                lengths = zip(self.verifier.lengths, blocks, strict=True)
                self.verifier.lengths = [length + bool(block) for length, block in lengths]
                blocks = [block[1:] for block in blocks]
            super().prefill_rows(blocks, start, width)

    class OfRequest(RequestEngine):
        def prefill(self, i: int, piece: list[int], number: int) -> None:
            if not number:
                self.verifier.skip(i, 1)
                piece = piece[1:]
            if piece:
                super().prefill(i, piece, number)

    class InRows(PerRow):
        def prefill(self, i: int, piece: list[int]) -> None:
            if not self.lengths[i]:
                self.lengths[i] = 1
                piece = piece[1:]
            if piece:
                super().prefill(i, piece)


@planted("realigned", cache_states=("chunked",), no_edit=HANDED)
@fault("K14-chunk-taken-for-decode", "cache/missing-entry", "vllm-project/vllm#51865")
class ChunkTakenForDecode(Batched):
    """A prompt chunk of K + 1 tokens is taken for a decode step and rolled back like one."""

    def prefill(self, blocks: Rows, start: int) -> None:
        before = list(self.verifier.lengths)
        super().prefill(blocks, start)
        if any(blocks) and self.request.prefill_chunk == self.request.num_draft_tokens + 1:
            cached = list(self.verifier.lengths)
            accepted = [min(n + 1, after) for n, after in zip(before, cached, strict=True)]
            self.verifier.keep(range(len(cached)), accepted)
            self.verifier.lengths = cached


@planted("paged_small", "paged", no_edit="no edit knows of blocks")
@fault("K20-table-before-new-block", "cache/missing-entry", "NVIDIA/TensorRT-LLM#15251")
class TableBeforeNewBlock(PagedModel):
    """If a row begins a new block, the table that is read was made before the block was added to it."""

    def feed(self, rows: Sequence[int], blocks: Rows) -> list[torch.Tensor]:
        self.before = {i: list(self.tables[i]) for i in rows}
        return super().feed(rows, blocks)

    def shown(self, rows: Sequence[int]) -> list[list[int]]:
        return [self.before[i] or self.tables[i] for i in rows]


@planted("uncached per_row", "paged_small", edit="chunk-lost")
@fault("K27-prompt-cut", "cache/missing-entry")
class PromptCut:
    """Only the last twelve tokens or so of a prompt are fed."""

    stretched = Stretched

    class Anew(Uncached):
        def padded(self, rows: Sequence[tuple[int, list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
            texts = [(self.rows[i] + proposed)[max(0, self.starts[i] - FED_OF_PROMPT) :] for i, proposed in rows]
            return left_padded(texts, self.request.pad_token_id)

    class InRows(PerRow):
        def begin(self) -> None:
            super().begin()
            self.lengths = [max(n, start - FED_OF_PROMPT) for n, start in zip(self.lengths, self.starts, strict=True)]

    class InBlocks(PagedEngine):
        def join(self, i: int) -> None:
            cast(Stretched, self.verifier).skip(i, max(0, self.starts[i] - FED_OF_PROMPT))
            super().join(i)


@planted("per_row", "continuous paged", cache_states=("chunked",), no_edit=HANDED)
@fault("T29-first-piece-answered", "bookkeeping/unfinished-prompt", "vllm-project/vllm#43996")
class FirstPieceAnswered(RoundEngine):
    """The answer behind the first piece of a prompt is committed as the first new token."""

    class InRows(PerRow):
        def prefill(self, i: int, piece: list[int]) -> None:
            first = self.lengths[i] == self.request.prefix_length
            note(self, i, self.feed(i, piece), first)

    class OfRequest(RequestEngine):
        def prefill(self, i: int, piece: list[int], number: int) -> None:
            self.calls += 1
            note(self, i, self.verifier.feed([i], [piece])[0], not number)

    def verify(self, drafts: Rows) -> Rows:
        predicted, early = super().verify(drafts), vars(self).pop("early", {})
        return [[early.get(i, row[0]), *row[1:]] for i, row in zip(self.active, predicted, strict=True)]


def note(engine: RoundEngine, i: int, logits: torch.Tensor, first: bool) -> None:
    """Keep the answer behind the first piece of a row's prompt."""
    if first:
        vars(engine).setdefault("early", {})[i] = int(logits[-1].argmax())
