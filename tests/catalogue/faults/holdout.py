"""Faults of mechanisms that were never developed on: taken from reports when attribution was written, and left alone.

Nothing in attribution is made for one of them, and no fault of another module shares a mechanism with one. A wrong
explanation of one of them is a figure of `eqcheck selfcheck`; once it is mended, the fault leaves this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.batch import REJECTED, BatchCache, RolledBack
from eqcheck.catalogue.engines.blocks import PagedCache, PagedModel
from eqcheck.catalogue.engines.engine import KeysValues, RoundEngine, Rows
from eqcheck.catalogue.engines.lines import OffsetCache
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.catalogue.faults.fault import FED, FOUR_D, HANDED, NO_TOKENS, OUTPUT_RIGHT, amount, fault, planted, step
from eqcheck.catalogue.faults.masks import PerQuery
from eqcheck.catalogue.faults.wrong_bookkeeping import OtherAnswers
from eqcheck.contract.cache_names import cache_argument

RING, DROPPED = amount("ring", 20, 16, 24), amount("prefix dropped", 4, 2, 5)

UNKNOWN = "no edit was looked for"

fault("T40-limit-from-longest-prompt", "bookkeeping/over-length", "huggingface/transformers#42655").plant(
    "The limit of every row is counted from the end of the longest prompt, as in a padded batch",
    planted("", "realigned uncached", rows=2, no_edit=UNKNOWN),
    step(RoundEngine, limit=lambda right, self, i: max(self.starts) + self.request.max_new_tokens),
)

fault("T46-pads-taken-out", "bookkeeping/lost-token", "huggingface/transformers#25790").plant(
    "Whatever equals the pad id is taken out of the rows that are returned",
    planted("", "realigned packed", no_edit=UNKNOWN),
    step(
        RoundEngine, outputs=lambda right, self: [[t for t in row if t != self.request.pad_token_id] for row in right()]
    ),
)

fault("K56-crop-by-nothing", "cache/missing-entry", "huggingface/transformers#47433").plant(
    "A rollback by no token empties the cache",
    planted("", "per_row staged", no_edit=UNKNOWN),
    step(PerRow, roll_back=lambda right, self, i, surplus: right(i, surplus) if surplus else emptied(self, i)),
)


def emptied(engine: PerRow, i: int) -> None:
    """Forget a row's cache, but not how long it was."""
    engine.caches[i] = engine.new_cache()


@planted("", "realigned per_row", rows=2, no_edit=UNKNOWN)
@fault("T41-matches-summed", "bookkeeping/over-accept", "huggingface/transformers#42655")
class MatchesSummed(RoundEngine):
    """The draft tokens that agree are counted over the whole batch, and each row accepts as many."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        self.agreed = sum(super(MatchesSummed, self).accepted(d, p) for d, p in zip(drafts, predicted, strict=True))
        return super().commit(drafts, predicted)

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        return min(len(proposed), self.agreed)


@planted("", "rolled_back", rows=2, no_edit=UNKNOWN)
@fault("T42-own-correction-behind-least", "bookkeeping/lost-token", "huggingface/transformers#32165")
class OwnCorrectionBehindLeast(RolledBack):
    """Every row keeps the batch's least accepted count of draft tokens, and behind them its own correction."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        own = [self.accepted(d, p) for d, p in zip(drafts, predicted, strict=True)]
        answers = [[*p[: min(own)], p[count]] for p, count in zip(predicted, own, strict=True)]
        return RoundEngine.commit(self, [d[: min(own)] for d in drafts], answers)


@planted("", "uncached per_row", no_edit=UNKNOWN)
@fault("T43-candidate-index", "bookkeeping/wrong-correction", "vllm-project/vllm-ascend#16396")
class CandidateIndex(RoundEngine):
    """A correction is the number of its candidate in the batch, not the candidate's id."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        self.candidates = sorted({token for answers in predicted for token in answers})
        return super().commit(drafts, predicted)

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        block = super().block(count, proposed, answers)
        return [*block[:-1], self.candidates.index(block[-1])] if count < len(proposed) else block


@planted("", "realigned continuous", no_edit=UNKNOWN)
@fault("T44-round-counts-as-full", "bookkeeping/premature-stop", "sgl-project/sglang#33643")
class RoundCountsAsFull(RoundEngine):
    """Every round counts as K + 1 tokens towards the limit, however many were accepted."""

    def begin(self) -> None:
        super().begin()
        self.counted = [0] * len(self.rows)

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        self.counted[i] += self.request.num_draft_tokens + 1
        return super().finished(i, drafts) or self.counted[i] >= self.request.max_new_tokens


@planted("", "per_row static", no_edit=UNKNOWN)
@fault("T45-end-noticed-late", "bookkeeping/past-eos", "vllm-project/vllm#49620")
class EndNoticedLate(RoundEngine):
    """The EOS of a row is noticed when the next round has been committed."""

    def begin(self) -> None:
        super().begin()
        self.ended: set[int] = set()

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        late = i in self.ended
        if super().finished(i, drafts):
            self.ended.add(i)
        return late or len(self.rows[i]) >= self.limit(i)


@planted("", "realigned paged", no_edit=NO_TOKENS)
@fault("T47-placeholders-returned", "crash/invalid-output", "vllm-project/vllm#40768")
class PlaceholdersReturned(RoundEngine):
    """The draft tokens that a row's last round rejected are returned as ids of -1."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        rounds = zip(self.active, drafts, counts, strict=True)
        self.rejected = {**vars(self).get("rejected", {}), **{i: len(d) - count for i, d, count in rounds}}
        return counts

    def outputs(self) -> Rows:
        return [[*row, *[-1] * self.rejected[i]] for i, row in enumerate(super().outputs())]


