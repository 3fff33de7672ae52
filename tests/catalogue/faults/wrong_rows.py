"""Faults in which row's cache a row is given, or sees a part of (K, X)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from eqcheck.catalogue.engines.batch import BatchCache
from eqcheck.catalogue.engines.blocks import PagedEngine, PagedModel, Prefixed
from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.catalogue.engines.lines import LINES, Continuous, OffsetLayer
from eqcheck.catalogue.engines.pool import Packed, Pooled
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.catalogue.faults.fault import FED, HANDED, SLOTS, fault, planted, step
from eqcheck.catalogue.faults.rollback import Shifted


@planted("realigned holes rolled_back", rows=2, edit="rows-reversed")
@fault("K7-rows-swapped", "cache/wrong-row")
class RowsSwapped(BatchCache):
    """The rows of the cache come back in another order."""

    def move(self, rows: torch.Tensor) -> None:
        super().move(rows.flip(0))


@planted("per_row", rows=2, edit="caches-exchanged")
@fault("K7-caches-exchanged", "cache/wrong-row")
class CachesExchanged(PerRow):
    """Each row is given the next row's cache."""

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        own = self.caches
        if self.lengths[i]:
            self.caches = [*own[1:], own[0]]
        logits = super().feed(i, block)
        self.caches = own
        return logits


@planted("", "continuous", rows=4, no_edit="no edit has rows wait for memory")
@fault("K8-slot-released-twice", "cache/wrong-row", "sgl-project/sglang#10892")
class ReleasedTwice(Continuous):
    """A slot that was released twice is given to two rows."""

    def free_line(self) -> int | None:
        taken = [self.verifier.line[i] for i in self.active]
        if self.finish_order and len(taken) == LINES == len(set(taken)):
            return taken[-1]
        return super().free_line()


@planted("", "continuous", rows=3, edit="ended-row-seen")
@fault("K9-slot-not-reset", "cache/wrong-row", "huggingface/text-generation-inference#2711")
class NotReset:
    """A slot is reused without being cleared, behind the entries of the row that had it."""

    class InLines(Shifted):
        def join(self, i: int, line: int, handed: Any, prefix: int) -> None:
            ended = self.ended(line)
            if ended:
                self.line[i], self.lengths[i], self.shift[i] = line, prefix, ended - prefix
            else:
                super().join(i, line, handed, prefix)

    class Room(Continuous):
        def capacity(self) -> int:
            return super().capacity() * len(self.rows)  # room behind the entries of every earlier row


@planted("", "continuous", cache_states=("prefix",), rows=3, no_edit=HANDED)
@fault("K12-published-with-unemitted", "cache/wrong-row", "jundot/omlx#3533")
class PublishedWithUnemitted(Shifted):
    """A row begins with the prefix a finished row left behind, one token longer than what they share."""

    def join(self, i: int, line: int, handed: Any, prefix: int) -> None:
        if self.ended(line) > prefix > 0 and len(self.prompts[i]) > prefix + 1:
            self.line[i], self.lengths[i] = line, prefix + 1
        else:
            super().join(i, line, handed, prefix)


@planted("paged_small", "paged", rows=2, no_edit="no edit knows of blocks")
@fault("K22-last-block-of-next-row", "cache/wrong-row", "vllm-project/vllm#43682")
class LastBlockOfNextRow(PagedModel):
    """The last block that a row is shown is another row's."""

    def shown(self, rows: Sequence[int]) -> list[list[int]]:
        tables = super().shown(rows)
        return [[*own[:-1], other[-1]] for own, other in zip(tables, [*tables[1:], tables[0]], strict=True)]


@planted("paged per_row", "staged", cache_states=("prefix",), rows=2, no_edit=HANDED)
@fault("K23-prefix-not-copied", "cache/wrong-row", "Avarok-Cybersecurity/atlas#1193")
class PrefixNotCopied:
    """Rows write into the memory of the prefix that they share."""

    class InRows(PerRow):
        def begin(self) -> None:
            super().begin()
            self.caches = self.caches[:1] * len(self.rows)

    class InBlocks(PagedModel):
        def own(self, block: int) -> int:
            return block


def beginning_of(engine: RoundEngine, i: int) -> int | None:
    """The first row before this one whose prompt is the beginning of this one's."""
    mine, others = engine.request.prompts[i], engine.request.prompts[:i]
    return next((j for j, other in enumerate(others) if other == mine[: len(other)] and other != mine), None)


