"""The name of the cache in model calls and outputs: ``cache`` from transformers 5.24 on, ``past_key_values`` before.

Recurrent models of earlier releases call it ``cache_params``. 5.24 still takes the old names, until 5.40, and code of
models that does not come with transformers keeps the name it was written with. So no other module writes one of the
names into a call: `arguments` names the arguments of a call, `cache_of` reads the cache out of these or out of an
output, `cache_argument` and `cache_output` write it, and `named_as_installed` is for models of our own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

CACHE, OLD, OLD_RECURRENT = NAMES = ("cache", "past_key_values", "cache_params")

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """``{name: cache}`` with the name that the model's ``forward`` takes.

    ``model(input_ids=ids, **cache_argument(model, cache))`` works under any transformers. Where the signature has none
    of the names, as in a wrapper of ``**options``, it is the one of the installed transformers.
    """
    return {cache_name(model): cache}


def cache_name(model: Any) -> str:
    """The name that the model's ``forward`` takes, or else `installed_name`."""
    return next((name for name in _parameters(model) if name in NAMES), None) or installed_name()


def cache_output(cache: Any) -> dict[str, Any]:
    """``{name: cache}`` for an output of the installed transformers."""
    return {installed_name(): cache}


def takes_cache(model: Any) -> bool:
    """Return whether one of the names is in the signature of the model's ``forward``."""
    return any(name in NAMES for name in _parameters(model))


def arguments(model: Any, positional: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model by name, including those that were passed by position."""
    return {**dict(zip(_parameters(model), positional, strict=False)), **options}


def cache_of(given: Any) -> Any:
    """The cache in the `arguments` of a call or in the output of a model, which may be a tuple, or None."""
    if isinstance(given, tuple):
        return next((part for part in given if hasattr(part, "get_seq_length")), None)
    if type(given) is dict:
        return next((given[name] for name in NAMES if given.get(name) is not None), None)
    if hasattr(given, CACHE):  # then the old names are properties that return the same and log a warning
        return given.cache
    return next((found for name in NAMES if (found := getattr(given, name, None)) is not None), None)


@lru_cache(maxsize=1)
def installed_name() -> str:
    """The name in models of the installed transformers that have keys and values, `CACHE` or `OLD`."""
    from transformers import GenerationMixin

    return CACHE if CACHE in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters else OLD


def named_as_installed(forward: _Forward) -> _Forward:
    """A ``forward`` with a parameter ``cache``, which takes and shows the names that the installed transformers has."""
    name = installed_name()

    @wraps(forward)
    def renamed(*args: Any, **options: Any) -> Any:
        if name == OLD and CACHE in options:  # a Llama of that release ignores it, and nobody learns of it
            raise TypeError(f"{CACHE}: the installed transformers calls it {OLD}; rename it, or install 5.24 or newer")
        if OLD in options:
            if CACHE in options:
                raise TypeError(f"{CACHE}, {OLD}: expected one of the two, got both")
            options[CACHE] = options.pop(OLD)
        return forward(*args, **options)

    its = inspect.signature(forward)
    parameters = [one.replace(name=name) if one.name == CACHE else one for one in its.parameters.values()]
    renamed.__signature__ = its.replace(parameters=parameters)  # type: ignore[attr-defined]
    return renamed  # type: ignore[return-value]


_known: WeakKeyDictionary[Callable[..., Any], tuple[str, ...]] = WeakKeyDictionary()
"""Parameters by function: reading a signature takes about a tenth of the time of a call of a small model."""


def _named(forward: Any) -> tuple[str, ...]:
    """The names of its parameters. A function that wraps a bound method copies a signature which still has ``self``."""
    return tuple(name for name in inspect.signature(forward).parameters if name != "self")


def _parameters(model: Any) -> tuple[str, ...]:
    """The names of the parameters of the model's ``forward``, in order."""
    forward = getattr(model, "forward", model)
    function = getattr(forward, "__func__", forward)
    try:
        if (known := _known.get(function)) is None:
            known = _known[function] = _named(forward)
    except TypeError:  # an object that takes no weak reference
        return _named(forward)
    return known
