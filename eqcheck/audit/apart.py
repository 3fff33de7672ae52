"""Decoders whose code is never imported by the process that audits them: what one patches, no other one meets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from eqcheck import registry
from eqcheck.audit.isolation import context
from eqcheck.audit.on_pair import OnPair, on_pair
from eqcheck.contract import Decoder
from eqcheck.errors import UsageError

T = TypeVar("T")


def described(spec: str) -> Decoder:
    """The decoder that a spec names, with all that it declares but without its code; for audits in a worker process.

        >>> described("eqspec").families
        ('rotary', 'learned')

    Raises `UsageError` as `eqcheck.load` does, and where the process ends while it loads the decoder.
    """
    return _in_a_process(_description, spec)


def pair_apart(spec: str) -> OnPair:
    """What the decoder that a spec names does on the pair of trained models, in a process of its own."""
    return _in_a_process(_on_pair, spec)


def _in_a_process(function: Callable[[str], T], spec: str) -> T:
    with ProcessPoolExecutor(1, mp_context=context()) as pool:
        try:
            return pool.submit(function, spec).result()
        except BrokenProcessPool:
            raise UsageError(f"adapter {spec!r}: it ended the process that loaded it") from None


def _description(spec: str) -> Decoder:
    return replace(registry.load(spec), function=_elsewhere, engine=None, inside=nullcontext)


def _on_pair(spec: str) -> OnPair:
    return on_pair(registry.load(spec))


def _elsewhere(*_: Any) -> Any:
    raise UsageError("this decoder was only described: give its spec to eqcheck.audit.isolation.Worker")
