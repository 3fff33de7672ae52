"""Several decoders in one audit: each that does not come with eqcheck is in an interpreter of its own.

The process that audits them does not import their code: it asks a process that does for what the decoder declares, and
has worker processes decode. So what one adapter patches, or imports as ``utils``, no other one meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from eqcheck import registry
from eqcheck.contract import Decoder
from eqcheck.errors import UsageError
from eqcheck.findings import Options, RealPair
from eqcheck.workers.forked import context

T = TypeVar("T")


def load_all(specs: Sequence[str]) -> list[Decoder]:
    """The decoders that specs name; where there are several, strangers among them are only `described`.

        >>> [described(decoder) for decoder in load_all(["eqspec", "eqcheck.adapters.bsp:generate"])]
        [False, True]

    Engines, which run in processes anyway, are loaded. Raises `UsageError` as `eqcheck.load` does, and for a decoder
    that ends the process that loads it.
    """
    strangers = set(specs) - registry.shipped().keys() if len(specs) > 1 else set()
    found = [_in_a_process(_description, spec) if spec in strangers else registry.load(spec) for spec in specs]
    return [registry.load(decoder.spec) if decoder.checkpoints else decoder for decoder in found]


def described(decoder: Decoder) -> bool:
    """Whether all that is here of a decoder is what it declares."""
    return decoder.function is _elsewhere


def options(decoder: Decoder, settings: Options) -> Options:
    """What to ask of an audit: one of a decoder that is only described has to isolate it, if without a memory limit."""
    return (
        replace(settings, isolate=True, case_memory=None) if described(decoder) and not settings.isolate else settings
    )


def pair(decoder: Decoder) -> RealPair:
    """What a decoder does on the pair of trained models; one that is only described, in a process of its own."""
    return _in_a_process(_on_pair, decoder.spec) if described(decoder) else _decoded(decoder)


def _in_a_process(function: Callable[[str], T], spec: str) -> T:
    with ProcessPoolExecutor(1, mp_context=context()) as pool:
        try:
            return pool.submit(function, spec).result()
        except BrokenProcessPool:
            raise UsageError(f"adapter {spec!r}: it ended the process that loaded it") from None


def _description(spec: str) -> Decoder:
    return replace(registry.load(spec), function=_elsewhere, engine=None, inside=nullcontext)


def _on_pair(spec: str) -> RealPair:
    return _decoded(registry.load(spec))


def _decoded(decoder: Decoder) -> RealPair:
    from eqcheck.lanes.transparent.on_pair import on_pair

    return on_pair(decoder)


def _elsewhere(*_: Any) -> Any:
    raise UsageError("this decoder is only described here: have a worker decode that loads its spec")
