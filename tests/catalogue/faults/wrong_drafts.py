"""Faults that leave the output right: of the draft side (D, and T where an answer of the target is thrown away), which
are slower, and of a declared cache state (S), which is ignored or missed by one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from eqcheck.catalogue.engines.batch import Batched
from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.faults.fault import FED, OUTPUT_RIGHT, fault, planted, step
from eqcheck.catalogue.faults.masks import NoMask, ShortBlockPadsVisible
from eqcheck.catalogue.faults.positions import NewestOffByOne
from eqcheck.catalogue.faults.rollback import NEVER_CROPPED, ONE_TOO_MANY
from eqcheck.catalogue.faults.wrong_rows import NotReset, ReadInSlotOrder, RowsSwapped, StaleRowIndex
from eqcheck.contract.decoders import CLAIMED, Request


@planted("realigned holes", "continuous", no_edit=OUTPUT_RIGHT)
@fault("D1-last-draft-token-missing", "draft/desync", "mlc-ai/mlc-llm#2285")
class LastDraftTokenMissing:
    """After full acceptance the draft's cache lacks the last draft token."""

    class OfBatch(Batched):
        def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
            super().after(going, lengths)
            self.drafter.lengths = list(lengths)

    class OfRow(Continuous):
        def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
            super().after(going, lengths)
            for i, length in zip(self.active, lengths, strict=True):
                self.drafter.lengths[i] = length


fault("D2-draft-over-trimmed", "draft/desync", "lablup/mlxcel#994", mechanism="K2-one-too-many-dropped").plant(
    "The draft's cache is trimmed by one token too many",
    planted("realigned", "continuous", no_edit=OUTPUT_RIGHT),
    on_draft=ONE_TOO_MANY,
)

fault("D3-draft-keeps-rejected", "draft/desync", "vllm-project/vllm#14649", mechanism="K3-never-cropped").plant(
    "Rejected tokens stay in the draft's cache",
    planted("realigned", "continuous", no_edit=OUTPUT_RIGHT),
    on_draft=NEVER_CROPPED,
)

fault("D4-draft-rows-not-permuted", "draft/desync", "1CatAI/1Cat-vLLM#656", mechanism="X2-stale-row-index").plant(
    "When rows leave or join, the draft's cache keeps the old order",
    planted("realigned", "continuous", rows=3, no_edit=OUTPUT_RIGHT),
    on_draft=(StaleRowIndex, ReadInSlotOrder),
)


@planted("", "continuous", cache_states=("chunked",), no_edit=OUTPUT_RIGHT)
@fault("D5-chunks-not-drafted-on", "draft/desync", "vllm-project/vllm-metal#716")
class ChunksNotDraftedOn(Continuous):
    """Prompt chunks that are fed in a step without drafts never reach the draft."""

    def prefill(self, i: int, piece: list[int], number: int) -> None:
        super().prefill(i, piece, number)
        self.drafter.lengths[i] = self.verifier.lengths[i]


@planted("realigned", "continuous", no_edit=OUTPUT_RIGHT)
@fault("D6-previous-bonus-drafted-on", "draft/desync", "vllm-project/vllm#9730")
class PreviousBonusDraftedOn(RoundEngine):
    """The draft is given the bonus token of the round before."""

    def begin(self) -> None:
        super().begin()
        self.newest_before = [row[-1] for row in self.rows]

    def drafted_on(self, i: int, tokens: list[int]) -> list[int]:
        return [*tokens[:-1], self.newest_before[i]]

    def verify(self, drafts: Rows) -> Rows:
        for i in self.active:
            self.newest_before[i] = self.rows[i][-1]
        return super().verify(drafts)


fault("M2-draft-without-mask", "draft/desync", mechanism="M1-no-mask").plant(
    "The draft attends to pads",
    planted("realigned", "continuous", rows=2, no_edit=OUTPUT_RIGHT),
    on_draft=(NoMask, ShortBlockPadsVisible),
)


@planted("realigned", no_edit=OUTPUT_RIGHT)
@fault("T12-full-acceptance-is-none", "draft/lost-bonus")
class FullAcceptanceIsNone(RoundEngine):
    """When all draft tokens agree, none is accepted: the first mismatch is read as place 0."""

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        count = super().accepted(proposed, answers)
        return 0 if count == len(proposed) else count


