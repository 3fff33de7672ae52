"""The slots that a query sees in each family (`eqcheck.contract.family`), and the positions that it takes them for.

A query sees the slots that mask and order allow, and only the last of them where the family has a window. In a
recurrent family it sees everything that its state has absorbed, of a convolution the last of it.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple, cast

import numpy as np
import torch
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from eqcheck.contract.cache_names import installed_name
from eqcheck.contract.errors import Unsupported
from eqcheck.contract.family import Family
from eqcheck.transparent.hashlm.hashing import Bools, Ints, Words

_HIDDEN_BELOW = -1e3  # an additive mask hides with -inf, the dtype's minimum, or a large negative number

# Models of transformers 4 take ``cache_position``, the slots that a block is written to.
TAKES_CACHE_POSITION = "cache_position" in inspect.signature(LlamaForCausalLM.forward).parameters


class View(NamedTuple):
    """``visible`` ``[batch, block, slots]``; ``key_places`` ``[batch, slots]`` and ``places`` ``[batch, block]``."""

    visible: Bools
    key_places: Ints
    places: Ints


class Sizes(NamedTuple):
    """The sizes of a mask, as a cache tells them: for how many keys, and the place of the first of them.

    ``static``: the cache is one for compiled graphs.
    """

    length: int
    offset: int
    static: bool


class Feed(NamedTuple):
    """One block of tokens on its way into a cache: the mask given, and per token its position id and its slot.

    ``positions`` is ``[batch, block]``, ``slots_fed`` ``[block]``; ``packed`` says that sequences are told apart by
    jumps of the position ids, which models do that get neither mask nor cache. ``sizes`` is None without a cache.
    """

    family: Family
    mask: torch.Tensor | None
    positions: Ints
    slots_fed: Ints
    packed: bool
    sizes: Sizes | None

    def pads(self) -> Bools:
        """The tokens that the mask hides even from themselves, ``[batch, block]``: its pads."""
        batch, block = self.positions.shape
        if self.family.stateful:
            return ~self.absorbed()
        if self.mask is None:
            return np.zeros((batch, block), np.bool_)
        if self.mask.dim() == 4:  # which may say anything about slots, but lets a pad see nothing
            seen = _masked(self.mask, self.slots_fed, batch, self.mask.shape[3], 0)
            return np.asarray(~seen.any(axis=-1))
        visible = _masked(self.mask, self.slots_fed, batch, int(self.slots_fed[-1]) + 1, 0)
        return ~visible[:, np.arange(block), self.slots_fed]

    def absorbed(self) -> Bools:
        """The tokens that a recurrent state takes in: a 2-D mask counts for this block alone.

        For one token models of transformers ignore it; a state that skips what is masked does so there, too.
        """
        batch, block = self.positions.shape
        if self.mask is None or self.mask.dim() != 2 or (block == 1 and not self.family.skips):
            return np.ones((batch, block), np.bool_)
        if self.mask.shape[0] != batch or self.mask.shape[1] < block:
            raise ValueError(f"attention_mask: expected [{batch}, slots], got shape {list(self.mask.shape)}")
        return cast(Bools, self.mask[:, -block:].detach().cpu().numpy() != 0)

    def view(self, slot_positions: Ints, written: Bools) -> View:
        """The view that the block's queries have of cache entries at positions ``[batch, slots]``, block included.

        ``written`` says which slots hold something; only a recurrent state asks.
        """
        batch, slots = slot_positions.shape
        if self.family.stateful:
            return self._state(written)
        # A sliding cache layer has dropped its oldest slots; a preallocated one has spare slots at its end.
        dropped = max(0, int(self.slots_fed[-1]) + 1 - slots) if self.family.window else 0
        index = np.arange(dropped, dropped + slots)
        four = self.mask is not None and self.mask.dim() == 4
        sizes = self.sizes
        ends = dropped + slots - 1 == int(self.slots_fed[-1])
        if four or sizes is None or (ends and (sizes.length, sizes.offset) == (slots, dropped)):
            visible = self._built(batch, slots, dropped)
        else:
            visible = self._built_for(sizes, batch, slots)
        if self.packed:
            visible &= _same_packed_sequence(self.positions)
        if self.family.places == "slots":  # a bias by key alone: what shifts all keys of a query changes nothing
            newest = np.where(visible, index, 0).max(axis=-1)
            return View(visible, np.broadcast_to(index, (batch, slots)), newest)
        if self.family.counts_mask:
            return View(visible, *self._ranks(batch, slots, four))
        return View(visible, slot_positions, self.positions)

    def _built(self, batch: int, slots: int, dropped: int) -> Bools:
        """The mask for so many keys, ``[batch, block, slots]``; the first key is in slot ``dropped`` of its row."""
        visible = _masked(self.mask, self.slots_fed, batch, slots, dropped)
        if self.family.window and (self.mask is None or self.mask.dim() != 4):
            visible &= np.arange(dropped, dropped + slots) > self.slots_fed[:, None] - self.family.window
        return visible

    def _built_for(self, sizes: Sizes, batch: int, slots: int) -> Bools:
        """The mask for what the cache told, over the keys that it handed out: as in real models, right or not.

        Where they can, models with sdpa build no mask: one query sees all keys then, several see as many as they are.
        ``ValueError`` where the mask does not fit, which fails in a real model.
        """
        block = len(self.slots_fed)
        visible = self._built(batch, sizes.length, sizes.offset)
        if self._goes_without(sizes, batch):
            seen = np.arange(slots) <= np.arange(block)[:, None] if block > 1 else np.ones((1, slots), np.bool_)
            return np.broadcast_to(seen, (batch, block, slots)).copy()
        if TAKES_CACHE_POSITION:
            visible = visible[..., :slots]  # transformers 4 cuts a mask that is too long
        if visible.shape[2] not in (1, slots):
            raise ValueError(
                f"{installed_name()}: get_mask_sizes tells of {sizes.length} keys, and update returns {slots}; a mask "
                "is built for as many as it tells of, so real models fail here, too. Return what update is going to "
                "return"
            )
        return np.broadcast_to(visible, (batch, block, slots)).copy()

    def _goes_without(self, sizes: Sizes, batch: int) -> bool:
        """Return whether real models would build no mask,
        and let attention be causal by the order of keys and queries.
        """
        block, length = len(self.slots_fed), sizes.length
        if self.family.biased or (self.family.window and length >= self.family.window):
            return False
        if sizes.static and (TAKES_CACHE_POSITION or block == 1):
            return False
        shown = np.ones((batch, length), np.bool_)
        if self.mask is not None:
            given = self.mask[:, sizes.offset : sizes.offset + length].detach().cpu().numpy() != 0
            shown[:] = False
            shown[:, : given.shape[1]] = given
        if block in (1, length):
            return bool(shown.all())
        if TAKES_CACHE_POSITION or self.slots_fed[0]:
            return False
        return self.mask is None or bool(shown[:, :block].all() and not shown[:, block:].any())

    def bias(self, visible: Bools) -> Words | None:
        """The bias that a 4-D mask adds to scores it shows, as bits ``[batch, block, slots]``; None where it is even.

        Softmax forgives a bias on all slots that a query sees, so that part is taken out.
        """
        if self.mask is None or self.mask.dim() != 4 or not self.mask.dtype.is_floating_point:
            return None
        slots = visible.shape[2]
        added = self.mask[:, 0, :, :].detach().to("cpu", torch.float64).numpy()
        added = added[..., -slots:] if self.family.window else added[..., :slots]
        kept = np.where(visible, added, -np.inf)
        most = kept.max(axis=-1, keepdims=True, initial=-np.inf)
        uneven = visible & (kept != most)
        if not uneven.any():
            return None
        return np.where(uneven, kept - np.where(np.isfinite(most), most, 0.0), 0.0).view(np.uint64)

    def _ranks(self, batch: int, slots: int, four: bool) -> tuple[Ints, Ints]:
        if four:
            raise ValueError(
                f"attention_mask: models of the family {self.family.name!r} count tokens in a 2-D mask, got a 4-D one"
            )
        shown = np.ones((batch, max(slots, int(self.slots_fed[-1]) + 1)), np.int64)
        if self.mask is not None:
            given = self.mask[:, : shown.shape[1]].detach().cpu().numpy() != 0
            shown[:] = 0
            shown[:, : given.shape[1]] = given
        ranks = (shown.cumsum(axis=1) - 1) * shown
        return ranks[:, :slots], ranks[:, self.slots_fed]

    def _state(self, written: Bools) -> View:
        """A pad before the first token leaves a state as it is; one behind it is a step, unless the state skips it.

        Steps are counted from the first token, or from the first step where a convolution has dropped some.
        """
        batch, steps = written.shape
        block = self.positions.shape[1]
        index = np.arange(steps)
        first = np.where(written.any(axis=1), written.argmax(axis=1), steps)
        if self.family.window and (dropped := int(self.slots_fed[-1]) + 1 - steps) > 0:
            first[:] = -dropped
        fed = index[steps - block :]
        visible = (index[None, None] <= fed[None, :, None]) & written[:, None]
        if self.family.window:
            visible &= index[None, None] > fed[None, :, None] - self.family.window
        places = written.cumsum(axis=1) - 1 if self.family.skips else index[None] - first[:, None]
        return View(np.broadcast_to(visible, (batch, block, steps)).copy(), places, places[:, steps - block :])


def _same_packed_sequence(positions: Ints) -> Bools:
    """Return whether tokens share a packed sequence, ``[batch, block, block]``: it ends where positions do not go up by
    1.

    Real models of transformers read packing into position ids that come with neither mask nor cache.
    """
    jumps = np.diff(positions, axis=1, prepend=positions[:, :1] - 1) != 1
    sequence = jumps.cumsum(axis=1)
    return cast(Bools, sequence[:, :, None] == sequence[:, None, :])


def _masked(mask: torch.Tensor | None, slots_fed: Ints, batch: int, slots: int, dropped: int) -> Bools:
    """The slots that queries may see, ``[batch, block, slots]``: causal by slot and by the mask, or a 4-D mask alone.

    The first ``dropped`` slots of the sequence are no longer in the cache.
    """
    # A 4-D mask is taken as it is, with no causal one beside it: real models do the same, and a decoder that builds its
    # own mask must not be saved by ours. A 2-D mask is only of padding. Where it is shorter than the cache, the rest
    # is hidden, as after a mask that was not extended.
    block = len(slots_fed)
    if mask is not None and mask.dim() == 4:
        ok = mask.shape[0] in (1, batch) and mask.shape[2] == block and mask.shape[3] >= slots
        if not ok:
            raise ValueError(
                f"attention_mask: expected [{batch}, heads, {block}, {slots}], got shape {list(mask.shape)}"
            )
        if not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
            raise ValueError(f"attention_mask: expected a 4-D mask of bool or float, got {mask.dtype}")
        if mask.shape[1] > 1 and bool((mask != mask[:, :1]).any()):
            raise Unsupported(
                "attention_mask: a mask that differs between heads is not read; a limit of eqcheck's target"
            )
        start = dropped if mask.shape[3] >= slots + dropped else 0
        four = mask[:, 0, :, start : start + slots].detach().cpu()
        seen = four if four.dtype == torch.bool else four > _HIDDEN_BELOW
        return np.broadcast_to(seen.numpy(), (batch, block, slots)).copy()
    causal = np.arange(dropped, dropped + slots) <= slots_fed[:, None]
    if mask is None:
        return np.broadcast_to(causal, (batch, block, slots)).copy()
    if mask.dim() != 2 or mask.shape[0] != batch:
        raise ValueError(f"attention_mask: expected [{batch}, slots], got shape {list(mask.shape)}")
    two = np.zeros((batch, slots), np.bool_)
    given = mask[:, dropped : dropped + slots].detach().cpu().numpy() != 0
    two[:, : given.shape[1]] = given
    return causal & two[:, None]
