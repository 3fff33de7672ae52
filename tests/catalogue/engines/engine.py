"""The loop that all engines share: rounds, commitment of tokens, where rows end, the order of outputs.

A subclass of `RoundEngine` says how drafts are proposed (`propose`) and verified (`verify`), and how its caches change
between rounds (`after`). A place is that of a row in ``active``; where an engine has a memory of its own, ``memory`` is
its class for the target, and ``draft_memory`` for the draft.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.decoders import Request

KeysValues = tuple[torch.Tensor, torch.Tensor]


class Handling:
    """A part of an engine that feeds a model, or keeps K and V for it."""

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        """Position ids ``[batch, block]``: pads, which ``real`` leaves out, have one that every model knows."""
        return at.masked_fill(~real, 0)

    def turned(self, block: torch.Tensor) -> torch.Tensor:
        """K or V ``[rows, heads, tokens, width]`` of a block as memory keeps it, ``[rows, tokens, heads, width]``."""
        return block.transpose(1, 2)

    def handed(self, keys: torch.Tensor, values: torch.Tensor) -> KeysValues:
        """K and V ``[rows, heads, slots, width]`` as a layer gets them, or as they stay in the cache."""
        return keys, values


Rows = list[list[int]]
HIDDEN = -1e30  # added to a score; unlike the dtype's minimum it stays finite in a float32 softmax


class RoundEngine(Handling):
    """One request being decoded. ``rows`` are prompts and committed tokens; ``active`` are the rows still going."""

    def __init__(self, target: Any, draft: Any, request: Request) -> None:
        self.target, self.draft, self.request = target, draft, request
        self.rows = [list(prompt) for prompt in request.prompts]
        self.starts = [len(prompt) for prompt in request.prompts]
        self.active = list(range(len(self.rows)))
        self.finish_order: list[int] = []
        self.waiting: list[int] = []  # engines that take late rows keep them here,
        self.calls = 0  # and count the target's calls
        self.eos = request.eos_token_ids

    def decode(self) -> Rows:
        """The new tokens of each row, in request order."""
        self.begin()
        while self.admit():
            drafts = self.propose([self.budget(i) for i in self.active])
            counts = self.commit(drafts, self.verify(drafts))
            done = [self.finished(i, proposed) for i, proposed in zip(self.active, drafts, strict=True)]
            self.finish_order += [i for i, end in zip(self.active, done, strict=True) if end]
            self.retire(counts, [place for place, end in enumerate(done) if not end])
        return self.outputs()

    def retire(self, counts: Sequence[int], going: Sequence[int]) -> None:
        """Go on with the rows at these places; ``counts`` are the draft tokens that each row accepted."""
        # The newest token of a row is not cached: it is fed with the next drafts.
        lengths = [self.cached_after(place, counts[place]) for place in going]
        self.active = [self.active[place] for place in going]
        if going:
            self.after(going, lengths)

    def cached_after(self, place: int, count: int) -> int:
        """Return how many tokens of a row are in the target's cache and in its committed row, after a round."""
        return min(self.before[place] + count, len(self.rows[self.active[place]]) - 1)

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
        """The target's predictions after the newest token of each active row and after each of its drafts."""
        raise NotImplementedError

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        """The predictions after the newest token of each active row and after each of its drafts.

        ``logits`` are those of the blocks that were fed, ``[len(block), vocab]`` each; a block may begin earlier.
        """
        return [row.argmax(-1).tolist()[-len(proposed) - 1 :] for row, proposed in zip(logits, drafts, strict=True)]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first ``lengths`` cached tokens of the rows at these places, and only those rows."""

    def propose(self, budget: Sequence[int]) -> Rows:
        """``budget[place]`` draft tokens for each active row: here one row at a time, without a cache."""
        drafts = []
        for i, count in zip(self.active, budget, strict=True):
            ids = list(self.rows[i])
            for _ in range(count):
                logits = self.draft(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
                ids.append(self.next_draft(i, logits, ids[len(self.rows[i]) :]))
            drafts.append(ids[len(self.rows[i]) :])
        return drafts

    def drafted_on(self, i: int, tokens: list[int]) -> list[int]:
        """The tokens of a row that the draft is fed before it drafts: those it has not seen."""
        return tokens

    def next_draft(self, i: int, logits: torch.Tensor, drafted: list[int]) -> int:
        """A row's next draft token, from the draft's logits ``[len(block), vocab]`` of the row's block."""
        return int(logits[-1].argmax())

    def limit(self, i: int) -> int:
        return self.starts[i] + self.request.max_new_tokens

    def budget(self, i: int) -> int:
        """K, or less where the row's limit is near: its last place belongs to the correction or bonus token."""
        return max(0, min(self.request.num_draft_tokens, self.limit(i) - len(self.rows[i]) - 1))

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        """Append to each active row its accepted drafts and the target's next token; how many drafts were accepted."""
        self.before = [len(self.rows[i]) for i in self.active]
        counts = []
        for i, proposed, answers in zip(self.active, drafts, predicted, strict=True):
            counts.append(self.accepted(proposed, answers))
            self.append(i, self.block(counts[-1], proposed, answers))
        return counts

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        """Return how many draft tokens, from the first, are the target's own."""
        same = (a == b for a, b in zip(proposed, answers, strict=False))
        return next((count for count, right in enumerate(same) if not right), len(proposed))

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        """The tokens to commit: the accepted drafts, and the correction or bonus token."""
        return [*proposed[:count], answers[count]]

    def append(self, i: int, block: Sequence[int]) -> None:
        """Commit a block up to the row's first EOS or its limit."""
        for token in block[: self.limit(i) - len(self.rows[i])]:
            self.rows[i].append(token)
            if token in self.eos:
                return

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        return self.rows[i][-1] in self.eos or len(self.rows[i]) >= self.limit(i)

    def outputs(self) -> Rows:
        return [row[n:] for row, n in zip(self.rows, self.starts, strict=True)]