@planted("", "uncached static", no_edit=NO_TOKENS)
@fault("T48-vocabulary-size-returned", "crash/invalid-output", "vllm-project/vllm#53029")
class VocabularySizeReturned(RoundEngine):
    """The last token of a row whose last round accepted all drafts is the size of the vocabulary."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        rounds = zip(self.active, drafts, counts, strict=True)
        self.full = {**vars(self).get("full", {}), **{i: len(d) == count for i, d, count in rounds}}
        return counts

    def outputs(self) -> Rows:
        size = int(self.target.config.vocab_size)
        return [[*row[:-1], size] if self.full[i] else row for i, row in enumerate(super().outputs())]


@planted("", "realigned continuous", rows=2, no_edit=UNKNOWN)
@fault("X40-rows-without-drafts-last", "bookkeeping/wrong-correction", "HabanaAI/vllm-fork#823")
class RowsWithoutDraftsLast(OtherAnswers):
    """Rows without draft tokens are verified behind the others, and the answers are not put back in order."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        self.order = sorted(range(len(drafts)), key=lambda place: not drafts[place])
        return super().commit(drafts, predicted)

    def others(self, predicted: Rows) -> Rows:
        return [predicted[place] for place in self.order]


@planted("", "realigned continuous", families=FOUR_D, no_edit=UNKNOWN)
@fault("M40-causal-from-first-slot", "mask/token-hidden", "https://github.com/Dao-AILab/flash-attention")
class CausalFromFirstSlot:
    """The causal mask of a block begins at the first slot of the cache, not at its last ones."""

    class InBatch(PerQuery):
        def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return keys <= queries - queries[0]

    class InLines(OffsetCache):
        def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
            queries, keys = self.grid(offsets, width)
            return super().visible(offsets, width, lengths) & (keys <= queries - queries[:, :1])


@planted("", "rolled_back packed", families=FOUR_D, no_edit=UNKNOWN)
@fault("M41-block-without-cache", "mask/token-hidden", "huggingface/transformers#46741")
class BlockWithoutCache:
    """A block of several tokens is fed as if the cache were empty: it sees itself alone."""

    class InBatch(PerQuery):
        def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return (keys <= queries) & ((keys >= queries[0]) | (len(queries) == 1))

    class InOneRow(Packed):
        def sees(self, i: int, at: int, row: int, position: int) -> bool:
            return super().sees(i, at, row, position) and (position >= self.lengths[i] or not self.budget(i))


@planted("", "paged_small", no_edit=UNKNOWN)
@fault("K50-slots-in-a-row", "cache/missing-entry", "huggingface/text-generation-inference#2711")
class SlotsInARow(PagedCache):
    """A block of tokens is written to slots behind one another, whatever the table says after the first."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeysValues:
        straight = (self.write[:, :1] + torch.arange(self.write.shape[1])) % (self.blocks * self.size)
        self.write = torch.where(self.write >= 0, straight, self.write)
        return super().update(keys, values, layer_idx)


@planted("", "paged paged_small", rows=2, no_edit=UNKNOWN)
@fault("K51-draft-slots-not-reserved", "cache/wrong-row", "NVIDIA/TensorRT-LLM#16101")
class DraftSlotsNotReserved(PagedModel):
    """Blocks are reserved for one token of a block that is fed; what needs more goes to the block that is nobody's."""

    def reserve(self, i: int, count: int) -> None:
        while len(self.tables[i]) < self.places(i) // self.cache.size:
            self.tables[i].append(self._block())
        super().reserve(i, 1)


