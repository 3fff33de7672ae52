"""Cache layers of ``transformers``' interface that its own classes do not offer: preallocated, and recurrent.

`PreallocatedLayer` keeps rejected entries behind its valid part, as an engine with fixed buffers does.
`RecurrentLayer` is the state of a recurrent model: what it has absorbed, in order. It can be copied and reordered by
row; it has no slots, so it cannot be cropped (as in ``transformers``, ``crop`` shortens only the reported length).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from eqcheck.contract.cache_names import installed_name
from eqcheck.contract.errors import Unsupported
from eqcheck.contract.family import FAMILY, Family
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import DEAD, LAYERS, Bools, Ints, Spread, Words, score_table
from eqcheck.transparent.hashlm.trace import Uses
from eqcheck.transparent.hashlm.visibility import TAKES_CACHE_POSITION, Sizes

GARBAGE = 2.0**30


class _Counted(DynamicLayer):
    """A layer that counts its valid entries, apart from the entries that it holds."""

    length = 0

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def crop(self, amount: int) -> None:
        """Drop the newest ``-amount`` entries, or all behind ``amount``; the content of the layer stays."""
        self.length = max(0, self.length + amount) if amount < 0 else min(self.length, amount or self.length)


class PreallocatedLayer(_Counted):
    """Buffers for K and V ``[batch, heads, capacity, width]``; their first ``length`` slots are valid."""

    is_compileable = True  # as a static cache: a mask is built for it also where one token is fed

    def __init__(self, capacity: int, uses: Uses | None = None) -> None:
        super().__init__()
        self.capacity = capacity
        self.uses = uses or Uses(capacity)

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.uses.written = True
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_full((batch, heads, self.capacity, width), GARBAGE)
        self.values = self.keys.clone()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys, self.values

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.capacity, 0


class RecurrentLayer(_Counted):
    """The steps that a recurrent model has absorbed, ``[2 (K, V), batch, heads, steps, width]``.

    ``keys`` and ``values`` are None. ``crop`` shortens the reported length alone: the absorbed steps stay, as in
    ``transformers`` 5. Of a convolution it keeps the last ``kept`` steps.
    """

    is_croppable = False

    def __init__(self, kept: int | None = None) -> None:
        super().__init__()
        self.absorbed: torch.Tensor | None = None
        self.kept = kept

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.lazy_initialization(key_states)
        before = [] if self.absorbed is None else [self.absorbed]
        taken = torch.cat([*before, torch.stack([key_states, value_states])], dim=3)
        self.absorbed = taken if self.kept is None else taken[:, :, :, -self.kept :]
        self.length += key_states.shape[2]
        return taken[0], taken[1]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.absorbed is not None:
            self.absorbed = self.absorbed[:, indices]

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.absorbed is not None:
            self.absorbed = self.absorbed.repeat_interleave(repeats, dim=1)

    def reset(self) -> None:
        self.absorbed, self.length = None, 0


def install_state(cache: Any, kernel: int | None = None) -> None:
    """Make an empty cache hold recurrent layers; ``TypeError`` for one that already holds keys and values.

    With a ``kernel`` the first layer is a convolution, which sees its newest input and keeps those before it.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise TypeError(
            f"{installed_name()}: expected a DynamicCache for a recurrent model, got {type(cache).__name__}"
        )
    for number in range(LAYERS):
        kept = kernel - 1 if kernel and not number else None
        if number == len(layers):
            layers.append(RecurrentLayer(kept))
        elif not isinstance(layers[number], RecurrentLayer):
            if layers[number].is_initialized:
                raise TypeError(f"{installed_name()}: a recurrent model has a state, it cannot use keys and values")
            layers[number] = RecurrentLayer(kept)


def preallocated(capacity: int, layers: int = LAYERS) -> DynamicCache:
    """A cache of so many ``layers`` with ``capacity`` slots each, none valid; the first call makes them, of garbage."""
    cache, uses = DynamicCache(), Uses(capacity)
    cache.layers.extend(PreallocatedLayer(capacity, uses) for _ in range(layers))
    return cache


# The parts of a `HashLM` beside its attention: configuration, head, and the reading of tensors and caches.

POSITIONS = 4096  # the size of the table of positions
_SALT = np.uint64(0xD1B54A32D192ED03)


# The names that code reaches for inside of real models, and that a model without layers of its own cannot offer.
_INSIDE_REAL_MODELS = frozenset(
    """layers norm final_layer_norm ln_f h self_attn mlp drop rotary_emb embed_positions transformer gpt_neox decoder
    encoder backbone wte wpe embed_in embed_out word_embeddings project_in project_out""".split()  # noqa: SIM905
)


