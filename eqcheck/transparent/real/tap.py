"""The tap: it hears what goes into caches, and what attention is handed, in the models that are watched.

It sits where the library itself asks for its attention: under the names of `AttentionInterface`, in the module of the
model for ``eager``, on the class of the cache for ``update``, and, for code that calls
``scaled_dot_product_attention`` by itself, as a mode of torch. Everything is put back at the end, however it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, Cache, DynamicCache

from eqcheck.contract.cache_names import arguments, cache_argument, cache_of
from eqcheck.contract.errors import Unsupported
from eqcheck.transparent.hashlm.hashing import Ints


class TapFailed(BaseException):
    """A fault of the tap itself, and none of the decoder, which therefore must not swallow it."""


class NotRead(BaseException):
    """The reason why a forward cannot be read; not an ``Exception``, so that decoders do not swallow it."""


@dataclass(eq=False)
class Watched:
    """A model that is watched: ``base`` is the part below its head, ``layers`` are the two layers that are read.

    ``modules`` are its attention modules by identity, with the number of their layer.
    """

    model: Any
    role: int
    base: Any
    embeddings: Any
    head: Any
    layers: tuple[int, int]
    count: int
    key_heads: int
    modules: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, role: int) -> Watched:
        """Read off a model of transformers where its parts are; `Unsupported` with the reason where one is missing."""
        base, embeddings, head = model.base_model, model.get_input_embeddings(), model.get_output_embeddings()
        if base is model or embeddings is None or head is None:
            raise Unsupported(
                f"{type(model).__name__} has no base model with embeddings and a head of its own, so it cannot be read"
            )
        modules = {id(m): int(m.layer_idx) for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int)}
        config = model.config.get_text_config()
        count = int(config.num_hidden_layers)
        heads = int(getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None) or 1)
        return cls(model, role, base, embeddings, head, _layers(config, count), count, heads, modules)


def _layers(config: Any, count: int) -> tuple[int, int]:
    """The first and the last layer of one kind: layers with a window hold other slots than those without."""
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * count)
    kind = "full_attention" if "full_attention" in kinds else kinds[0]
    alike = [number for number, one in enumerate(kinds) if one == kind]
    return alike[0], alike[-1]


class Listener(Protocol):
    """A listener to the tap: it hears of all that the models do."""

    def fed(self, watched: Watched, tokens: Any, embeds: Any, options: dict[str, Any]) -> None:
        """A block of tokens, or of embeddings, goes in."""

    def wrote(self, layer: int, new: tuple[torch.Tensor, ...], all_of_them: tuple[torch.Tensor, ...]) -> None:
        """A layer hands ``new`` keys and values ``[batch, heads, block, width]`` to a cache, which returns all."""

    def saw(self, watched: Watched | None, layer: int, seen: AttentionInput) -> None:
        """Attention of a layer; ``watched`` is None, and ``layer`` -1, where nobody knows whose it is."""

    def left(self, watched: Watched, states: torch.Tensor, cache: Any) -> None:
        """The hidden states behind the last layer, and the states that a recurrent model hands back."""

    def asked(self, watched: Watched, states: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The head's answer to hidden states, as it is to be."""


class AttentionInput(NamedTuple):
    """The input that attention was handed: keys and values ``[batch, heads, slots, width]``, mask, number of queries.

    ``causal``: without a mask, query i sees the first i + 1 keys.
    """

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None
    queries: int
    causal: bool


def guarded(action: Callable[..., Any], *args: Any) -> Any:
    """The result of the action; whatever it raises by mistake becomes a `TapFailed`."""
    try:
        with torch._C.DisableTorchFunction():
            return action(*args)
    except (Unsupported, NotRead):
        raise
    except Exception as error:
        raise TapFailed(f"{type(error).__name__}: {error}") from error


@contextmanager
def tapped(models: Sequence[Watched], listener: Listener) -> Iterator[None]:
    """Have a listener hear the models; at the end models and library are as they were."""
    tap = _Tap(models, listener)
    with ExitStack() as stack:
        stack.callback(tap.undo)
        tap.install()
        stack.enter_context(_Mode(tap))
        yield


