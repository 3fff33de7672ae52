"""K and V in pages, as vLLM and flashinfer keep them: what an engine's tables say is written and read for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.contract.errors import Unsupported, UsageError

Pools = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Paged:
    """Present the pages of all rows as the cache of one call: `update` appends K and V, and returns what rows read.

    ``pools`` has K and V of each layer, ``[pages, page_size, heads, width]`` each. Where they are in one tensor, hand
    over views: ``(kv[0], kv[1])`` of ``[2, pages, ...]``, ``(kv[:, 0], kv[:, 1])`` of ``[pages, 2, ...]``.
    ``tables`` ``[rows, pages]`` are the pages of each row in order (vLLM: block table); behind the last one may stand
    anything. ``slots``, one for each token that is fed, say where it is written, ``page * page_size + offset``
    (vLLM: slot mapping); what has a slot below zero is not written. ``lengths`` ``[rows]`` count the tokens of each row
    after the call (``seq_lens``). ``starts`` ``[rows + 1]`` is given where the rows' tokens are packed into one row of
    a call: those of row ``r`` are ``starts[r]`` to ``starts[r + 1] - 1`` (``query_start_loc``, ``qo_indptr``).

        >>> pool = torch.zeros(4, 2, 1, 1)  # 4 pages of 2 tokens
        >>> new = torch.tensor([5.0, 6.0, 7.0]).view(1, 1, 3, 1)  # [rows, heads, block, width]
        >>> cache = Paged([(pool, pool.clone())], tables=torch.tensor([[3, 1]]), slots=torch.tensor([[6, 7, 2]]),
        ...               lengths=torch.tensor([3]))
        >>> cache.update(new, new, 0)[0].flatten().tolist()
        [5.0, 6.0, 7.0, 0.0]
        >>> cache.mask[0, 0].int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]

    Raises `eqcheck.contract.errors.UsageError` where there is not one slot for each token.
    """

    def __init__(
        self,
        pools: Pools,
        tables: torch.Tensor,
        slots: torch.Tensor,
        lengths: torch.Tensor,
        starts: torch.Tensor | None = None,
    ) -> None:
        self.pools, self.tables, self.slots, self.lengths = pools, tables.long().clamp(min=0), slots.flatten(), lengths
        rows, fed = len(tables), len(self.slots)
        self.packed = starts is not None
        if starts is None:
            starts = torch.arange(rows + 1, device=tables.device) * (fed // rows)
        if int(starts[-1]) != fed:
            raise UsageError(f"slots: expected one for each of {int(starts[-1])} tokens, got {fed}")
        self._starts = starts.long()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the cached tokens of the longest row before the call."""
        return int((self.lengths - self._starts.diff()).max())

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append K and V ``[rows, heads, block, width]``; return what the rows read, ``[rows, heads, slots, width]``.

        Packed, there is one row of all tokens, and what the rows read stands one after the other.
        """
        key_pool, value_pool = self.pools[layer_idx]
        return self._updated(key_pool, keys), self._updated(value_pool, values)

    def _updated(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        tokens = new.transpose(1, 2).flatten(0, 1)  # [tokens, heads, width]
        if len(tokens) != len(self.slots):
            raise UsageError(f"slots: expected one for each of {len(tokens)} tokens, got {len(self.slots)}")
        kept, size = self.slots >= 0, pool.shape[1]
        at = self.slots[kept]
        pool[at // size, at % size] = tokens[kept].to(pool.dtype)
        read = pool[self.tables].flatten(1, 2)  # [rows, slots, heads, width]
        return (read.flatten(0, 1)[None] if self.packed else read).transpose(1, 2).to(new.dtype)

    @property
    def mask(self) -> torch.Tensor:
        """Return the attention mask, ``[rows, 1, block, slots]``: each query attends to its row up to its own token.

        So the kernels mask: the last query of a row sees ``lengths`` slots, the one before it one less.
        """
        fed, rows = len(self.slots), len(self.tables)
        row = torch.repeat_interleave(torch.arange(rows, device=self.tables.device), self._starts.diff())
        last = (self.lengths - self._starts[1:])[row] + torch.arange(fed, device=self.tables.device)
        size = self.pools[0][0].shape[1]
        seen = torch.arange(self.tables.shape[1] * size, device=self.tables.device) <= last[:, None]  # [tokens, slots]
        if not self.packed:
            return seen.view(rows, 1, fed // rows, -1)
        own = torch.nn.functional.one_hot(row, rows).bool()  # [tokens, rows]
        return (own[:, :, None] & seen[:, None]).flatten(1)[None, None]


def page_tables(indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Convert flashinfer's page indices, one vector for all rows, to tables ``[rows, pages]``; -1 after the last.

    >>> page_tables(torch.tensor([0, 2, 3]), torch.tensor([4, 0, 7])).tolist()
    [[4, 0], [7, -1]]
    """
    rows = [indices[begin:end] for begin, end in zip(indptr.tolist(), indptr.tolist()[1:], strict=False)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def kv_sizes(model: Any) -> tuple[int, int, int]:
    """Return the number of layers of a model, and for each the heads and width of K and V.

    They are read from its configuration as engines read it: where no number of heads for K and V is named, there are as
    many as for queries, or one in models of multi-query attention.

        >>> from eqcheck.transparent.real.models import model_of
        >>> kv_sizes(model_of("llama", "float64", 0)), kv_sizes(model_of("gpt2", "float64", 0))
        ((2, 2, 16), (2, 4, 16))

    Raises `eqcheck.Unsupported` for a model that keeps a state, or K and V of unlike shapes.
    """
    config = model.config
    heads = getattr(config, "num_attention_heads", None)
    if not heads or getattr(config, "kv_lora_rank", None):
        what = "latents in place of K and V" if heads else "a state, and no K and V"
        raise Unsupported(f"a model of type {config.model_type} keeps {what}")
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    named = next((number for name in names if (number := getattr(config, name, None))), heads)
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        named = 1
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, named, width