class _Limit(Unsupported, AttributeError):
    """A part of real models that a `HashLM` does not have; an ``AttributeError``, so that ``hasattr`` is False."""


class HashConfig(PretrainedConfig):
    """Configuration of a `HashLM`.

    ``family`` says how positions and masks are seen (`eqcheck.contract.family`): ``"rotary"`` (like Llama: only
    distances matter), ``"learned"`` (like GPT-2: absolute positions), ... ``seed`` selects the logits; ``role`` is 1
    for a target, 2 for a draft. ``spread`` is the scale, support and mix of an
    `eqcheck.transparent.hashlm.hashing.Spread`, where rows are sampled; without it the scores are ranks. ``extra_pad``:
    the last id of the vocabulary is a pad that the model never emits, as where a pad token was added to a real model's
    vocabulary.

        >>> HashConfig(seed=1).num_hidden_layers, HashConfig(seed=1).vocab_size
        (2, 128)
    """

    model_type = "hashlm"

    def __init__(
        self,
        vocab_size: int = 128,
        seed: int = 0,
        family: str = "rotary",
        role: int = 1,
        extra_pad: bool = False,
        spread: tuple[float, int, float] | tuple[float, int, float, bool] | None = None,
        weights: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.family = family
        self.role = role
        self.extra_pad = extra_pad
        self.spread = spread
        self.weights = seed if weights is None else weights
        self.num_hidden_layers = hashing.LAYERS
        self.num_attention_heads = 2 * hashing.HEADS  # grouped queries: caches have fewer heads than attention has
        self.num_key_value_heads = hashing.HEADS
        self.head_dim = hashing.WIDTH
        self.hidden_size = self.num_attention_heads * self.head_dim
        self.max_position_embeddings = POSITIONS
        self.use_cache = True
        if types := FAMILY[family].layer_types:
            self.sliding_window = FAMILY[family].lower.window
            self.layer_types = list(types)
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


class Script(NamedTuple):
    """Script where a draft proposes its second choice: after the final digests ``wrong_after``, at random elsewhere.

    There the first choice is the second one, and after the digests ``lower`` it has the rank given, from 0.
    """

    wrong_after: frozenset[int] = frozenset()
    agreement: float = 1.0
    lower: Mapping[int, int] = MappingProxyType({})

    def disagrees(self, digests: Words) -> Bools:
        """Return whether the second choice is proposed after each context; a fixed function of the context."""
        wrong = np.array([digest in self.wrong_after for digest in digests.ravel().tolist()], np.bool_)
        wrong = wrong.reshape(digests.shape)
        return wrong | disagrees_by_chance(digests, self.agreement) if self.agreement < 1.0 else wrong


class HashHead(torch.nn.Module):
    """The logits of hidden states ``[..., hidden_size]``: the table's row that the digest in them selects."""

    def __init__(self, config: HashConfig) -> None:
        super().__init__()
        self.role, self.emitted = config.role, config.vocab_size - config.extra_pad
        if config.spread is None:
            table, least = torch.from_numpy(hashing.logits_table(self.emitted, config.seed)).double(), -1.0
        else:
            table, least = torch.tensor(score_table(self.emitted, config.seed, Spread(*config.spread))), DEAD
        lowest = table.new_full((len(table), int(config.extra_pad)), least)
        self.weight = torch.nn.Parameter(torch.cat([table, lowest], dim=1), requires_grad=False)
        self.script: Script | None = None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., vocab_size]``; a scripted draft exchanges its first two choices where it is to be wrong."""
        digests = hashing.final_digests(numbers(states), self.role)
        logits = self.weight[torch.from_numpy(hashing.table_row(digests)).to(self.weight.device)]
        disagrees = None if self.script is None else self.script.disagrees(digests)
        if disagrees is None or not disagrees.any():
            return logits
        if self.script and self.script.lower:
            return self._lowered(logits, digests)
        swap = torch.from_numpy(disagrees).to(logits.device)[..., None] & (logits >= self.emitted - 2)
        return torch.where(swap, 2 * self.emitted - 3 - logits, logits)

    def _lowered(self, logits: torch.Tensor, digests: Words) -> torch.Tensor:
        """The logits with the first choice behind as many others as its rank says."""
        assert self.script is not None
        wrong = self.script.disagrees(digests).ravel().tolist()
        ranks = [self.script.lower.get(d, 1) if w else 0 for d, w in zip(digests.ravel().tolist(), wrong, strict=True)]
        rank = torch.tensor(ranks, dtype=logits.dtype, device=logits.device).view(*digests.shape, 1)
        best = logits == self.emitted - 1
        return torch.where(best & (rank > 0), logits - rank - 0.5, logits)


class Offers(PreTrainedModel):
    """The base of `HashModel` and `HashLM`: settings for transformers, and an error for parts that they lack."""

    config_class = HashConfig
    main_input_name = "input_ids"
    _supports_cache_class = True
    _supports_static_cache = True
    _supports_sdpa = True
    _no_split_modules: list[str] = []  # noqa: RUF012 (the type transformers declares)

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Weights follow from the configuration; there is nothing to initialise."""

    def __getattr__(self, name: str) -> Any:
        if name in _INSIDE_REAL_MODELS:
            raise _Limit(
                f"{type(self).__name__} has no {name!r}: the transparent target hashes what it is fed and has no "
                "layers inside. This is a limit of eqcheck's target, not a fault of the decoder"
            )
        return super().__getattr__(name)


