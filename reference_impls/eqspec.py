"""EQSPEC: batch speculative decoding by unpad, append, repad (arXiv 2510.22876, Algorithms 2 and 3), done right.

The invariant of every round: a row of content length n has its first n - 1 tokens in the target's cache, each once,
aligned to the padding side; the newest token is fed with the drafts. Masks and positions follow from row lengths,
never from token ids, so pads may be any token. The draft keeps a cache of its own in step. The batch is static: rows
that finish leave it, and the next prompts wait until all have. Rows are greedy or sampled,
each by options of its own; `serving.sampling` says how.

    >>> from eqcheck.transparent.hashlm.model import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Eqspec(target, draft, num_draft_tokens=4, batch_size=8)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls
    ([10, 10], 2)

Works on any Hugging Face causal LM that takes a 2-D ``attention_mask`` and ``position_ids`` and whose cache layers
hold ``[batch, heads, slots, dim]`` of every token (Llama, Qwen3, GPT-2, GPT-NeoX, Mixtral), on any device, in any
floating dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.cache_names import cache_argument

from .serving import SAMPLING, Engine, Greedy, Row, chooser, decode

Rows = list[list[int]]


class AlignedModel:
    """A causal LM with a cache whose rows are realigned after every round.

    ``lengths[i]`` tokens of row i are cached; between rounds they are contiguous on the padding side, and
    ``self.kept`` ``[batch, slots]`` says which slots hold them.
    """

    def __init__(self, model: Any, batch: int, pad_token_id: int, padding_side: str) -> None:
        self.model, self.pad, self.side = model, pad_token_id, padding_side
        self.cache = DynamicCache()
        self.lengths = [0] * batch
        self.kept = torch.zeros(batch, 0, dtype=torch.bool, device=model.device)

    def feed(self, blocks: Rows, last: Sequence[int]) -> torch.Tensor:
        """Feed each row its block (ragged, may be empty); logits ``[rows, max(last), vocab]`` after its last tokens.

        Row i has ``last[i]`` of them, from column 0 on; what stands behind those means nothing.
        """
        width = max(map(len, blocks))
        left = self.side == "left"
        tokens, real, positions = [], [], []
        for block, n in zip(blocks, self.lengths, strict=True):
            gap = width - len(block)
            before, after = (gap, 0) if left else (0, gap)
            tokens.append([self.pad] * before + block + [self.pad] * after)
            real.append([False] * before + [True] * len(block) + [False] * after)
            positions.append([0] * before + list(range(n, n + len(block))) + [0] * after)
        device = self.model.device
        self.kept = torch.cat([self.kept, torch.tensor(real, device=device)], dim=1)  # [batch, slots + width]
        output = self.model(
            input_ids=torch.tensor(tokens, device=device),
            attention_mask=self.kept.long(),
            position_ids=torch.tensor(positions, device=device),
            use_cache=True,
            **cache_argument(self.model, self.cache),
        )
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        first = [[(width if left else len(block)) - n] for block, n in zip(blocks, last, strict=True)]
        columns = torch.tensor(first, device=device) + torch.arange(max(last), device=device)
        logits: torch.Tensor = output.logits
        return logits[torch.arange(len(blocks), device=device)[:, None], columns.clamp(0, width - 1)]

    def realign(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep these rows with the first ``lengths[i]`` tokens of each: drop rejected tokens and pads, repad."""
        kept = self.kept[list(rows)]
        rank = kept.cumsum(1)  # of a row's tokens, from 1
        kept = kept & (rank <= torch.tensor(lengths, device=kept.device)[:, None])
        # Stable sorting moves a row's kept slots to the padding side's other end, in order.
        order = kept.long().argsort(dim=1, stable=True, descending=self.side == "right")
        width = max(lengths)
        order = order[:, order.shape[1] - width :] if self.side == "left" else order[:, :width]
        index = torch.tensor(list(rows), device=kept.device)[:, None]
        for layer in self.cache.layers:
            layer.keys, layer.values = (select(states, index, order) for states in (layer.keys, layer.values))
        self.kept = kept.gather(1, order)
        self.lengths = list(lengths)


