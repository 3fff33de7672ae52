"""Faults in where rows end and what is returned of them (T, X)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.faults.fault import NO_TOKENS, amount, fault, planted, step
from eqcheck.contract.decoders import Request

KEPT = amount("tokens kept", 10, 8, 12)


@planted("realigned per_row", "expanded packed", edit="eos-passed")
@fault("T1-eos-inside-block", "bookkeeping/past-eos", "huggingface/transformers#47912")
class EosInsideBlock(RoundEngine):
    """Only the last token of a block is tested for EOS."""

    def append(self, i: int, block: Sequence[int]) -> None:
        self.rows[i] += block[: self.limit(i) - len(self.rows[i])]


@planted("realigned per_row", "continuous", edit="ends-early")
@fault("T1-eos-stripped", "bookkeeping/premature-stop")
class EosStripped(RoundEngine):
    """The EOS that ends a row is not returned."""

    def outputs(self) -> Rows:
        return [row[:-1] if row and row[-1] in self.eos else row for row in super().outputs()]


@planted("uncached per_row", edit="ends-early")
@fault("T2-eos-in-prompt", "bookkeeping/premature-stop")
class EosInPrompt(RoundEngine):
    """EOS is searched in the prompt, too."""

    def decode(self) -> Rows:
        self.active = [i for i in self.active if not set(self.rows[i]) & set(self.eos)]
        return super().decode()


@planted("realigned per_row", "continuous", edit="eos-passed")
@fault("T3-first-eos-only", "bookkeeping/past-eos", "huggingface/transformers#29459")
class FirstEosOnly(RoundEngine):
    """Only the first of several EOS ids counts."""

    def __init__(self, target: Any, draft: Any, request: Request) -> None:
        super().__init__(target, draft, request)
        self.eos = self.eos[:1]


fault("T4-eos-in-draft", "bookkeeping/premature-stop", "huggingface/transformers#31301").plant(
    "An EOS among rejected draft tokens ends the row",
    planted("realigned holes", "expanded", edit="ends-early"),
    step(RoundEngine, finished=lambda right, self, i, drafts: bool(set(drafts) & set(self.eos)) or right(i, drafts)),
)


@planted("realigned per_row", "continuous", edit="limit-passed")
@fault("T5-overshoot", "bookkeeping/over-length")
class Overshoot(RoundEngine):
    """The limit is tested after a block is committed, and the block is not cut."""

    def budget(self, i: int) -> int:
        return self.request.num_draft_tokens

    def append(self, i: int, block: Sequence[int]) -> None:
        end = next((n for n, token in enumerate(block, 1) if token in self.eos), len(block))
        self.rows[i] += block[:end]


@planted("realigned per_row", rows=2, edit="ends-early")
@fault("T6-stops-with-fastest", "bookkeeping/premature-stop", "huggingface/transformers#42655")
class StopsWithFastest(RoundEngine):
    """Generation ends for all rows when one is done."""

    def retire(self, counts: Sequence[int], going: Sequence[int]) -> None:
        if len(going) < len(self.active):
            going, self.waiting = [], []
        super().retire(counts, going)


@planted("realigned per_row", "continuous", edit="eos-passed")
@fault("T7-limit-before-eos", "bookkeeping/past-eos", "sgl-project/sglang#33758")
class LimitBeforeEos(RoundEngine):
    """In the block that reaches the limit, EOS is not searched."""

    def append(self, i: int, block: Sequence[int]) -> None:
        room = self.limit(i) - len(self.rows[i])
        if len(block) >= room:
            self.rows[i] += block[:room]
        else:
            super().append(i, block)


@planted("uncached", "realigned", edit="missing-in-output")
@fault("T17-slice-by-first-non-pad", "bookkeeping/lost-token")
class SliceByFirstNonPad(RoundEngine):
    """The prompt is cut off by counting from the first token that is not the pad id."""

    def outputs(self) -> Rows:
        return [row[self.leading_pads(i) :] or row for i, row in enumerate(super().outputs())]

    def leading_pads(self, i: int) -> int:
        prompt = self.request.prompts[i]
        return next((n for n, token in enumerate(prompt) if token != self.request.pad_token_id), len(prompt))


@planted("realigned per_row", "continuous", no_edit="no edit returns a part of the prompt")
@fault("T17-start-counted-without-pads", "bookkeeping/prompt-in-output")
class StartCountedWithoutPads(RoundEngine):
    """New tokens are taken to begin behind as many ids as the prompt has that are not the pad id."""

    def outputs(self) -> Rows:
        pad, prompts = self.request.pad_token_id, self.request.prompts
        return [row[sum(token != pad for token in prompt) :] for row, prompt in zip(self.rows, prompts, strict=True)]


@planted("realigned per_row", rows=2, edit="rows-swapped")
@fault("T18-sorted-order", "bookkeeping/row-swap")
class SortedOrder(RoundEngine):
    """Rows come back in the order of their lengths."""

    def outputs(self) -> Rows:
        out = super().outputs()
        return [out[i] for i in sorted(range(len(out)), key=lambda i: self.starts[i])]


@planted("", "continuous", rows=2, edit="rows-swapped")
@fault("T18-completion-order", "bookkeeping/row-swap", "HabanaAI/vllm-fork#523", mechanism="T18-sorted-order")
class CompletionOrder(RoundEngine):
    """Rows come back in the order in which they ended."""

    def outputs(self) -> Rows:
        out = super().outputs()
        return [out[i] for i in self.finish_order]


@planted("realigned per_row", rows=2, edit="pads-after-end")
@fault("X4-finished-row-padded", "bookkeeping/pad-in-output", "huggingface/transformers#42655")
class FinishedRowPadded(RoundEngine):
    """Rows that are done are appended pads until the last is."""

    def outputs(self) -> Rows:
        out = super().outputs()
        return [row + [self.request.pad_token_id] * (max(map(len, out)) - len(row)) for row in out]


@planted("realigned per_row", "packed", edit="ends-early")
@fault("T28-no-room-for-a-block", "bookkeeping/premature-stop")
class NoRoomForABlock(RoundEngine):
    """A row ends where fewer than K + 1 tokens are left to its limit."""

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        room = self.limit(i) - len(self.rows[i])
        return super().finished(i, drafts) or room <= self.request.num_draft_tokens


@planted("realigned", "continuous", rows=3, edit="ends-early")
@fault("X5-limit-ends-all", "bookkeeping/premature-stop")
class LimitEndsAll(RoundEngine):
    """One row at its limit ends the whole group."""

    def retire(self, counts: Sequence[int], going: Sequence[int]) -> None:
        if any(len(self.rows[i]) >= self.limit(i) for i in self.active):
            going, self.waiting = [], []
        super().retire(counts, going)


@planted("", "continuous", rows=3, edit="ends-early")
@fault("X7-waiting-dropped", "bookkeeping/premature-stop")
class WaitingDropped(Continuous):
    """Rows that wait when the batch is full are dropped."""

    def admit(self) -> bool:
        going = super().admit()
        self.waiting = []
        return going


fault("T24-prompt-returned", "bookkeeping/prompt-in-output").plant(
    "Rows are returned with their prompts",
    planted("realigned per_row", "paged static", no_edit="no edit returns the prompt"),
    step(RoundEngine, outputs=lambda right, self: self.rows),
)

fault("T26-ten-tokens-kept", "bookkeeping/premature-stop").plant(
    "Of a row's new tokens the first ten or so are returned",
    planted("uncached paged", "static", edit="ends-early"),
    step(RoundEngine, outputs=lambda right, self: [row[:KEPT] for row in right()]),
)


@planted("realigned staged", "paged_small", rows=2, no_edit=NO_TOKENS)
@fault("X10-equal-prompts-once", "crash/invalid-output")
class EqualPromptsOnce(RoundEngine):
    """Rows are kept by their prompts, so of equal ones a single row is returned."""

    def outputs(self) -> Rows:
        prompts = map(tuple, self.request.prompts)
        return list(dict(zip(prompts, super().outputs(), strict=True)).values())


@planted("", "continuous", rows=3, no_edit=NO_TOKENS)
@fault("X7-waiting-omitted", "crash/invalid-output", "NVIDIA/TensorRT-LLM#11175", mechanism="X7-waiting-dropped")
class WaitingOmitted(WaitingDropped):
    """Rows that wait when the batch is full are dropped, also from the result."""

    def outputs(self) -> Rows:
        out = super().outputs()
        return [out[i] for i in sorted(self.finish_order)]


fault("X3-padding-not-reserved", "crash/exception", "NVIDIA/TensorRT-LLM#15708").plant(
    "Room is reserved for a row's tokens, not for the padding that is written with them",
    planted("", "continuous", rows=2, no_edit=NO_TOKENS),
    step(Continuous, capacity=lambda right, self: max(self.starts) + self.request.max_new_tokens),
)

fault("X4-limit-never-retires", "crash/hang").plant(
    "A row that reached its limit stays in the batch",
    planted("uncached", "expanded", no_edit=NO_TOKENS),
    step(RoundEngine, finished=lambda right, self, i, drafts: self.rows[i][-1] in self.eos),
)