def disagrees_by_chance(digests: Words, agreement: float) -> Bools:
    """Return where a draft of this rate of agreement proposes the second choice: a fixed function of each context."""
    chance = hashing.mix(digests ^ _SALT) >> np.uint64(11)
    return chance.astype(np.float64) * 2.0**-53 >= agreement


def numbers(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """A tensor's numbers, wherever it is and whatever its dtype."""
    return cast("npt.NDArray[np.float64]", tensor.detach().to("cpu", torch.float64).numpy())


def stacked(keys: torch.Tensor, values: torch.Tensor, batch: int) -> npt.NDArray[np.float64]:
    """K and V as numbers, ``[2, batch, heads, slots, width]``; a copy, so later writes do not reach it."""
    if keys.shape[0] != batch:
        raise ValueError(f"{installed_name()}: expected a cache of {batch} rows like input_ids, got {keys.shape[0]}")
    if keys.shape != values.shape or keys.shape[1::2] != (hashing.HEADS, hashing.WIDTH):
        raise ValueError(
            f"{installed_name()}: expected keys and values of [{batch}, {hashing.HEADS}, slots, {hashing.WIDTH}], got "
            f"{list(keys.shape)} and {list(values.shape)}"
        )
    return np.stack([numbers(keys), numbers(values)])


def integers(tensor: torch.Tensor) -> Ints:
    return cast(Ints, tensor.detach().cpu().numpy().astype(np.int64))


def masks_of(given: Any, family: Family) -> list[torch.Tensor | None]:
    """The mask of each layer. A dict has one for each type of layer, where these differ, as in models of transformers.

    A type without a mask (None) sees as where no mask is given. ``ValueError`` where a type is missing or its mask is
    not 4-D.
    """
    if not isinstance(given, Mapping):
        return [given] * hashing.LAYERS
    types = family.layer_types
    masks = [given.get(kind, given) for kind in types]
    if not masks or not all(mask is None or (isinstance(mask, torch.Tensor) and mask.dim() == 4) for mask in masks):
        wanted = f"4-D masks, or None, for {' and '.join(dict.fromkeys(types))}" if types else "one mask for all layers"
        held = (f"{kind}: {list(mask.shape) if hasattr(mask, 'shape') else mask}" for kind, mask in given.items())
        raise ValueError(f"attention_mask: expected {wanted}, got a dict of {', '.join(held)}")
    return masks


def sizes_of(cache: Any, slots_fed: Ints, layer: int = 0) -> Sizes:
    """The sizes of a block's mask, as its cache tells them; ``TypeError`` for a cache that real models fail with."""
    if not hasattr(cache, "get_mask_sizes"):
        if not len(slots_fed):
            raise ValueError("input_ids is empty: its block has width 0; feed a token at least, or make no call")
        raise TypeError(
            f"{installed_name()}: expected a cache with get_mask_sizes, from which models build their mask, got "
            f"{type(cache).__name__}; derive it from transformers.Cache, or give a 4-D attention_mask"
        )
    block = torch.from_numpy(slots_fed) if TAKES_CACHE_POSITION else len(slots_fed)
    length, offset = cache.get_mask_sizes(block, layer)
    return Sizes(int(length), int(offset), bool(getattr(cache, "is_compileable", False)))


def positions_of(position_ids: torch.Tensor | None, slots_fed: Ints, batch: int) -> Ints:
    block = len(slots_fed)
    if position_ids is None:
        return np.broadcast_to(slots_fed, (batch, block)).copy()
    positions = integers(position_ids)
    if positions.ndim == 1:
        positions = positions[None]
    if positions.ndim != 2 or positions.shape[-1] != block or positions.shape[0] not in (1, batch):
        raise ValueError(f"position_ids: expected [{batch}, {block}], got shape {list(positions.shape)}")
    return np.broadcast_to(positions, (batch, block)).copy()