class _Tap:
    def __init__(self, models: Sequence[Watched], listener: Listener) -> None:
        self.models, self.listener = models, listener
        self.modules = {module: (one, layer) for one in models for module, layer in one.modules.items()}
        self.inside = 0  # of the library's own attention, and of caches that hand on to others
        self._handles: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._caches: set[type] = set()

    def undo(self) -> None:
        for handle in self._handles:
            handle.remove()
        while self._undo:
            self._undo.pop()()

    def install(self) -> None:
        self.cache(Cache)
        self._put(AttentionInterface._global_mapping, "sdpa", causal=True)
        names = [type(watched.base).__module__ for watched in self.models]
        for home in {name: sys.modules[name] for name in names}.values():
            if "eager_attention_forward" in vars(home):
                self._put(vars(home), "eager_attention_forward", causal=False)
            local = getattr(vars(home).get("ALL_ATTENTION_FUNCTIONS"), "_local_mapping", {})
            if "sdpa" in local:
                self._put(local, "sdpa", causal=True)
        for watched in self.models:
            self._hooks(watched)

    def _hooks(self, watched: Watched) -> None:
        listener, handles = self.listener, self._handles

        def fed(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            passed = arguments(watched.base, args, options)
            if (cache := cache_of(passed)) is not None:
                self.cache(type(cache))
            guarded(listener.fed, watched, passed.get("input_ids"), passed.get("inputs_embeds"), passed)

        def embedded(_: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
            guarded(listener.fed, watched, args[0], None, {"loose": True})

        def left(_: Any, __: Any, ___: Any, result: Any) -> None:
            states = result[0] if isinstance(result, tuple) else result.last_hidden_state
            guarded(listener.left, watched, states, cache_of(result))

        def asked(_: Any, args: tuple[Any, ...], logits: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = guarded(listener.asked, watched, args[0], logits)
            return answer

        handles.append(watched.base.register_forward_pre_hook(fed, with_kwargs=True))
        handles.append(watched.embeddings.register_forward_hook(embedded))
        handles.append(watched.base.register_forward_hook(left, with_kwargs=True))
        handles.append(watched.head.register_forward_hook(asked))
        for module in watched.model.modules():
            if id(module) in watched.modules and not hasattr(sys.modules[type(module).__module__], _INTERFACE):
                handles.append(module.register_forward_pre_hook(self._mask_of, with_kwargs=True))

    def _mask_of(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the mask for attention that asks no interface; its keys and values come from the cache."""
        self.own = (self.modules[id(module)], options.get("attention_mask"))

    own: tuple[tuple[Watched, int], torch.Tensor | None] | None = None

    def cache(self, kind: type) -> None:
        """Hear what goes into caches of a class, which a copy of a cache has, too."""
        home = next((one for one in kind.__mro__ if "update" in vars(one)), None)
        if home is None or home in self._caches:
            return
        self._caches.add(home)
        original = vars(home)["update"]

        @wraps(original)
        def update(cache: Any, keys: Any, values: Any, layer: int = -1, *args: Any, **more: Any) -> Any:
            layer = more.pop("layer_idx", layer)
            self.inside += 1
            try:
                result = original(cache, keys, values, layer, *args, **more)
            finally:
                self.inside -= 1
            if not self.inside:
                guarded(self.listener.wrote, int(layer), (keys, values), result[:2])
            if self.own is not None and not self.inside:
                (one, number), mask = self.own
                self.own = None
                guarded(self.listener.saw, one, number, AttentionInput(result[0], result[1], mask, keys.shape[2], True))
            return result

        def undo() -> None:
            if vars(home).get("update") is update:  # else who had put the original there has taken it away since
                home.update = original  # type: ignore[attr-defined]

        home.update = update  # type: ignore[attr-defined]
        self._undo.append(undo)

    def _put(self, mapping: dict[str, Any], name: str, causal: bool) -> None:
        original = mapping[name]

        @wraps(original)
        def attention(module: Any, query: Any, key: Any, value: Any, mask: Any = None, *args: Any, **more: Any) -> Any:
            mask = more.pop("attention_mask", mask)
            known = self.modules.get(id(module))
            if known is not None:
                said = more.get("is_causal")
                by_order = causal and bool(getattr(module, "is_causal", True) if said is None else said)
                seen = AttentionInput(key, value, mask, query.shape[2], by_order and query.shape[2] > 1)
                guarded(self.listener.saw, *known, seen)
            self.inside += 1
            try:
                return original(module, query, key, value, mask, *args, **more)
            finally:
                self.inside -= 1

        mapping[name] = attention
        self._undo.append(lambda: mapping.__setitem__(name, original))


_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


class _Mode(TorchFunctionMode):
    """Hears of ``scaled_dot_product_attention`` that no interface asked for."""

    def __init__(self, tap: _Tap) -> None:
        super().__init__()
        self.tap = tap

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and not self.tap.inside:
            query, key, value, mask = (*args, *([None] * 4))[:4]
            key, value, mask = kwargs.get("key", key), kwargs.get("value", value), kwargs.get("attn_mask", mask)
            query = kwargs.get("query", query)
            seen = AttentionInput(key, value, mask, query.shape[-2], bool(kwargs.get("is_causal", False)))
            if query.dim() == 4:
                guarded(self.tap.listener.saw, None, -1, seen)
        return func(*args, **kwargs)


# The positions at which a model takes its tokens to be, read off the keys that it wrote, whatever it was told.
#
# Key and value of the first layer are a function of token and position. So the written entry is held against the
# entry of its token at the position that was said; where they differ, the position of the nearest entry in reach
# counts. A model that takes no position ids counts by itself, and cannot be asked for entries at other positions than
# its count.

_BELOW, _BEYOND = 8, 72  # positions in reach: below zero, and beyond the largest that was said
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.08}


class Stop(BaseException):
    """Ends a forward once the first layer's keys are known."""


def entries(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Keys and values of the first head, ``[batch, block, width]`` float64, from ``[batch, heads, block, width]`` each.

    Both, since caches of latents have the rotated part where others have values.
    """
    return torch.cat([keys[:, 0], values[:, 0]], dim=-1).double()


class Positions:
    """The keys of a model's first layer by token and position; filled as they are asked for."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._keys: dict[tuple[int, int], torch.Tensor] = {}
        parameter = next(watched.model.parameters())
        self._tolerance = _TOLERANCE.get(parameter.dtype, 0.03)
        self._counts = "position_ids" not in signature(watched.base.forward).parameters
        self.probing: list[torch.Tensor] | None = None  # takes what is written while keys are asked for

    def read(self, tokens: Ints, said: Ints, flat: torch.Tensor) -> Ints:
        """The positions ``[batch, block]`` of new `entries`; ``said`` where none fits."""
        if self._counts:
            return said
        self._ask({(int(t), int(p)) for t, p in zip(tokens.ravel(), said.ravel(), strict=True)})
        positions = said.copy()
        for row, column in np.ndindex(tokens.shape):
            token, position = int(tokens[row, column]), int(said[row, column])
            expected = self._keys.get((token, position))
            if expected is not None and len(expected) != flat.shape[-1]:
                return said  # latents in the cache, and none here: nothing to hold them against
            if expected is None or self._distance(expected, flat[row, column]) > self._tolerance:
                positions[row, column] = self._nearest(token, position, flat[row, column])
        return positions

    def _distance(self, expected: torch.Tensor, key: torch.Tensor) -> float:
        distance = (expected - key).norm() / expected.norm().clamp_min(1e-12)
        return float(distance.detach())  # torch warns where a tensor with a gradient becomes a number

    def _nearest(self, token: int, position: int, key: torch.Tensor) -> int:
        reach = range(-_BELOW, max(position, 0) + _BEYOND)
        self._ask({(token, at) for at in reach})
        known = {at: self._keys[token, at] for at in reach if (token, at) in self._keys}
        if not known:
            return position
        distances = (torch.stack(list(known.values())) - key).norm(dim=-1) / key.norm().clamp_min(1e-12)
        best = int(distances.argmin())
        return list(known)[best] if float(distances[best]) <= self._tolerance else position

    def _ask(self, pairs: set[tuple[int, int]]) -> None:
        missing = sorted(pair for pair in pairs if pair not in self._keys)
        learned = getattr(self.watched.model.config, "n_positions", None)
        if learned:  # a table of positions has no other
            missing = [(token, at) for token, at in missing if 0 <= at < learned]
        if not missing:
            return
        tokens, positions = (torch.tensor([[pair[i] for pair in missing]]) for i in (0, 1))
        self.probing = []
        try:
            self._forward(tokens, positions)
        except Stop:
            pass
        except Exception:  # layers before the first attention need more than tokens: then what was said counts
            return
        finally:
            probed, self.probing = self.probing, None
        if not probed:
            return
        for pair, key in zip(missing, probed[0][0], strict=True):
            self._keys[pair] = key

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        base = self.watched.base
        mask = torch.eye(tokens.shape[1], dtype=torch.bool)[None, None]
        options = {"position_ids": positions, "attention_mask": mask, **cache_argument(base, DynamicCache())}
        return base(input_ids=tokens, use_cache=True, **options)
