"""Engines of different build, right as they stand, with a planted fault each when asked for one.

one_row      one row at a time, no cache, no draft
uncached     the whole batch fed again each round, left padded
realigned    unpad, append, repad (as EQSPEC)
holes        nothing moves; rejected slots are hidden by the mask, positions are logical
rolled_back  every row goes back to the batch's minimum; caches are cropped
per_row      one ordinary cache per row
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.contract import Request
from eqcheck.hashing import POSITION

Rows = list[list[int]]


def one_row(target: Any, draft: Any, request: Request) -> Rows:
    outputs = []
    for prompt in request.prompts:
        ids = list(prompt)
        for _ in range(request.max_new_tokens):
            ids.append(int(target(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if ids[-1] in request.eos_token_ids:
                break
        outputs.append(ids[len(prompt) :])
    return outputs


class Engine:
    """The bookkeeping that the cached builds share; ``fault`` switches one fault in."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, target: Any, draft: Any, request: Request) -> Rows:
        self.request = request
        self.rows = [list(p) for p in request.prompts]
        self.starts = [len(p) for p in request.prompts]
        self.limit = request.max_new_tokens + (2 if self.fault == "overshoot" else 0)
        active = list(range(len(self.rows)))
        if self.fault == "eos-in-prompt":
            active = [i for i in active if not set(self.rows[i]) & set(request.eos_token_ids)]
        self.begin(target, draft)
        while active:
            k = [min(request.num_draft_tokens, self.starts[i] + self.limit - len(self.rows[i]) - 1) for i in active]
            drafts = self.propose(draft, active, k)
            predicted = self.verify(target, active, drafts)
            before = [len(self.rows[i]) for i in active]
            counts = self.commit(active, drafts, predicted)
            done = [self.finished(i, d) for i, d in zip(active, drafts, strict=True)]
            if self.fault == "stops-with-fastest" and any(done):
                break
            keep = [slot for slot, end in enumerate(done) if not end]
            if keep:
                self.after(active, before, counts, drafts, keep)
            active = [active[slot] for slot in keep]
        return self.outputs()

    def begin(self, target: Any, draft: Any) -> None: ...

    def after(self, active: list[int], before: list[int], counts: list[int], drafts: Rows, keep: list[int]) -> None: ...

    def propose(self, draft: Any, active: list[int], k: list[int]) -> Rows:
        """Drafts one row at a time without a cache: simple and right."""
        drafts = []
        for i, count in zip(active, k, strict=True):
            ids = list(self.rows[i])
            for _ in range(count):
                ids.append(int(draft(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            drafts.append(ids[len(self.rows[i]) :])
        return drafts

    def verify(self, target: Any, active: list[int], drafts: Rows) -> Rows:
        raise NotImplementedError

    def commit(self, active: list[int], drafts: Rows, predicted: Rows) -> list[int]:
        fault, counts = self.fault, []
        for slot, (i, proposed, wanted) in enumerate(zip(active, drafts, predicted, strict=True)):
            count = 0
            while count < len(proposed) and proposed[count] == wanted[count]:
                count += 1
            if fault == "counts-matches":
                count = sum(a == b for a, b in zip(proposed, wanted, strict=False))
            block = [*proposed[:count], wanted[count]]
            if fault == "emits-rejected" and count < len(proposed):
                block = proposed[: count + 1]
            if fault == "correction-from-last-column":
                block[-1] = wanted[-1]
            if fault == "correction-from-next-row":
                block[-1] = predicted[(slot + 1) % len(predicted)][
                    min(count, len(predicted[(slot + 1) % len(predicted)]) - 1)
                ]
            if fault == "drops-last-accepted" and count > 1:
                del block[count - 1]
            if fault == "emits-correction-twice":
                block.append(block[-1])
            eos = self.request.eos_token_ids[:1] if fault == "first-eos-only" else self.request.eos_token_ids
            if fault == "eos-last-only":
                eos = ()
            for token in block:
                self.rows[i].append(token)
                if token in eos or len(self.rows[i]) - self.starts[i] >= self.limit:
                    break
            counts.append(count)
        return counts

    def finished(self, i: int, drafts: list[int]) -> bool:
        row = self.rows[i]
        eos = self.request.eos_token_ids[:1] if self.fault == "first-eos-only" else self.request.eos_token_ids
        if self.fault == "eos-in-draft-ends" and set(drafts) & set(eos):
            return True
        return row[-1] in eos or len(row) - self.starts[i] >= self.limit

    def outputs(self) -> Rows:
        out = [row[start:] for row, start in zip(self.rows, self.starts, strict=True)]
        if self.fault == "sorted-order":
            out = [out[i] for i in sorted(range(len(out)), key=lambda i: len(self.request.prompts[i]))]
        if self.fault == "pads-in-output":
            width = max(map(len, out))
            out = [row + [self.request.pad_token_id] * (width - len(row)) for row in out]
        if self.fault == "strips-eos":
            out = [row[:-1] if row and row[-1] in self.request.eos_token_ids else row for row in out]
        return out


def _predictions(logits: torch.Tensor, real: list[list[bool]], drafts: Rows) -> Rows:
    out = []
    for row, mask, proposed in zip(logits, real, drafts, strict=True):
        out.append(row[torch.tensor(mask)][-len(proposed) - 1 :].argmax(-1).tolist())
    return out


class Uncached(Engine):
    """Faults: no-mask, no-positions, row-0-positions, mask-by-token."""

    def verify(self, target: Any, active: list[int], drafts: Rows) -> Rows:
        full = [self.rows[i] + d for i, d in zip(active, drafts, strict=True)]
        width, pad = max(map(len, full)), self.request.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in full])
        real = [[False] * (width - len(row)) + [True] * len(row) for row in full]
        mask = torch.tensor(real)
        if self.fault == "mask-by-token":
            mask = ids != pad
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        if self.fault == "row-0-positions":
            positions = positions[:1]
        logits = target(
            input_ids=ids,
            attention_mask=None if self.fault == "no-mask" else mask.long(),
            position_ids=None if self.fault == "no-positions" else positions,
            use_cache=self.fault == "no-mask",  # with neither mask nor cache, models read packing into position ids
        ).logits
        return _predictions(logits, real, drafts)


class Slots(Engine):
    """What `Realigned` and `Holes` share: a cache whose slots are known by row, token position and validity."""

    def begin(self, target: Any, draft: Any) -> None:
        self.cache = DynamicCache()
        self.valid = torch.zeros(len(self.rows), 0, dtype=torch.bool)
        self.stale = self.valid
        self.cached = [0] * len(self.rows)
        self.advanced = [0] * len(self.rows)

    def verify(self, target: Any, active: list[int], drafts: Rows) -> Rows:
        fault = self.fault
        blocks = [self.rows[i][n:] + d for i, n, d in zip(active, self.cached, drafts, strict=True)]
        starts = list(self.advanced) if fault == "positions-by-k" else list(self.cached)
        if fault == "last-token-again":
            first = self.valid.shape[1] == 0
            blocks = [
                b if first else self.rows[i][n - 1 : n] + b for i, n, b in zip(active, self.cached, blocks, strict=True)
            ]
            starts = [n if first else n - 1 for n in starts]
        width = max(map(len, blocks))
        pad = self.request.pad_token_id
        real = [[False] * (width - len(b)) + [True] * len(b) for b in blocks]
        ids = torch.tensor([[pad] * (width - len(b)) + b for b in blocks])
        fed = torch.tensor(real)
        self.valid = torch.cat([self.valid, fed], 1)
        positions = torch.tensor(
            [[0] * (width - len(b)) + list(range(n, n + len(b))) for b, n in zip(blocks, starts, strict=True)]
        )
        slots = self.valid.shape[1]
        if fault == "row-0-positions":
            positions = positions[:1]
        if fault == "positions-off-by-one" and slots > width:
            positions = positions - 1
        mask: torch.Tensor | None = self.valid.long()
        if fault == "no-mask":
            mask = torch.ones_like(self.valid).long()
        if fault == "stale-mask" and slots > width:
            mask = torch.cat([self.stale[:, : slots - width], fed], 1).long()
        if fault in ("sees-next-draft", "misses-itself"):
            query = torch.arange(slots - width, slots)[:, None]
            reach = query + 1 if fault == "sees-next-draft" else query - (query > slots - width).long()
            mask = (self.valid[:, None] & (torch.arange(slots) <= reach))[:, None]
        logits = target(
            input_ids=ids,
            attention_mask=mask,
            position_ids=None if fault == "positions-by-slot" else positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self.blocks, self.width = blocks, width
        return _predictions(logits, real, drafts)

    def keep(self, active: list[int], before: list[int], counts: list[int], drafts: Rows) -> torch.Tensor:
        """Which slots hold committed tokens; the newest token of a row is not cached."""
        kept = self.valid.clone()
        for slot, (count, proposed) in enumerate(zip(counts, drafts, strict=True)):
            rejected = len(proposed) - count
            if self.fault == "keeps-one-rejected":
                rejected = max(0, rejected - 1)
            if self.fault == "drops-one-too-many":
                rejected += 1
            if self.fault == "crop-to-max":
                rejected = min(rejected, max(len(proposed) - max(counts), 0))
            if rejected:
                kept[slot, kept.shape[1] - rejected :] = False
        return kept

    def lengths(self, active: list[int], before: list[int], counts: list[int]) -> list[int]:
        return [n + c for n, c in zip(before, counts, strict=True)]


class Realigned(Slots):
    """Faults: keys-only-moved, one-layer-moved, rows-swapped-in-cache, moved-keys-re-rotated, mask-not-moved, ..."""

    def after(self, active: list[int], before: list[int], counts: list[int], drafts: Rows, keep: list[int]) -> None:
        kept = self.keep(active, before, counts, drafts)[keep]
        self.stale = self.valid[keep][:, : kept.shape[1]]
        order = kept.long().argsort(dim=1, stable=True)
        width = int(kept.sum(1).max())
        order = order[:, order.shape[1] - width :]
        rows = torch.tensor(keep)
        if self.fault == "rows-swapped-in-cache":
            rows = rows.flip(0)
        if self.fault == "cache-not-moved":
            order = torch.arange(kept.shape[1])[-width:].expand(len(keep), width)
        for number, layer in enumerate(self.cache.layers):
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = old[rows[:, None], :, order].transpose(1, 2)
                unmoved = old[rows][:, :, -width:]
                if self.fault == "keys-only-moved" and name == "values":
                    new = unmoved
                if self.fault == "one-layer-moved" and number == 1:
                    new = unmoved
                if self.fault == "moved-keys-re-rotated" and name == "keys":
                    new = new.clone()
                    new[:, :, : width // 2, POSITION] += 1
                if self.fault == "moved-keys-re-rotated" and name == "values":
                    new = new.clone()
                    new[:, :, : width // 2, POSITION] += 1
                setattr(layer, name, new)
        self.valid = kept.gather(1, order)
        if self.fault in ("mask-not-moved",):
            self.valid = kept[:, -width:]
        if self.fault == "cache-not-moved":
            self.valid = kept.gather(1, kept.long().argsort(dim=1, stable=True))[:, -width:]
        if self.fault == "stale-mask":
            self.stale = self.stale[:, -width:]
        self.cached = [self.lengths(active, before, counts)[s] for s in keep]
        self.advanced = [self.advanced[s] + len(self.blocks[s]) for s in keep]


class Holes(Slots):
    """Nothing moves; faults that concern masks and positions of holes."""

    def after(self, active: list[int], before: list[int], counts: list[int], drafts: Rows, keep: list[int]) -> None:
        kept = self.keep(active, before, counts, drafts)[keep]
        self.stale = self.valid[keep]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[keep], layer.values[keep]
        self.valid = kept
        self.cached = [self.lengths(active, before, counts)[s] for s in keep]
        self.advanced = [self.advanced[s] + len(self.blocks[s]) for s in keep]


class RolledBack(Slots):
    """Every row is cut back to the shortest accepted count of the batch; the cache is cropped for all at once."""

    def commit(self, active: list[int], drafts: Rows, predicted: Rows) -> list[int]:
        counts = [
            next((c for c, (a, b) in enumerate(zip(d, p, strict=False)) if a != b), len(d))
            for d, p in zip(drafts, predicted, strict=True)
        ]
        least = min(counts)
        if self.fault == "crop-to-min-keep-tokens":
            self.least = least
            return super().commit(active, drafts, predicted)
        super().commit(active, [d[:least] for d in drafts], [p[: least + 1] for p in predicted])
        self.least = least
        return [least] * len(counts)

    def propose(self, draft: Any, active: list[int], k: list[int]) -> Rows:
        return super().propose(draft, active, [min(k)] * len(k))

    def after(self, active: list[int], before: list[int], counts: list[int], drafts: Rows, keep: list[int]) -> None:
        drop = len(drafts[0]) - self.least
        self.valid = self.valid[keep][:, : self.valid.shape[1] - drop]
        for layer in self.cache.layers:
            layer.keys = layer.keys[keep][:, :, : layer.keys.shape[2] - drop]
            layer.values = layer.values[keep][:, :, : layer.values.shape[2] - drop]
        self.cached = [len(self.rows[active[s]]) - 1 for s in keep]


class PerRow(Engine):
    """One ordinary cache per row. Faults: never-cropped, caches-exchanged."""

    def begin(self, target: Any, draft: Any) -> None:
        self.caches = [DynamicCache() for _ in self.rows]

    def verify(self, target: Any, active: list[int], drafts: Rows) -> Rows:
        out = []
        for i, proposed in zip(active, drafts, strict=True):
            cache = self.caches[i]
            if self.fault == "caches-exchanged" and cache.get_seq_length():
                cache = self.caches[(i + 1) % len(self.caches)]
            n = min(cache.get_seq_length(), len(self.rows[i]) - 1)
            if self.fault == "never-cropped":
                n = len(self.rows[i]) - 1 if cache.get_seq_length() else 0
            fed = self.rows[i][n:] + proposed
            logits = target(
                input_ids=torch.tensor([fed]),
                position_ids=torch.arange(n, n + len(fed))[None],
                past_key_values=cache,
                use_cache=True,
            ).logits
            out.append(logits[0, -len(proposed) - 1 :].argmax(-1).tolist())
        return out

    def after(self, active: list[int], before: list[int], counts: list[int], drafts: Rows, keep: list[int]) -> None:
        if self.fault == "never-cropped":
            return
        for slot in keep:
            for layer in self.caches[active[slot]].layers:
                length = len(self.rows[active[slot]]) - 1
                layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]


BUILDS: dict[str, Any] = {
    "one_row": lambda fault="": one_row,
    "uncached": Uncached,
    "realigned": Realigned,
    "holes": Holes,
    "rolled_back": RolledBack,
    "per_row": PerRow,
}