@planted("", "paged_small", rows=2, no_edit=UNKNOWN)
@fault("K52-pads-in-last-slot", "cache/missing-entry", "vllm-project/vllm#43682")
class PadsInLastSlot(PagedCache):
    """Pads have the slot -1, and are written to the last one of the pool."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeysValues:
        pads = self.write < 0
        for pool, fed in zip(self.pools(layer_idx, keys), (keys, values), strict=True):
            if pads.any():
                pool[-1, -1] = self.turned(fed)[pads][-1]
        return super().update(keys, values, layer_idx)


@planted("", "per_row staged", no_edit=UNKNOWN)
@fault("K53-ring-of-20", "cache/missing-entry", "ml-explore/mlx-lm#1914")
class RingOf20(PerRow):
    """The cache of a row is a ring of twenty slots or so, and the oldest tokens of a longer row are overwritten."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i in self.active:
            for layer in self.caches[i].layers:
                layer.keys, layer.values = layer.keys[:, :, -RING:], layer.values[:, :, -RING:]


@planted("", "per_row", no_edit=UNKNOWN)
@fault("K54-draft-in-target-cache", "cache/draft-entry", "huggingface/transformers#31644")
class DraftInTargetCache(PerRow):
    """The draft is handed the target's cache, and writes what it is fed into it."""

    def propose(self, budget: Sequence[int]) -> Rows:
        drafts: Rows = []
        for i, count in zip(self.active, budget, strict=True):
            drafts.append([])
            while len(drafts[-1]) < count:
                start = self.lengths[i] if not drafts[-1] else len(self.rows[i]) + len(drafts[-1]) - 1
                block = (self.rows[i] + drafts[-1])[start:]
                at = torch.arange(start, start + len(block))[None]
                asked = {"position_ids": at, "use_cache": True, **cache_argument(self.draft, self.caches[i])}
                drafts[-1].append(int(self.draft(input_ids=torch.tensor([block]), **asked).logits[0, -1].argmax()))
        return drafts


@planted("", "per_row", no_edit=UNKNOWN)
@fault("K55-prefilled-again-with-draft", "cache/stale-entry", "InternLM/lmdeploy#4564")
class PrefilledAgainWithDraft(PerRow):
    """A row evicted after three rounds is prefilled again with the draft token that its last round rejected."""

    def begin(self) -> None:
        super().begin()
        self.rounds = 0
        self.rejected: dict[int, int] = {}

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        rounds = zip(self.active, drafts, counts, strict=True)
        self.rejected = {i: proposed[count] for i, proposed, count in rounds if count < len(proposed)}
        return counts

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        self.rounds += 1
        for i in self.active if self.rounds % 3 == 0 else ():
            if i in self.rejected:
                self.caches[i], cached = self.new_cache(), self.lengths[i]
                self.lengths[i] = self.request.prefix_length
                self.feed(i, [*self.rows[i][self.lengths[i] : cached], self.rejected[i]])
                self.lengths[i] = cached


@planted("", "realigned holes", cache_states=("prefix",), no_edit=HANDED)
@fault("K57-first-of-prefix-dropped", "cache/missing-entry", "vllm-project/vllm#43996")
class FirstOfPrefixDropped(BatchCache):
    """The first tokens of a given prefix are dropped, as if there were too many."""

    def start_from(self, handed: Any, prefix: int) -> None:
        super().start_from(handed, prefix)
        if prefix:
            self.holds[:, :DROPPED] = REJECTED
            for layer in self.cache.layers:
                layer.keys[:, :, :DROPPED], layer.values[:, :, :DROPPED] = 0, 0


@planted("", "realigned per_row", no_edit=OUTPUT_RIGHT)
@fault("D40-ids-not-mapped", "draft/desync", "sgl-project/sglang#24051")
class IdsNotMapped(RoundEngine):
    """Draft tokens from the upper half of the vocabulary keep the ids that they have in a smaller one of the draft."""

    def propose(self, budget: Sequence[int]) -> Rows:
        half = int(self.target.config.vocab_size) // 2
        return [[token % half for token in proposed] for proposed in super().propose(budget)]


@planted("", "per_row continuous", families=FED, cache_states=("chunked",), no_edit=HANDED)
@fault("P40-chunks-begin-at-zero", "position/query-position", "ggml-org/llama.cpp#18039")
class ChunksBeginAtZero:
    """Positions begin at 0 in every chunk of a prompt."""

    class InRows(PerRow):
        def numbered(self, i: int, count: int) -> torch.Tensor:
            at = super().numbered(i, count)
            return at - self.lengths[i] if self.request.prefix_length < self.lengths[i] < self.starts[i] else at

    class InLines(OffsetCache):
        def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
            starts = [0 if self.lengths[i] < len(self.prompts[i]) else self.lengths[i] for i in rows]
            return torch.tensor(starts)[:, None] + torch.arange(width)