class Eqspec(Engine):
    """A static batch that is realigned after every round; see the module.

    ``pad_token_id`` (any token) pads the rows on ``padding_side``, ``"left"`` or ``"right"``.
    """

    windows: ClassVar[bool] = False

    def __init__(
        self, target: Any, draft: Any, *, pad_token_id: int = 0, padding_side: str = "left", **settings: Any
    ) -> None:
        super().__init__(target, draft, **settings)
        self.pad, self.side = pad_token_id, padding_side

    def begin(self) -> None:
        self._align([])

    def room(self) -> int:
        return 0 if self.rows else self.batch_size

    def _align(self, rows: list[Row]) -> None:
        self.rows = rows
        self.verifier, self.drafter = (
            AlignedModel(model, len(rows), self.pad, self.side) for model in (self.target, self.draft)
        )

    def join(self, rows: list[Row]) -> None:
        self._align(rows)
        if self.prefill_chunk is not None:
            self._prefill(self.prefill_chunk)

    def _prefill(self, chunk: int) -> None:
        """Feed the prompts in pieces, all but their newest token; without this, the first round feeds them."""
        lengths = [row.cached for row in self.rows]
        for start in range(0, max(lengths), chunk):
            for model in (self.verifier, self.drafter):
                model.feed([row.tokens[:-1][start : start + chunk] for row in self.rows], [1] * len(lengths))
            self.stats.prefill_calls += 1
        if max(lengths):
            for model in (self.verifier, self.drafter):
                model.realign(range(len(lengths)), lengths)

    def round(self) -> list[Row]:
        rows = self.rows
        budgets = [row.budget(self.num_draft_tokens) for row in rows]
        choose = chooser(self.noise, rows, budgets, self.target.device)
        drafts = self._propose(budgets, choose)
        waiting = [row.tokens[n:] for row, n in zip(rows, self.verifier.lengths, strict=True)]
        blocks = [w + d[:k] for w, d, k in zip(waiting, drafts.tolist(), budgets, strict=True)]
        self.stats.verify_calls += 1
        logits = self.verifier.feed(blocks, [k + 1 for k in budgets])  # one more than drafts: the bonus
        for row, budget, block in zip(rows, budgets, choose.blocks(logits, drafts), strict=True):
            committed = row.commit(block)
            self.stats.count(budget, len(block) - 1, committed)
        going = [i for i, row in enumerate(rows) if not row.finish_reason]
        self.rows = [rows[i] for i in going]
        if going:
            with self.stats.timed("realign", self.target.device):
                self._realign(going)
        return rows

    def _propose(self, budgets: Sequence[int], choose: Greedy) -> torch.Tensor:
        """Draft tokens ``[rows, max(budgets)]``, and row i has ``budgets[i]``; then it is fed nothing."""
        drafts = torch.empty(len(budgets), max(budgets), dtype=torch.long, device=self.draft.device)
        waiting = [row.tokens[n:] for row, n in zip(self.rows, self.drafter.lengths, strict=True)]
        for step in range(max(budgets)):
            blocks = [tokens if step < k else [] for tokens, k in zip(waiting, budgets, strict=True)]
            drafts[:, step] = choose.propose(self.drafter.feed(blocks, [1] * len(blocks))[:, 0])
            waiting = drafts[:, step : step + 1].tolist()
        return drafts

    def _realign(self, going: list[int]) -> None:
        lengths = [row.cached for row in self.rows]
        self.verifier.realign(going, lengths)
        # The draft has not been fed its last token: after full acceptance its cache is one token shorter.
        self.drafter.realign(going, [min(self.drafter.lengths[i], n) for i, n in zip(going, lengths, strict=True)])
        self.stats.realignments += 1


def select(states: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Select these rows ``[rows, 1]`` of ``[batch, heads, slots, dim]``, and of each these slots ``[rows, width]``."""
    _, heads, count, dim = states.shape
    head = torch.arange(heads, device=states.device)[:, None]  # [heads, 1]
    flat = (rows[..., None] * heads + head) * count + slots[:, None]  # [rows, heads, width]
    return states.reshape(-1, dim).index_select(0, flat.flatten()).view(*flat.shape, dim)


@eqcheck.decoder(
    name="eqspec",
    padding_sides=("left", "right"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows"),
    origin="EQSPEC of arXiv 2510.22876, repaired: see the module's docstring",
    engine=Eqspec,
    capabilities=SAMPLING,
    seeds="mates",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> Rows:
    """New tokens of each row, equal to what ``target`` emits for that row alone, or drawn from its law."""
    batch_size, pad, side = len(request.prompts), request.pad_token_id, request.padding_side
    return decode(Eqspec, target, draft, request, batch_size=batch_size, pad_token_id=pad, padding_side=side)
