"""Caches as transformers 4 had them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from eqcheck.contract.cache_names import NAMES, arguments, cache_argument, cache_of, installed_name, takes_cache
from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.transparent.drafting import ScriptedDraft


@contextmanager
def legacy_cache(*models: Any) -> Iterator[None]:
    """Give caches the methods of transformers 4 inside the block, and let ``models`` take and return tuples of tensors.

        >>> import torch
        >>> from eqcheck.transparent.hashlm.model import HashConfig, HashLM
        >>> target = HashLM(HashConfig(seed=1))
        >>> with legacy_cache(target):
        ...     first = target(torch.tensor([[3, 1, 4]]))
        ...     past = tuple((k[:, :, :2], v[:, :, :2]) for k, v in first.past_key_values)
        ...     again = target(torch.tensor([[4]]), past_key_values=past)
        >>> type(first.past_key_values), bool((again.logits[0, -1] == first.logits[0, -1]).all())
        (<class 'tuple'>, True)

    A tuple is ``((keys, values), ...)``, one pair per layer, each ``[batch, heads, slots, width]``; lists do as well.
    Only a call without a cache, or with a tuple, returns one: a call that is given a cache object returns that object.
    Name the models only where the code reads tuples. Code that calls methods of the cache that a model returned
    (``crop`` and the like) wants ``legacy_cache()``, without models.

    `DynamicCache` gets ``from_legacy_cache``, ``to_legacy_cache``, ``key_cache``, ``value_cache``, ``cache[layer]``,
    pairs when iterated, ``seen_tokens``, ``get_max_length``, ``get_max_cache_shape``, ``get_usable_length``,
    ``batch_split``, ``from_batch_splits``, and a ``crop`` that takes the length to keep. ``_crop_past_key_values`` can
    be imported again, and ``prepare_inputs_for_generation`` of ``models`` leaves out the tokens that the cache has.
    Code of transformers itself keeps the methods that it is written for.

    Raises `UsageError` for a model whose ``forward`` takes no ``past_key_values``, and when a recurrent one is called,
    whose state is not keys and values.
    """
    from transformers import DynamicCache
    from transformers.generation import candidate_generator, utils

    with ExitStack() as stack:
        if not hasattr(DynamicCache, _DONE):  # else an outer block has done it
            stack.enter_context(patch.multiple(DynamicCache, create=True, **_members(DynamicCache)))
            for module in (utils, candidate_generator):
                stack.enter_context(patch.object(module, "_crop_past_key_values", _cropped, create=True))
        for model in models:
            stack.enter_context(patch.object(model, "forward", _with_tuples(model)))
            if hasattr(model, "prepare_inputs_for_generation"):
                stack.enter_context(patch.object(model, "prepare_inputs_for_generation", _prepared(model)))
        yield


_DONE = "_eqcheck_legacy"
_SEEN = "_eqcheck_seen_tokens"


def _members(cache_class: Any) -> dict[str, Any]:
    """The members that `DynamicCache` had in transformers 4, by name."""
    modern_crop, modern_update = cache_class.crop, cache_class.update

    def crop(self: Any, max_length: int) -> None:
        length = self.get_seq_length()
        keep = max_length if max_length >= 0 else length + max_length
        if keep < length:
            modern_crop(self, keep - length)
            self._seen_tokens = keep

    def update(self: Any, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx == 0:
            self._seen_tokens += key_states.shape[-2]
        return modern_update(self, key_states, value_states, layer_idx, *args, **kwargs)

    def pair(self: Any, layer: int) -> tuple[Any, Any]:
        if layer >= len(self.key_cache):
            raise KeyError(f"expected one of the {len(self.key_cache)} layers of the cache, got {layer}")
        return self.key_cache[layer], self.value_cache[layer]

    def to_legacy_cache(self: Any) -> tuple[tuple[Any, Any], ...]:
        return tuple(zip(self.key_cache, self.value_cache, strict=True))

    def from_legacy_cache(cls: Any, past_key_values: Iterable[tuple[Any, Any]] | None = None) -> Any:
        cache = cls()
        for layer, (keys, values) in enumerate(past_key_values or ()):
            cache.update(keys, values, layer)
        return cache

    def batch_split(self: Any, full_batch_size: int, split_size: int, *_: Any) -> list[Any]:
        rows = [slice(start, start + split_size) for start in range(0, full_batch_size, split_size)]
        return [type(self).from_legacy_cache([(k[some], v[some]) for k, v in self.to_legacy_cache()]) for some in rows]

    def from_batch_splits(cls: Any, splits: Iterable[Any], *_: Any) -> Any:
        import torch

        layers = [zip(*pairs, strict=True) for pairs in zip(*(one.to_legacy_cache() for one in splits), strict=True)]
        return cls.from_legacy_cache([(torch.cat(keys), torch.cat(values)) for keys, values in layers])

    def seen_tokens(self: Any) -> int:
        return int(vars(self).get(_SEEN, self.get_seq_length()))

    return {
        _DONE: True,
        "crop": _elsewhere(crop, modern_crop),
        "__iter__": _elsewhere(lambda self: iter(self.to_legacy_cache()), cache_class.__iter__),
        "get_max_length": _elsewhere(lambda self, *_: None, getattr(cache_class, "get_max_length", None)),
        "get_max_cache_shape": lambda self, *_: None,
        "get_usable_length": lambda self, new_seq_length, layer_idx=0: self.get_seq_length(layer_idx),
        "update": update,
        "__getitem__": pair,
        "key_cache": _tensors("keys"),
        "value_cache": _tensors("values"),
        "_seen_tokens": property(seen_tokens, lambda self, count: vars(self).__setitem__(_SEEN, count)),
        "seen_tokens": property(seen_tokens),
        "to_legacy_cache": to_legacy_cache,
        "from_legacy_cache": classmethod(from_legacy_cache),
        "batch_split": batch_split,
        "from_batch_splits": classmethod(from_batch_splits),
    }


def _elsewhere(legacy: Callable[..., Any], modern: Callable[..., Any] | None) -> Callable[..., Any]:
    """A function of transformers 4, except where the installed transformers calls its own of that name: they clash."""

    def either(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return (modern if modern and caller.partition(".")[0] == "transformers" else legacy)(*args, **kwargs)

    return either


def _cropped(model: Any, past_key_values: Any, max_length: int) -> Any:
    """A tuple or a cache cut to a length, as transformers 4 did it in assisted generation."""
    if isinstance(past_key_values, tuple | list):
        return tuple(tuple(tensor[:, :, :max_length] for tensor in pair) for pair in past_key_values)
    past_key_values.crop(max_length)
    return past_key_values


class _Tensors(MutableSequence[Any]):
    """The keys or the values of a cache's layers as the list that they were; what is assigned goes into the layers."""

    def __init__(self, cache: Any, kind: str) -> None:
        self.cache, self.kind = cache, kind

    @property
    def layers(self) -> list[Any]:
        return [layer for layer in self.cache.layers if getattr(layer, self.kind, None) is not None]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: Any) -> Any:
        return [getattr(layer, self.kind) for layer in self.layers][index]

    def __setitem__(self, index: Any, tensor: Any) -> None:
        setattr(self.layers[index], self.kind, tensor)

    def __delitem__(self, index: Any) -> None:
        layers = self.layers[index]
        for layer in layers if isinstance(index, slice) else [layers]:
            setattr(layer, self.kind, None)
        self.cache.layers[:] = [one for one in self.cache.layers if one.keys is not None or one.values is not None]

    def insert(self, index: int, tensor: Any) -> None:
        from transformers.cache_utils import DynamicLayer

        if index != len(self):
            raise UsageError(f"{self.kind} of a cache: expected a layer at the end, got one at {index}")
        if index == len(self.cache.layers):
            self.cache.layers.append(DynamicLayer())
        layer = self.cache.layers[index]
        if not layer.is_initialized:
            layer.update(tensor, tensor)
            layer.keys = layer.values = None  # the other one comes later
        setattr(layer, self.kind, tensor)

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def __repr__(self) -> str:
        return repr(list(self))


