"""What all builds share: the loop of rounds, commitment of tokens, where rows end, the order of outputs.

A build is a subclass of `Engine` that says how drafts are proposed (`propose`) and verified (`verify`), and what
happens to its caches between rounds (`after`). A fault is switched in by its name, ``self.on("T5-overshoot")``:
searching for the name finds every line that belongs to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.contract import Request

Rows = list[list[int]]
HIDDEN = -1e30  # added to a score; unlike the dtype's minimum it stays finite in a float32 softmax


class Engine:
    """One request being decoded. ``rows`` are prompts and committed tokens; ``active`` are the rows still going."""

    def __init__(self, target: Any, draft: Any, request: Request, faults: Iterable[str] = ()) -> None:
        self.faults = frozenset(faults)
        if self.on("K24-not-cropped-from-k-7") and request.num_draft_tokens >= 7:
            self.faults |= {"K3-never-cropped"}
        self.target, self.draft, self.request = target, draft, request
        if self.on("T23-models-exchanged"):
            self.target, self.draft = draft, target
        self.rows = [list(prompt) for prompt in request.prompts]
        self.starts = [len(prompt) for prompt in request.prompts]
        self.active = list(range(len(self.rows)))
        self.finish_order: list[int] = []
        self.waiting: list[int] = []  # builds that take late rows keep them here,
        self.calls = 0  # and count the target's calls
        self.refused: dict[int, int] = {}  # by row, the draft token that the last round rejected
        self.drafts_before: dict[int, list[int]] = {}
        eos = request.eos_token_ids
        self.eos = eos[:1] if self.on("T3-first-eos-only") else eos

    def on(self, fault: str) -> bool:
        return fault in self.faults

    def decode(self) -> Rows:
        """The new tokens of each row, in request order."""
        if self.on("T2-eos-in-prompt"):
            self.active = [i for i in self.active if not set(self.rows[i]) & set(self.eos)]
        self.begin()
        while self.admit():
            drafts = self.handed_over(self.propose([self.budget(i) for i in self.active]))
            predicted = self._by_draft(drafts) if self.on("T22-verified-by-draft") else self.verify(drafts)
            counts = self.commit(drafts, predicted)
            done = [self.finished(i, proposed) for i, proposed in zip(self.active, drafts, strict=True)]
            self.finish_order += [i for i, end in zip(self.active, done, strict=True) if end]
            if (self.on("T6-stops-with-fastest") and any(done)) or (self.on("X5-limit-ends-all") and self.at_limit()):
                break
            self.retire(counts, [slot for slot, end in enumerate(done) if not end])
        return self.outputs()

    def retire(self, counts: Sequence[int], going: Sequence[int]) -> None:
        """Go on with the rows at these places of ``active``; ``counts`` are the draft tokens that each row accepted."""
        # The newest token of a row is not cached: it is fed with the next drafts.
        lengths = [self.cached_after(slot, counts[slot]) for slot in going]
        self.active = [self.active[slot] for slot in going]
        if going:
            self.after(going, lengths)

    def cached_after(self, slot: int, count: int) -> int:
        """How many tokens of a row are in the target's cache and in its committed row, after a round."""
        return min(self.before[slot] + count, len(self.rows[self.active[slot]]) - 1)

    def begin(self) -> None:
        """Set up the caches."""

    def admit(self) -> bool:
        """Let rows join that wait; whether there is any row to go on with."""
        return bool(self.active)

    def arriving(self) -> int | None:
        """The next of the ``waiting`` rows that may join after so many ``calls``; the first to come if none is left."""
        arrivals = self.request.arrivals or [0] * len(self.rows)
        arrived = [i for i in self.waiting if arrivals[i] <= self.calls]
        if arrived or self.active or not self.waiting:
            return arrived[0] if arrived else None
        return min(self.waiting, key=lambda i: arrivals[i])

    def verify(self, drafts: Rows) -> Rows:
        """What the target predicts after the newest token of each active row and after each of its drafts."""
        raise NotImplementedError

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        """The predictions after the newest token of each active row and after each of its drafts.

        ``logits`` are those of the blocks that were fed, ``[len(block), vocab]`` each; a block may begin earlier.
        """
        blocks = [(row.argmax(-1).tolist(), len(proposed) + 1) for row, proposed in zip(logits, drafts, strict=True)]
        if self.on("T21-answers-from-wrong-end"):
            return [row[:count] for row, count in blocks]
        return [row[-count:] for row, count in blocks]

    def _by_draft(self, drafts: Rows) -> Rows:
        """What the draft itself predicts where the target should have been asked."""
        texts = [(self.rows[i], proposed) for i, proposed in zip(self.active, drafts, strict=True)]
        ids = [torch.tensor([row + proposed]) for row, proposed in texts]
        return self.answers([self.draft(input_ids=one, use_cache=False).logits[0] for one in ids], drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first ``lengths`` cached tokens of the rows at these places of the batch, and only those rows."""

    def propose(self, budget: Sequence[int]) -> Rows:
        """``budget[slot]`` draft tokens for each active row: here one row at a time, without a cache."""
        drafts = []
        for i, count in zip(self.active, budget, strict=True):
            ids = list(self.rows[i])
            for _ in range(count):
                ids.append(int(self.draft(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            drafts.append(ids[len(self.rows[i]) :])
        return drafts

    def column_of_draft(self, i: int, drafted: list[int]) -> int:
        """The column of a row's block in the draft from which its next draft token is read: the last."""
        first = not drafted and len(self.rows[i]) == self.starts[i]
        return 0 if self.on("D7-first-token-from-first-column") and first else -1

    def handed_over(self, drafts: Rows) -> Rows:
        """The draft tokens of each active row as they are given to the target."""
        if self.on("D11-first-draft-dropped"):
            return [proposed[1:] for proposed in drafts]
        if self.on("D12-drafts-of-next-row"):
            return [other[: len(own)] for own, other in zip(drafts, [*drafts[1:], *drafts[:1]], strict=True)]
        if self.on("D13-drafts-of-round-before"):
            before, self.drafts_before = self.drafts_before, dict(zip(self.active, drafts, strict=True))
            return [before.get(i, own)[: len(own)] for i, own in zip(self.active, drafts, strict=True)]
        return drafts

    def limit(self, i: int) -> int:
        return self.starts[i] + self.request.max_new_tokens

    def budget(self, i: int) -> int:
        """K, or less where the row's limit is near: its last place belongs to the correction or bonus token."""
        if self.on("T5-overshoot"):
            return self.request.num_draft_tokens
        return max(0, min(self.request.num_draft_tokens, self.limit(i) - len(self.rows[i]) - 1))

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        """Append to each active row its accepted drafts and the target's next token; how many drafts were accepted."""
        self.before = [len(self.rows[i]) for i in self.active]
        if self.on("T25-answers-cut-at-seven"):
            predicted = [wanted[:7] for wanted in predicted]
        if self.on("X11-four-rows-at-once"):
            predicted = [predicted[slot % 4] for slot in range(len(predicted))]
        if self.on("X1-results-by-batch-row") and len(self.active) < len(self.rows):
            predicted = [*predicted[1:], *predicted[:1]]
        if self.on("X12-answers-by-first-token"):
            firsts = [self.rows[i][0] for i in self.active]
            predicted = [predicted[firsts.index(token)] for token in firsts]
        counts = []
        for slot, (i, proposed, wanted) in enumerate(zip(self.active, drafts, predicted, strict=True)):
            count = self.accepted(proposed, wanted)
            block = [*proposed[:count], wanted[min(count, len(wanted) - 1)]]
            self.append(i, self.altered(block, count, proposed, wanted, predicted[(slot + 1) % len(predicted)]))
            counts.append(count)
        refused = zip(self.active, drafts, counts, strict=True)
        self.refused = {i: proposed[count] for i, proposed, count in refused if count < len(proposed)}
        return counts

    def accepted(self, proposed: Sequence[int], wanted: Sequence[int]) -> int:
        """How many draft tokens, from the first, are the target's own."""
        same = [a == b for a, b in zip(proposed, wanted, strict=False)]
        if self.on("T22-no-verification"):
            return len(same)
        if self.on("T15-counts-matches"):
            return sum(same)
        if self.on("T12-full-acceptance-is-none") and same and all(same):
            return 0
        return same.index(False) if False in same else len(same)

    def altered(
        self, block: list[int], count: int, proposed: list[int], wanted: list[int], next_row: list[int]
    ) -> list[int]:
        """The block of tokens to commit, as a fault would have it."""
        rejected = count < len(proposed)
        if self.on("T10-correction-from-draft") and rejected:
            return proposed[: count + 1]
        if self.on("T11-first-mismatch-accepted") and rejected:
            return [*proposed[: count + 1], wanted[count + 1]]
        if self.on("T20-one-more-after-rejection") and rejected:
            return [*block, wanted[count + 1]]
        if self.on("T13-bonus-dropped") and proposed and not rejected:
            return block[:-1]
        if self.on("T13-accepted-dropped") and count > 1:
            return [*block[: count - 1], block[-1]]
        if self.on("T14-correction-from-last-column"):
            return [*block[:-1], wanted[-1]]
        if self.on("T14-correction-one-column-late") and rejected:
            return [*block[:-1], wanted[count + 1]]
        if self.on("T14-correction-from-next-row"):
            return [*block[:-1], next_row[min(count, len(next_row) - 1)]]
        if self.on("T10-correction-twice"):
            return [*block, block[-1]]
        if self.on("T16-pad-draft-accepted") and not rejected and len(proposed) < self.request.num_draft_tokens:
            return [*block[:-1], self.request.pad_token_id]
        return block

    def append(self, i: int, block: Sequence[int]) -> None:
        """Commit a block up to the row's first EOS or its limit."""
        row = self.rows[i]
        if self.on("T7-limit-before-eos") and len(row) + len(block) >= self.limit(i):
            row += block[: self.limit(i) - len(row)]
            return
        for token in block:
            if len(row) >= self.limit(i) and not self.on("T5-overshoot"):
                return
            row.append(token)
            if token in self.eos and not self.on("T1-eos-inside-block"):
                return

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        if self.on("T4-eos-in-draft") and set(drafts) & set(self.eos):
            return True
        if self.on("X4-limit-never-retires"):
            return self.rows[i][-1] in self.eos
        return self.rows[i][-1] in self.eos or len(self.rows[i]) >= self.limit(i)

    def at_limit(self) -> bool:
        return any(len(self.rows[i]) >= self.limit(i) for i in self.active)

    def outputs(self) -> Rows:
        pad, out = self.request.pad_token_id, [row[n:] for row, n in zip(self.rows, self.starts, strict=True)]
        if self.on("T24-prompt-returned"):
            out = self.rows
        if self.on("T17-slice-by-first-non-pad"):
            out = [row[self._leading_pads(i) :] or row for i, row in enumerate(out)]
        if self.on("T26-ten-tokens-kept"):
            out = [row[:10] for row in out]
        if self.on("T18-sorted-order"):
            out = [out[i] for i in sorted(range(len(out)), key=lambda i: self.starts[i])]
        if self.on("T18-completion-order"):
            out = [out[i] for i in self.finish_order]
        if self.on("X4-finished-row-padded"):
            out = [row + [pad] * (max(map(len, out)) - len(row)) for row in out]
        if self.on("T1-eos-stripped"):
            out = [row[:-1] if row and row[-1] in self.eos else row for row in out]
        if self.on("X7-waiting-omitted"):
            out = [out[i] for i in sorted(self.finish_order)]
        if self.on("X10-equal-prompts-once"):
            out = list({tuple(prompt): row for prompt, row in zip(self.request.prompts, out, strict=True)}.values())
        return out

    def fed_from(self, i: int) -> int:
        """How many of a row's first tokens are not fed: other than none only through a fault."""
        return max(0, self.starts[i] - 12) if self.on("K27-prompt-cut") else 0

    def grows_out_of(self, i: int) -> int | None:
        """The first row before this one whose prompt is the beginning of this one's."""
        mine, others = self.request.prompts[i], self.request.prompts[:i]
        return next((j for j, other in enumerate(others) if other == mine[: len(other)] and other != mine), None)

    def _leading_pads(self, i: int) -> int:
        prompt = self.request.prompts[i]
        return next((n for n, token in enumerate(prompt) if token != self.request.pad_token_id), len(prompt))


def left_padded(rows: Rows, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and which of them are real, ``[batch, width]`` each."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])


def placed(
    positions: torch.Tensor, real: torch.Tensor, model: Any, faults: Iterable[str] = frozenset()
) -> torch.Tensor:
    """Position ids ``[batch, block]`` in which pads, which ``real`` leaves out, have one that every model knows."""
    if "P11-positions-end-at-16" in faults:
        positions = positions.clamp(max=15)
    pads = 0
    if "P9-pads-before-table" in faults:
        pads = -1
    if "P9-pads-behind-table" in faults:
        pads = int(model.config.max_position_embeddings)
    return positions.masked_fill(~real, pads)


def additive(visible: torch.Tensor, model: Any) -> torch.Tensor:
    """A 4-D mask to add to the scores, from ``[batch, block, slots]`` bools."""
    mask = torch.zeros(visible.shape, dtype=getattr(model, "dtype", torch.float64))
    return mask.masked_fill(~visible, HIDDEN)[:, None]


def prefix_for(handed: Any, rows: int) -> DynamicCache:
    """A cache of ordinary layers that holds the handed prefix once per row; ``handed`` stays as it is."""
    cache = DynamicCache()
    for number, layer in enumerate(handed.layers):
        keys, values = (kept.repeat_interleave(rows, dim=0) for kept in (layer.keys, layer.values))
        cache.update(keys, values, number)
    return cache


def own_copy(handed: Any) -> Any:
    """A copy that shares no memory with a cache that was handed over or is to be restored."""
    return copy.deepcopy(handed)


def pieces(block: list[int], size: int | None) -> list[list[int]]:
    """A block cut into pieces of at most ``size`` tokens, or whole."""
    if size is None or len(block) <= size:
        return [block]
    return [block[at : at + size] for at in range(0, len(block), size)]