@planted("per_row", "paged", rows=2, no_edit="no edit lets two rows write to one cache")
@fault("K25-rows-grow-out-of-one-cache", "cache/wrong-row", "Avarok-Cybersecurity/atlas#1193")
class GrowsOutOfOneCache:
    """A row whose prompt goes on where another's ends goes on in that row's cache, not in a copy."""

    class InRows(PerRow):
        def begin(self) -> None:
            super().begin()
            for i in range(len(self.rows)):
                if (other := beginning_of(self, i)) is not None:
                    self.caches[i], self.lengths[i] = self.caches[other], self.starts[other]

    class SharedBlocks(PagedModel):
        def own(self, block: int) -> int:
            return block

        def share(self, i: int, other: int, count: int) -> None:
            """Let a request begin with the blocks of another's first ``count`` tokens."""
            self.reserve(i, count)
            self.tables[other] = self.tables[i][: -(-count // self.cache.size)]
            self.holders.update(self.tables[other])
            self.lengths[other] = count

    class InBlocks(PagedEngine):
        def join(self, i: int) -> None:
            if (other := beginning_of(self, i)) is not None:
                cast(GrowsOutOfOneCache.SharedBlocks, self.verifier).share(other, i, self.starts[other])
            super().join(i)


@planted("realigned holes rolled_back", rows=2, edit="stale-rows")
@fault("X2-stale-row-index", "cache/wrong-row", "vllm-project/vllm#47199")
class StaleRowIndex(BatchCache):
    """When a row leaves the batch, the cache keeps the rows' old numbers."""

    def move(self, rows: torch.Tensor) -> None:
        super().move(torch.arange(len(rows)))


class OldNumbers(BatchCache):
    """When a row leaves the batch, ``before`` has for each row the one that had its place, if that is still there."""

    before: torch.Tensor | None = None

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        gone = len(rows) < self.batch
        super().keep(rows, lengths)
        if gone:
            place = {row: at for at, row in enumerate(rows)}
            self.before = torch.tensor([place.get(at, at) for at in range(len(rows))])
            self.left_off()

    def left_off(self) -> None:
        """Take what the rows of before are shown, or how long they are."""


@planted("holes", "rolled_back", families=SLOTS, rows=3, no_edit="no edit gives a row another's mask")
@fault("X3-mask-of-old-rows", "mask/of-another-row", "vllm-project/vllm#47199")
class MaskOfOldRows(OldNumbers):
    """When a row leaves the batch, the mask keeps the rows' old numbers."""

    shown = torch.zeros((0, 0), dtype=torch.bool)

    def left_off(self) -> None:
        self.shown = self.seen()[self.before]

    def mask(self, width: int) -> torch.Tensor:
        seen, count = self.seen(), self.shown.shape[1]
        if self.before is not None:
            seen[:, :count] = self.shown[:, : seen.shape[1]]
        return seen.long()


@planted("holes", "rolled_back realigned", families=FED, rows=3, no_edit="no edit gives a row another's position")
@fault("X3-positions-of-old-rows", "position/query-position", "vllm-project/vllm#47199")
class PositionsOfOldRows(OldNumbers):
    """When a row leaves the batch, positions go on from the rows' old numbers."""

    more = torch.zeros(0, dtype=torch.long)

    def left_off(self) -> None:
        lengths = torch.tensor(self.lengths)
        self.more = lengths[self.before] - lengths

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        shifted = at if self.before is None else at + self.more[:, None]
        return super().positions(shifted, real)


@planted("", "continuous", rows=3, no_edit="no edit has rows wait for memory")
@fault("X2-read-in-slot-order", "cache/wrong-row", "vllm-project/vllm#47199")
class ReadInSlotOrder(OffsetLayer):
    """The batch is in order of arrival, what is read from the cache in order of slots."""

    def read(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.plan.lines.sort().values]


@planted("continuous", rows=3, no_edit="no edit has rows wait for memory")
@fault("K41-live-line", "cache/wrong-row", "vllm-project/vllm#47199")
class LiveLine(Continuous):
    """A row that joins is given the line of a row that is still decoded."""

    def free_line(self) -> int | None:
        taken = {self.verifier.line[i] for i in self.active[1:]}
        return next((line for line in range(LINES) if line not in taken and len(self.active) <= LINES), None)


@planted("paged", "paged_small", rows=2, no_edit="no edit knows of blocks")
@fault("K41-live-block", "cache/wrong-row", "vllm-project/vllm#47199")
class LiveBlock(PagedModel):
    """A row that joins is given the first block of a row that is still decoded."""

    def reserve(self, i: int, count: int) -> None:
        if i and not self.tables[i]:
            self.tables[i] += self.tables[i - 1][:1]
        super().reserve(i, count)


fault("K42-key-without-last-token", "cache/wrong-row", "sgl-project/sglang#10892").plant(
    "The key of a block of the prefix cache leaves out the block's last token",
    planted("prefixed", "prefixed_small", rows=2, no_edit="no edit knows of blocks"),
    step(Prefixed, key=lambda right, self, text, end: right(text, end)[:-1]),
)


@planted("packed", rows=2, no_edit="no edit reads a row's entries in another order")
@fault("K26-moved-in-another-order", "cache/misaligned", "vllm-project/vllm#47199")
class MovedInAnotherOrder(Packed):
    """Rows are moved in the cache, and the mask expects them in another order."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        order = sorted(range(len(self.held)), key=lambda slot: self.held[slot])
        moved = sorted(order, key=lambda slot: -self.held[slot][0])
        self.held = [self.held[slot] for slot in order]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, moved], layer.values[:, :, moved]


@planted("pooled", rows=2, no_edit="no edit reads a row's entries in another order")
@fault("K26-tables-in-another-order", "cache/misaligned", "vllm-project/vllm#47199")
class TablesInAnotherOrder(Pooled):
    """The slots of the rows of a call are read in another order than the mask expects them."""

    def read(self) -> list[int]:
        return [slot for i in reversed(self.active) for slot in self.tables[i]]


# Of one row the last slot read is that of a rejected draft, and named as such.
@planted("", "pooled", rows=2, no_edit="no edit reads a row's entries in another order")
@fault("K26-read-one-slot-on", "cache/misaligned", "vllm-project/vllm#47199")
class ReadOneSlotOn(Pooled):
    """Every slot of a table is read one too far."""

    def read(self) -> list[int]:
        return [(slot + 1) % self.pool[0][0].shape[2] for slot in super().read()]