def _tensors(kind: str) -> property:
    def assign(cache: Any, tensors: Iterable[Any]) -> None:
        given, now = list(tensors), _Tensors(cache, kind)
        del now[len(given) :]
        for layer, tensor in zip(now.layers, given, strict=False):
            setattr(layer, kind, tensor)
        now.extend(given[len(now) :])

    return property(lambda cache: _Tensors(cache, kind), assign)


def _with_tuples(model: Any) -> Callable[..., Any]:
    """The model's ``forward``, for which a cache that is not given as an object is a tuple."""
    from transformers import DynamicCache

    forward = model.forward
    if not takes_cache(model):
        raise UsageError(f"legacy_cache: expected models that take past_key_values, got {type(model).__name__}")

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        passed = arguments(forward, args, kwargs)
        given, use = cache_of(passed), passed.get("use_cache")
        use = getattr(model.config, "use_cache", True) if use is None else use
        if not isinstance(given, tuple | list) and (given is not None or not use):
            return forward(*args, **kwargs)
        cache = DynamicCache.from_legacy_cache(given)
        others = {name: value for name, value in passed.items() if name not in NAMES}
        output = forward(**others, **cache_argument(forward, cache))
        if any(layer.keys is None for layer in cache.layers):
            raise UsageError(
                "legacy_cache: the state of a recurrent model is not keys and values; bridge other families"
            )
        if isinstance(output, tuple):
            return tuple(cache.to_legacy_cache() if part is cache else part for part in output)
        setattr(output, installed_name(), cache.to_legacy_cache())
        return output

    return wrapped


