"""`HashLM`: a causal LM with the ordinary ``transformers`` interface whose attention can be read back.

Its attention is a hash of exactly what each query sees (`eqcheck.hashing`), and its logits are pseudo-random
functions of that hash. A wrong position id, mask bit or cache entry changes the next token with probability
1 - 1/vocab_size, and arithmetic is exact: there are no near-ties.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from eqcheck import hashing
from eqcheck.caches import install_state
from eqcheck.families import FED, Feed, View
from eqcheck.hashing import Bools, Ints, Words
from eqcheck.trace import Call, Fix, Trace

TAKES_CACHE_POSITION = "cache_position" in inspect.signature(LlamaForCausalLM.forward).parameters


class HashConfig(PretrainedConfig):
    """Configuration of a `HashLM`.

    ``family`` says how positions and masks are seen (`eqcheck.families`): ``"rotary"`` (like Llama: only distances
    matter), ``"learned"`` (like GPT-2: absolute positions), ... ``seed`` selects the logits; ``role`` is 1 for a
    target, 2 for a draft.
    """

    model_type = "hashlm"

    def __init__(
        self, vocab_size: int = 128, seed: int = 0, family: str = "rotary", role: int = 1, **kwargs: Any
    ) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.family = family
        self.role = role
        self.num_hidden_layers = hashing.LAYERS
        self.num_attention_heads = hashing.HEADS
        self.num_key_value_heads = hashing.HEADS
        self.head_dim = hashing.WIDTH
        self.hidden_size = hashing.HEADS * hashing.WIDTH
        self.max_position_embeddings = 4096
        self.use_cache = True
        if family == "window":
            self.sliding_window = hashing.WINDOW
            self.layer_types = ["sliding_attention"] * hashing.LAYERS
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


class HashLM(PreTrainedModel, GenerationMixin):
    """A transparent target: any error in what a query sees changes its prediction.

    Cache tensors are ``[batch, 2 heads, slots, 8]`` float64 per layer (two layers); what the eight numbers mean
    is in `eqcheck.hashing`. `generate()` works as on any causal LM:

        >>> import torch
        >>> target = HashLM(HashConfig(seed=1))
        >>> alone = target.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
        >>> padded = target.generate(
        ...     torch.tensor([[0, 0, 3, 1, 4]]), attention_mask=torch.tensor([[0, 0, 1, 1, 1]]),
        ...     max_new_tokens=4, do_sample=False, pad_token_id=0)
        >>> alone[0, 3:].tolist() == padded[0, 5:].tolist()
        True

    Raises ``ValueError`` for tokens outside the vocabulary and for masks or positions of the wrong shape,
    ``TypeError`` for a cache without ``update`` and ``get_seq_length``.
    """

    config_class = HashConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_cache_class = True
    _supports_static_cache = True
    _supports_sdpa = True
    _no_split_modules: list[str] = []  # noqa: RUF012 (the type transformers declares)

    def __init__(self, config: HashConfig) -> None:
        super().__init__(config)
        table = hashing.logits_table(config.vocab_size, config.seed)
        self.logits_table = torch.nn.Parameter(torch.from_numpy(table).double(), requires_grad=False)
        self.trace: Trace | None = None
        self.poison: float | None = None  # what is written for pads instead of themselves
        self.repair: Callable[[Call], Fix] | None = None  # set while a second opinion is sought
        self._is_stateful = config.family == "recurrent"
        self._calls = count(1)
        self.post_init()
        self.eval()

    def fresh(self) -> HashLM:
        """A copy that shares only the numbers of the table: hooks, attributes and configuration are its own."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set):
                new.__dict__[name] = copy.copy(value)
        new.config = copy.copy(self.config)
        new.logits_table = torch.nn.Parameter(self.logits_table.data, requires_grad=False)
        return new

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Weights follow from the configuration; there is nothing to initialise."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        cache_position: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[batch, block, vocab]`` float64 of ``input_ids`` ``[batch, block]`` int64.

        ``attention_mask`` is ``[batch, slots]`` (nonzero: visible; short masks hide the rest) or
        ``[batch, heads, block, slots]`` (bool: True is visible; float: added to the scores). ``position_ids``
        is ``[batch or 1, block]``; without it, positions count slots from the cache's length, as in Llama and
        GPT-2. ``cache_position`` counts where the installed transformers' own models take it.
        """
        if input_ids is None or kwargs.get("inputs_embeds") is not None:
            raise ValueError("HashLM takes input_ids, not inputs_embeds: it hashes tokens, it has no embedding")
        tokens = self._tokens(input_ids)
        batch, block = tokens.shape
        cache = past_key_values
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        if cache is not None and not (hasattr(cache, "update") and hasattr(cache, "get_seq_length")):
            raise TypeError(
                f"past_key_values: expected a cache of transformers (DynamicCache, StaticCache, ...), got "
                f"{type(cache).__name__}; build one and fill it with update(keys, values, layer_idx)"
            )
        if cache is not None and self.config.family == "recurrent":
            install_state(cache)
        past = int(cache.get_seq_length()) if cache is not None else 0
        slots_fed = np.arange(past, past + block)
        if TAKES_CACHE_POSITION and cache_position is not None:
            slots_fed = _integers(cache_position)
        positions = _positions(position_ids, slots_fed, batch)
        packed = cache is None and attention_mask is None and position_ids is not None
        feed = Feed(self.config.family, attention_mask, positions, slots_fed, packed)

        number = next(self._calls if self.trace is None else self.trace.clock)
        fix = None
        if self.repair is not None:
            fix = self.repair(self._attend(feed, tokens, copy.deepcopy(cache), number))
        call = self._attend(feed, tokens, cache, number, fix)
        if self.trace is not None:
            self.trace.record(call)
        keep = logits_to_keep
        columns = slice(-keep, None) if isinstance(keep, int) else keep.cpu().numpy()
        logits = self._logits(call.digests[:, columns], None if call.disagrees is None else call.disagrees[:, columns])
        return CausalLMOutputWithPast(
            logits=cast(torch.FloatTensor, logits.to(input_ids.device)), past_key_values=cache
        )

    def _attend(self, feed: Feed, tokens: Ints, cache: Any, number: int, fix: Fix | None = None) -> Call:
        """Write a block of tokens into the cache and look at it, layer by layer; ``fix`` says what to see instead."""
        family, role = self.config.family, self.config.role
        batch, block = tokens.shape
        positions = feed.positions if fix is None else fix.positions
        pads = feed.pads() if fix is None or fix.pads is None else fix.pads
        kv: list[Ints] = []
        carry: Words = np.zeros((batch, block), np.uint64)
        digest: Words | None = None
        first: View | None = None
        view: View | None = None
        for layer in range(hashing.LAYERS):
            fresh = self._written(pads, hashing.entries(role, tokens, positions, digest, number))
            keys = torch.from_numpy(fresh).to(self.logits_table.device)
            values = keys.clone()
            if cache is not None:
                where = torch.from_numpy(feed.slots_fed).to(keys.device)
                extra = ({"cache_position": where},) if TAKES_CACHE_POSITION else ()
                try:
                    keys, values = cache.update(keys, values, layer, *extra)
                except RuntimeError as error:
                    raise ValueError(
                        f"past_key_values: expected a cache of {batch} rows like input_ids; "
                        f"appending {list(keys.shape)} failed: {error}"
                    ) from error
            fields = _fields(keys, values)
            if fields.shape[1] != batch:
                raise ValueError(
                    f"past_key_values: expected a cache of {batch} rows like input_ids, got {fields.shape[1]}"
                )
            at = fields[0, :, 0, :, hashing.POSITION]
            if view is None or view.visible.shape[2] != fields.shape[3]:
                view = feed.view(at, fields[0, :, 0, :, hashing.MODEL] != 0)
                first = first or view
            elif family in FED:
                view = view._replace(key_places=at)
            seen = hashing.contents(fields, role)
            carry = hashing.attend(family, layer, seen, view.key_places, view.visible, tokens, view.places, carry)
            if fix is not None:
                carry = np.where(fix.known, fix.digests[layer], carry)
            digest = carry
            kv.append(fields)
        assert first is not None
        ranked = hashing.choices(self.config.vocab_size, self.config.seed)
        return Call(number, role, tokens, feed.positions, *first, tuple(kv), carry, ranked, self.disagrees(carry))

    def _written(self, pads: Bools, entries: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The entries as they go into the cache: a recurrent state takes no pads in; a case may have them poisoned."""
        if self.config.family == "recurrent":
            entries *= ~pads[:, None, :, None]
        elif self.poison is not None:
            rows, columns = pads.nonzero()
            for field in (hashing.TOKEN, hashing.POSITION, hashing.HIGH, hashing.LOW):
                entries[rows, :, columns, field] = self.poison
        return entries

    def _tokens(self, input_ids: torch.Tensor) -> Ints:
        tokens = _integers(input_ids)
        if tokens.ndim != 2:
            raise ValueError(f"input_ids: expected [batch, block], got shape {list(tokens.shape)}")
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.config.vocab_size):
            raise ValueError(
                f"input_ids: expected tokens in 0..{self.config.vocab_size - 1}, got {tokens.min()}..{tokens.max()}"
            )
        return tokens

    def disagrees(self, digests: Words) -> Bools | None:
        """Where this model proposes its second choice; a target never does (None), a scripted draft may."""
        return None

    def _logits(self, digests: Words, disagrees: Bools | None) -> torch.Tensor:
        """Logits of each final digest; where the model disagrees, its first two choices are exchanged."""
        device, vocab_size = self.logits_table.device, self.config.vocab_size
        logits = self.logits_table[torch.from_numpy(hashing.table_row(digests)).to(device)]
        if disagrees is None or not disagrees.any():
            return logits
        swap = torch.from_numpy(disagrees).to(device)[..., None] & (logits >= vocab_size - 2)
        return torch.where(swap, 2 * vocab_size - 3 - logits, logits)


def _integers(tensor: torch.Tensor) -> Ints:
    return cast(Ints, tensor.detach().cpu().numpy().astype(np.int64))


def _fields(keys: torch.Tensor, values: torch.Tensor) -> Ints:
    """K and V as integers, ``[2, batch, heads, slots, width]``; a copy, so later writes do not reach it."""
    with np.errstate(invalid="ignore"):
        return np.stack([_integers(keys), _integers(values)])


def _positions(position_ids: torch.Tensor | None, slots_fed: Ints, batch: int) -> Ints:
    block = len(slots_fed)
    if position_ids is None:
        return np.broadcast_to(slots_fed, (batch, block)).copy()
    positions = _integers(position_ids)
    if positions.ndim == 1:
        positions = positions[None]
    if positions.ndim != 2 or positions.shape[-1] != block or positions.shape[0] not in (1, batch):
        raise ValueError(f"position_ids: expected [{batch}, {block}], got shape {list(positions.shape)}")
    return np.broadcast_to(positions, (batch, block)).copy()
