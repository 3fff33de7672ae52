"""`HashLM`: a causal LM with the ordinary ``transformers`` interface whose attention can be read back.

Its attention is a hash of exactly what each query sees (`eqcheck.transparent.hashlm.hashing`), and its logits are
pseudo-random functions of that hash. A wrong position id, mask bit or cache entry changes the next token with
probability 1 - 1/vocab_size, and arithmetic is exact: there are no near-ties.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from eqcheck.contract.cache_names import cache_of, cache_output, installed_name, named_as_installed
from eqcheck.contract.errors import Unsupported, of_a_library
from eqcheck.contract.family import FAMILY
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import Bools, Ints, Spread, Words, ranked
from eqcheck.transparent.hashlm.parts import (
    POSITIONS,
    HashConfig,
    HashHead,
    Offers,
    Script,
    install_state,
    integers,
    masks_of,
    numbers,
    positions_of,
    sizes_of,
    stacked,
)
from eqcheck.transparent.hashlm.trace import Call, Fix, Trace
from eqcheck.transparent.hashlm.visibility import TAKES_CACHE_POSITION, Feed, View


class HashModel(Offers):
    """The part of a `HashLM` below its head: embeds, writes caches, attends.

    Embeddings ``[vocab_size, hidden_size]`` and hidden states ``[batch, block, hidden_size]`` are digits, like the
    cache entries (`eqcheck.transparent.hashlm.hashing`). Behind each layer the hidden state holds that layer's digest.
    """

    base_model_prefix = ""

    def __init__(self, config: HashConfig) -> None:
        super().__init__(config)
        spelled = torch.zeros(config.vocab_size, config.hidden_size, dtype=torch.float64)
        ids = torch.arange(config.vocab_size)
        spelled[:, 0] = 1
        spelled[:, 1], spelled[:, 2], spelled[:, 3] = ids % 256, ids // 256 % 256, ids // 65536
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size, _weight=spelled, _freeze=True)
        self.trace: Trace | None = None
        self.poison: float | None = None  # what is written for pads instead of themselves
        self.repair: Callable[[Call], Fix] | None = None  # set while a second opinion is sought
        self.script: Script | None = None
        self.family, self.role, self.width = FAMILY[config.family], config.role, config.hidden_size
        self.weights = config.weights % hashing.WEIGHTS
        emitted, seed = config.vocab_size - config.extra_pad, config.seed
        self.families = (self.family.lower, self.family) if self.family.near else (self.family,)
        self.choices = (
            hashing.choices(emitted, seed) if config.spread is None else ranked(emitted, seed, Spread(*config.spread))
        )
        self._calls = count(1)
        self.post_init()

    @named_as_installed
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache_position: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states ``[batch, block, hidden_size]`` of ``input_ids`` ``[batch, block]`` int64 or of embeddings.

        The arguments are those of `HashLM.forward`; with ``output_hidden_states`` there are ``hidden_states`` of the
        embeddings and of each layer.
        """
        if output_attentions:
            raise Unsupported("output_attentions: a hash has no attention weights; a limit of eqcheck's target")
        fed = input_ids if inputs_embeds is None else inputs_embeds
        if fed is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("input_ids, inputs_embeds: expected exactly one of the two")
        tokens = self._tokens(fed) if inputs_embeds is None else self._embedded(fed)
        batch, block = tokens.shape
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        if cache is not None and not (hasattr(cache, "update") and hasattr(cache, "get_seq_length")):
            raise TypeError(
                f"{installed_name()}: expected a cache of transformers (DynamicCache, StaticCache, ...), got "
                f"{type(cache).__name__}; build one and fill it with update(keys, values, layer_idx), or let "
                "eqcheck.compat.legacy_cache take tuples"
            )
        if cache is not None and self.family.stateful:
            install_state(cache, self.family.near)
        past = int(cache.get_seq_length()) if cache is not None else 0
        slots_fed = np.arange(past, past + block)
        if TAKES_CACHE_POSITION and cache_position is not None:
            slots_fed = integers(cache_position)
        positions = positions_of(position_ids, slots_fed, batch)
        if self.family.absolute and positions.size and not 0 <= positions.min() <= positions.max() < POSITIONS:
            raise IndexError(  # as the embedding of a real model does, for pads too
                f"position_ids: expected 0..{POSITIONS - 1}, the size of the table of positions, got "
                f"{positions.min()}..{positions.max()}; index out of range"
            )
        packed = cache is None and attention_mask is None and position_ids is not None
        masks = masks_of(attention_mask, self.family)
        feeds = []
        for layer in range(len(self.families)):  # one, where all layers are alike
            mask = masks[layer]
            four = mask is not None and mask.dim() == 4  # which real models take as it is
            sizes = None if cache is None or four or self.family.stateful else sizes_of(cache, slots_fed, layer)
            feeds.append(Feed(self.families[layer], mask, positions, slots_fed, packed, sizes))

        # A repair needs to know what the call would have seen, so it is made once on a copy of the cache: the decoder's
        # own cache must be written to one time only. Targets and drafts count their calls on one clock, which is what
        # puts the calls of both in order.
        number = next(self._calls if self.trace is None else self.trace.clock)
        fix = None
        if self.repair is not None:
            fix = self.repair(self._attend(feeds, tokens, copy.deepcopy(cache), number)[0])
        call, digests = self._attend(feeds, tokens, cache, number, fix)
        if self.trace is not None:
            self.trace.record(call)
        device, dtype = fed.device, self.embed_tokens.weight.dtype
        first = len(digests) if output_hidden_states else 1
        states = [
            torch.from_numpy(hashing.hidden(self.role, layer, digests[layer - 1], number, self.width)).to(device, dtype)
            for layer in range(len(digests) + 1 - first, len(digests) + 1)
        ]
        every = None
        if output_hidden_states:
            every = (self.embed_tokens(torch.from_numpy(tokens).to(device)), *states)
        return BaseModelOutputWithPast(last_hidden_state=states[-1], hidden_states=every, **cache_output(cache))

    def second_choices(self, digests: Words) -> list[int]:
        """The second most likely token after contexts of these final digests."""
        return cast("list[int]", self.choices[1][hashing.table_row(digests)].tolist())

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed_tokens

    def _attend(
        self, feeds: Sequence[Feed], tokens: Ints, cache: Any, number: int, fix: Fix | None = None
    ) -> tuple[Call, list[Words]]:
        """Write a block of tokens into the cache and look at it, layer by layer; ``fix`` has the right contexts.

        Returns the call and the digests of each layer, ``[batch, block]``.
        """
        family, role, feed = self.family, self.role, feeds[-1]
        batch, block = tokens.shape
        positions = feed.positions if fix is None else fix.positions
        pads = None if fix is None else fix.pads
        device, dtype = self.embed_tokens.weight.device, self.embed_tokens.weight.dtype
        held: list[Ints] = []
        spoilt: list[Words | None] = []
        digests: list[Words] = []
        carry: Words = np.zeros((batch, block), np.uint64)
        views: list[View] = []
        bias: Words | None = None
        for layer in range(hashing.LAYERS):
            below = digests[-1] if layer else None
            fresh = hashing.entries(role, layer, tokens, positions, below, number, self.weights)
            keys, values = torch.from_numpy(self._written(fresh, feed, pads)).to(device, dtype)
            self._watched(keys, values)
            if cache is not None:
                where = torch.from_numpy(feed.slots_fed).to(device)
                extra = ({"cache_position": where},) if TAKES_CACHE_POSITION else ()
                try:
                    keys, values = cache.update(keys, values, layer, *extra)
                except RuntimeError as error:
                    if not of_a_library(error):
                        raise
                    raise ValueError(
                        f"{installed_name()}: expected a cache of {batch} rows like input_ids; "
                        f"appending {list(keys.shape)} failed: {error}"
                    ) from error
                self._watched(keys, values)
            digits, odd = hashing.whole(stacked(keys, values, batch))
            seen, at = hashing.contents(digits, role, layer, self.weights)
            # One view serves all layers that see the same. It is made from the first layer's slots; another number of
            # slots in a later layer means that the decoder cropped one cache and not the other.
            if not views or family.near or views[-1].visible.shape[2] != digits.shape[3]:
                feed = feeds[layer] if family.near else feed
                view = feed.view(at, hashing.written(digits))
                bias = feed.bias(view.visible)
                views.append(view)
            elif family.fed:
                view = view._replace(key_places=at)
            if odd is not None:
                seen = seen + odd
            carry = hashing.attend(family, layer, seen, view.key_places, view.visible, tokens, view.places, carry, bias)
            # The right digest takes the place of what was seen after the layer, so that the layer above writes, and
            # later queries see, what a repaired query would have left.
            if fix is not None:
                carry = np.where(fix.known, fix.digests[layer], carry)
            digests.append(carry)
            held.append(digits)
            spoilt.append(odd)
        disagrees = None if self.script is None else self.script.disagrees(carry)
        fed, after = (number, role, tokens, feed.positions), (carry, self.choices, disagrees)
        if not family.near:
            return Call(*fed, *views[0], tuple(held), tuple(spoilt), *after, weights=self.weights), digests
        lower, upper = (
            Call(*fed, *v, (h,), (s,), *after, weights=self.weights)
            for v, h, s in zip(views, held, spoilt, strict=True)
        )
        return replace(upper, lower=lower), digests

    def _watched(self, *tensors: torch.Tensor) -> None:
        if self.trace is not None and self.trace.watcher is not None:
            for tensor in tensors:
                self.trace.watcher.mark(tensor)

    def _written(self, entries: npt.NDArray[np.float64], feed: Feed, pads: Bools | None) -> npt.NDArray[np.float64]:
        """The entries as they go into the cache: a recurrent state takes no pads in; a case may have them poisoned."""
        if not self.family.stateful and self.poison is None:
            return entries
        pads = feed.pads() if pads is None else pads
        if self.family.stateful:
            entries *= ~pads[None, :, None, :, None]
            return entries
        rows, columns = pads.nonzero()
        entries[:, rows, :, columns, hashing.CONTENT] = self.poison
        return entries

    def _tokens(self, input_ids: torch.Tensor) -> Ints:
        tokens = integers(input_ids)
        if tokens.ndim != 2:
            raise ValueError(f"input_ids: expected [batch, block], got shape {list(tokens.shape)}")
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.config.vocab_size):
            raise ValueError(
                f"input_ids: expected tokens in 0..{self.config.vocab_size - 1}, got {tokens.min()}..{tokens.max()}"
            )
        return tokens

    def _embedded(self, inputs_embeds: torch.Tensor) -> Ints:
        """The tokens of embeddings; `Unsupported` for vectors that are no rows of the embedding."""
        given = numbers(inputs_embeds)
        if given.ndim != 3 or given.shape[-1] != self.config.hidden_size:
            raise ValueError(f"inputs_embeds: expected [batch, block, {self.config.hidden_size}], got {given.shape}")
        tokens: Ints = (given[..., 1:4] * [1, 256, 65536]).sum(axis=-1).astype(np.int64)
        known = (tokens >= 0) & (tokens < self.config.vocab_size)
        rows = self.embed_tokens.weight.detach()[torch.from_numpy(np.where(known, tokens, 0))]
        if not (known.all() and np.array_equal(numbers(rows), given)):
            raise Unsupported(
                "inputs_embeds: expected rows of get_input_embeddings(), got other vectors; the transparent target "
                "hashes tokens, so it cannot take mixed or scaled embeddings. This is a limit of eqcheck's target"
            )
        return tokens