@planted("realigned", "continuous", no_edit=OUTPUT_RIGHT)
@fault("T13-bonus-dropped", "draft/lost-bonus")
class BonusDropped(RoundEngine):
    """After full acceptance the bonus token is not committed."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        block = super().block(count, proposed, answers)
        return block[:-1] if proposed and count == len(proposed) else block


fault("X8-draft-state-of-last-tenant", "draft/desync", "vllm-project/vllm#30916", mechanism="K9-slot-not-reset").plant(
    "A row begins with what the draft's cache holds of the row that had its slot",
    planted("", "continuous", rows=3, no_edit=OUTPUT_RIGHT),
    NotReset.Room,
    on_draft=(NotReset,),
)


@planted("realigned", "continuous", no_edit=OUTPUT_RIGHT)
@fault("D7-first-token-from-first-column", "draft/desync")
class FirstTokenFromFirstColumn(RoundEngine):
    """In a row's first round, the first draft token is read from the prompt's first column."""

    def next_draft(self, i: int, logits: torch.Tensor, drafted: list[int]) -> int:
        first = not drafted and len(self.rows[i]) == self.starts[i]
        return super().next_draft(i, logits[:1] if first else logits, drafted)


fault("D8-draft-positions-off", "draft/desync", "sgl-project/SpecForge#244", mechanism="P6-bonus-off-by-one").plant(
    "The draft is fed the correction or bonus token with the position of the token before it",
    planted("realigned holes", "continuous", families=FED, no_edit=OUTPUT_RIGHT),
    on_draft=(NewestOffByOne,),
)

fault("D9-draft-cache-of-other-row", "draft/desync", "sgl-project/sglang#27338", mechanism="K7-rows-swapped").plant(
    "The rows of the draft's cache are exchanged",
    planted("realigned", "holes", rows=2, no_edit=OUTPUT_RIGHT),
    on_draft=(RowsSwapped,),
)


@planted("realigned", "continuous", no_edit=OUTPUT_RIGHT)
@fault("D10-rejected-drafted-on", "draft/desync")
class RejectedDraftedOn(RoundEngine):
    """After a rejection the draft is fed the rejected token in place of the correction."""

    def begin(self) -> None:
        super().begin()
        self.rejected: dict[int, int] = {}  # by row, the draft token that the last round rejected

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        rounds = zip(self.active, drafts, counts, strict=True)
        self.rejected = {i: proposed[count] for i, proposed, count in rounds if count < len(proposed)}
        return counts

    def drafted_on(self, i: int, tokens: list[int]) -> list[int]:
        return [*tokens[:-1], self.rejected.get(i, tokens[-1])]


fault("D11-first-draft-dropped", "draft/desync").plant(
    "The first draft token of each row is dropped before the others are verified",
    planted("uncached per_row", "packed", no_edit=OUTPUT_RIGHT),
    step(RoundEngine, propose=lambda right, self, budget: [proposed[1:] for proposed in right(budget)]),
)


@planted("realigned per_row", "expanded", rows=2, no_edit=OUTPUT_RIGHT)
@fault("D12-drafts-of-next-row", "draft/desync", "vllm-project/vllm#46899")
class DraftsOfNextRow(RoundEngine):
    """Each row is given the draft tokens of the row after it."""

    def propose(self, budget: Sequence[int]) -> Rows:
        drafts = super().propose(budget)
        return [other[: len(own)] for own, other in zip(drafts, [*drafts[1:], *drafts[:1]], strict=True)]


@planted("realigned staged", "rolled_back", no_edit=OUTPUT_RIGHT)
@fault("D13-drafts-of-round-before", "draft/desync", "vllm-project/vllm#30916")
class DraftsOfRoundBefore(RoundEngine):
    """The draft tokens of the round before are verified once more."""

    def begin(self) -> None:
        super().begin()
        self.drafts: dict[int, list[int]] = {}

    def propose(self, budget: Sequence[int]) -> Rows:
        before, drafts = self.drafts, super().propose(budget)
        self.drafts = dict(zip(self.active, drafts, strict=True))
        return [before.get(i, own)[: len(own)] for i, own in zip(self.active, drafts, strict=True)]


class Mistaken(RoundEngine):
    """Decodes another request than it was given."""

    def __init__(self, target: Any, draft: Any, request: Request) -> None:
        super().__init__(target, draft, self.mistaken(request))

    def mistaken(self, request: Request) -> Request:
        raise NotImplementedError


fault("S1-chunks-ignored", "options/ignored-option", "NVIDIA/TensorRT-LLM#16101").plant(
    "Prompts are fed whole, whatever the size of a chunk is to be",
    planted("realigned per_row", "paged", cache_states=("chunked",), no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, prefill_chunk=None)),
)


@planted("holes restored", "continuous", cache_states=("chunked",), no_edit=OUTPUT_RIGHT)
@fault("S1-chunk-one-too-long", "options/ignored-option", "NVIDIA/TensorRT-LLM#16101")
class ChunkOneTooLong(Mistaken):
    """A chunk of a prompt is one token longer than it may be."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, prefill_chunk=request.prefill_chunk and request.prefill_chunk + 1)


fault("S2-arrivals-ignored", "options/ignored-option", "vllm-project/vllm#55894").plant(
    "All rows are fed at once, also those that have not arrived",
    planted("continuous", "per_row", cache_states=("late-rows",), rows=2, no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, arrivals=())),
)


@planted("continuous per_row", cache_states=("late-rows",), rows=2, no_edit=OUTPUT_RIGHT)
@fault("S2-calls-counted-twice", "options/ignored-option", "vllm-project/vllm#55894")
class CallsCountedTwice(Mistaken):
    """Every call of the target is counted twice, so rows join too early."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, arrivals=tuple(arrival // 2 for arrival in request.arrivals))


@planted("realigned per_row", "continuous", cache_states=("prefix",), no_edit=OUTPUT_RIGHT)
@fault("S3-prefix-fed-again", "options/ignored-option", "vllm-project/vllm#53505")
class PrefixFedAgain(Mistaken):
    """A prefix whose cache is handed over is fed again with each prompt."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, prefix_length=0, target_cache=None, draft_cache=None)


@planted("holes", "paged", families=CLAIMED, cache_states=("prefix",), no_edit=OUTPUT_RIGHT)
@fault("S3-last-prefix-token-fed-again", "options/ignored-option", "vllm-project/vllm#53505")
class LastPrefixTokenFedAgain(Mistaken):
    """The last token of a prefix whose cache is handed over is fed again."""

    def mistaken(self, request: Request) -> Request:
        if request.prefix_length < 2:
            return request
        target_cache, draft_cache = copy.deepcopy((request.target_cache, request.draft_cache))
        for cache in (target_cache, draft_cache):
            cache.crop(-1)
        length = request.prefix_length - 1
        return replace(request, prefix_length=length, target_cache=target_cache, draft_cache=draft_cache)


fault("S4-preallocated-ignored", "options/ignored-option", "sgl-project/sglang#19796").plant(
    "A cache of its own is used in place of the preallocated one that is handed over",
    planted("holes", "rolled_back", cache_states=("preallocated",), no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, target_cache=None, draft_cache=None)),
)