class RequestEngine(RoundEngine):
    """An engine whose memories, ``verifier`` and ``drafter``, are fed and shortened by request."""

    verifier: Any
    drafter: Any

    def prefill_all(self, i: int) -> None:
        """Feed all but the last piece of a row's prompt."""
        pending = self.rows[i][self.verifier.lengths[i] :]
        for number, piece in enumerate(pieces(pending, self.request.prefill_chunk)[:-1]):
            self.prefill(i, piece, number)

    def prefill(self, i: int, piece: list[int], number: int) -> None:
        """Feed a piece of a row's prompt, but the last."""
        self.calls += 1
        self.verifier.feed([i], [piece])

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[place]`` tokens for each active row, all rows at once."""
        drafts: dict[int, list[int]] = {i: [] for i in self.active}
        waiting = {i: self.drafted_on(i, self.rows[i][self.drafter.lengths[i] :]) for i in self.active}
        while going := [i for i, k in zip(self.active, budget, strict=True) if len(drafts[i]) < k]:
            for i, logits in zip(going, self.drafter.feed(going, [waiting[i] for i in going]), strict=True):
                drafts[i].append(self.next_draft(i, logits, drafts[i]))
                waiting[i] = drafts[i][-1:]
        return list(drafts.values())

    def verify(self, drafts: Rows) -> Rows:
        rows = zip(self.active, drafts, strict=True)
        blocks = [self.rows[i][self.verifier.lengths[i] :] + proposed for i, proposed in rows]
        self.calls += 1
        return self.answers(self.verifier.feed(self.active, blocks), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(self.active, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        fed = [min(self.drafter.lengths[i], n) for i, n in zip(self.active, lengths, strict=True)]
        self.drafter.keep(self.active, fed)


def logits_of(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None, cache: Any
) -> torch.Tensor:
    """The logits ``[batch, block, vocab]`` of a call that writes to a cache; without a mask all is seen."""
    masked = {} if mask is None else {"attention_mask": mask}
    logits: torch.Tensor = model(
        input_ids=ids, **masked, position_ids=positions, use_cache=True, **cache_argument(model, cache)
    ).logits
    return logits


def causal(queries: torch.Tensor, keys: torch.Tensor, model: Any) -> torch.Tensor:
    """Return which keys a query sees of those up to itself: all, or those in the model's window."""
    window = getattr(model.config, "sliding_window", None)
    return keys <= queries if window is None else (keys <= queries) & (keys > queries - window)


def left_padded(rows: Rows, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and which of them are real, ``[batch, width]`` each."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])


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