class HashLM(Offers, GenerationMixin):
    """A transparent target: any error in what a query sees changes its prediction.

    Cache tensors are ``[batch, 2 heads, slots, 20]`` per layer (two layers), of any float dtype from bfloat16 on;
    `eqcheck.transparent.hashlm.hashing` says what the numbers mean. It has ``model``, ``lm_head``, embeddings and
    hidden states as ordinary models have. `generate()` works as on any causal LM:

        >>> import torch
        >>> target = HashLM(HashConfig(seed=1))
        >>> alone = target.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
        >>> padded = target.generate(
        ...     torch.tensor([[0, 0, 3, 1, 4]]), attention_mask=torch.tensor([[0, 0, 1, 1, 1]]),
        ...     max_new_tokens=4, do_sample=False, pad_token_id=0)
        >>> alone[0, 3:].tolist() == padded[0, 5:].tolist()
        True

    Raises ``ValueError`` for tokens outside the vocabulary and for masks or positions of the wrong shape,
    ``IndexError`` for positions outside the table of the family ``learned``, ``TypeError`` for a cache without
    ``update`` and ``get_seq_length``, and `eqcheck.contract.errors.Unsupported` for what a hash cannot offer: attention
    weights, layers inside of ``model``, masks that differ between heads, embeddings that are of no token.
    """

    base_model_prefix = "model"

    def __init__(self, config: HashConfig) -> None:
        super().__init__(config)
        self.model = HashModel(config)
        self.lm_head = HashHead(config)
        self._is_stateful = FAMILY[config.family].stateful
        self.post_init()
        self.eval()

    def fresh(self) -> HashLM:
        """A copy that shares only the numbers of its weights: hooks, attributes and configuration are its own."""
        new = copied(self)
        new.config = new.model.config = copy.copy(self.config)
        return new

    @property
    def trace(self) -> Trace | None:
        """Return where the calls are recorded; None: nowhere."""
        return self.model.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.model.trace = trace

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.lm_head

    @named_as_installed
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[batch, block, vocab]`` of ``input_ids`` ``[batch, block]`` int64, or of ``inputs_embeds``.

        ``attention_mask`` is ``[batch, slots]`` (nonzero: visible; short masks hide the rest) or
        ``[batch, heads, block, slots]`` (bool: True is visible; float: added to the scores), or where layers differ a
        dict of one of the latter for each type of layer, by the names in ``config.layer_types``. ``position_ids``
        is ``[batch or 1, block]``; without it, positions count slots from the cache's length, as in Llama and
        GPT-2. ``cache_position`` counts where the installed transformers' own models take it. Also taken are
        ``use_cache`` and ``output_hidden_states``.
        """
        below = self.model(input_ids, attention_mask, position_ids, cache, **kwargs)
        columns = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(below.last_hidden_state[:, columns])
        return CausalLMOutputWithPast(
            logits=cast(torch.FloatTensor, logits),
            hidden_states=below.hidden_states,
            **cache_output(cache_of(below)),
        )


_Module = TypeVar("_Module", bound=torch.nn.Module)


def copied(module: _Module) -> _Module:
    """A copy of a module and the modules in it, which share the numbers of their parameters and nothing else."""
    new: _Module = object.__new__(type(module))
    for name, value in vars(module).items():
        new.__dict__[name] = value.copy() if isinstance(value, dict | set) else value
    for name, parameter in module._parameters.items():
        if parameter is not None:
            new._parameters[name] = torch.nn.Parameter(parameter.data, requires_grad=False)
    for name, inner in module._modules.items():
        if inner is not None:
            new._modules[name] = copied(inner)
    return new


__all__ = ["POSITIONS", "HashConfig", "HashLM", "Script"]