def _prepared(model: Any) -> Callable[..., Any]:
    """The inputs that a loop of its own asks the model to make of all tokens, the cache and the 2-D mask."""

    def legacy(
        input_ids: Any, past_key_values: Any = None, attention_mask: Any = None, **others: Any
    ) -> dict[str, Any]:
        tuples = isinstance(past_key_values, tuple | list)
        held = past_key_values[0][0].shape[2] if tuples else past_key_values.get_seq_length() if past_key_values else 0
        new = max(1, max(input_ids.shape[1], 0 if attention_mask is None else attention_mask.shape[1]) - held)
        if attention_mask is not None and others.get("position_ids") is None:
            positions = attention_mask.long().cumsum(-1) - 1
            others["position_ids"] = positions.masked_fill(attention_mask == 0, 1)[:, -new:]
        given = {"past_key_values": past_key_values, "attention_mask": attention_mask}
        return {"input_ids": input_ids[:, -new:], **given, **others}

    return _elsewhere(legacy, model.prepare_inputs_for_generation)


# Give a store of n-grams, or any draft that is looked up and not computed, what the draft of a case would propose.


def drafts_of(draft: Any) -> list[list[int]]:
    """Return for each row of the request what its draft proposes: up to ``max_new_tokens`` ids, one for each new token.

    Id ``n`` is the draft's proposal after the prompt and the first ``n`` new tokens of the target. So a store that is
    filled with ``prompt + drafts`` finds drafts that are accepted and rejected as the case has it: a wrong id is never
    the target's, and behind it the store finds nothing until the row agrees with it again.

    The models are not called, so this is none of the decoder's calls. Raises `Unsupported` for a draft that is not of a
    case of `eqcheck`.

        >>> import eqcheck
        >>> from eqcheck.transparent.decoding import run
        >>> seen = []
        >>> case = eqcheck.Case(prompts=((5, 7),), max_new_tokens=3, num_draft_tokens=2, accepts=((1,),))
        >>> done = run(lambda target, draft, request: seen.extend(drafts_of(draft)), case)
        >>> [one == right for one, right in zip(seen[0], done.truth.uncut[0])]
        [True, False, False]
    """
    made = getattr(draft, "continuations", None)
    if made is None and isinstance(draft, ScriptedDraft):
        raise Unsupported("the drafts of sampled rows are not known beforehand")
    if made is None:
        raise Unsupported(f"expected the draft that eqcheck hands over, got {type(draft).__name__}")
    rows: list[list[int]] = made()
    return rows
