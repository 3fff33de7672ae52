"""Several decoders in one command: each that does not come with eqcheck is in an interpreter of its own.

The process that audits them does not import their code: it asks a process that does for what the decoder declares, and
has worker processes decode. So what one adapter patches, or imports as ``utils``, no other one meets.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from eqcheck.audit.events import Finished, Listener
from eqcheck.audit.workers.fork import calls_no_decoder, context, launched
from eqcheck.audit.workers.worker import kill_group
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.findings import Audit, Options

_LOADED = ("eqcheck.audit.loop", "eqcheck.transparent.lane", "eqcheck.sampling.lane")
"""Modules that each process of an audit needs: the server imports them once for all."""


def load_all(specs: Sequence[str]) -> list[Decoder]:
    """The decoders that specs name; where there are several, strangers among them are only `described`.

        >>> [described(decoder) for decoder in load_all(["eqspec", "eqcheck.adapters.bsp:generate"])]
        [False, True]

    Engines, which run in processes anyway, are loaded. Raises `UsageError` as `eqcheck.load` does, and for a decoder
    that ends the process that loads it.
    """
    strangers = set(specs) - registry.shipped().keys() if len(specs) > 1 else set()
    loaded = [_loaded_elsewhere(spec) if spec in strangers else registry.load(spec) for spec in specs]
    return [registry.load(decoder.spec) if decoder.checkpoints else decoder for decoder in loaded]


def described(decoder: Decoder) -> bool:
    """Return whether there is nothing of a decoder here but its declarations."""
    return decoder.function is _elsewhere


def options(decoder: Decoder, settings: Options) -> Options:
    """The options of an audit: a decoder that is only described has to be isolated, if without a memory limit."""
    return (
        replace(settings, isolate=True, case_memory=None) if described(decoder) and not settings.isolate else settings
    )


def side_by_side(decoders: Sequence[Decoder], settings: Options, listen: Listener) -> Iterator[Audit]:
    """The audits of several decoders as they end, ``settings.jobs`` of them at a time, each in a process of its own.

    The first ``KeyboardInterrupt`` ends the running audits with what there is; the others are not begun.
    """
    share = replace(settings, jobs=max(1, settings.jobs // len(decoders)))
    # Samplers take longest: one that began last would run on when all others are done.
    waiting = sorted(decoders, key=lambda decoder: "temperature" not in decoder.capabilities)
    running = dict[Any, tuple[Decoder, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < settings.jobs:
                decoder = waiting.pop(0)
                ours, process = launched(context(*_LOADED), _audited, decoder.spec, options(decoder, share))
                running[ours] = decoder, process
            try:
                ready = wait(list(running))
            except KeyboardInterrupt:
                waiting = []
                for _, process in running.values():
                    os.kill(process.pid, signal.SIGINT)
                continue
            for pipe in ready:
                assert isinstance(pipe, Connection)
                decoder, process = running[pipe]
                lost = f"{decoder.name}: the process that audited it ended; try it alone, with --isolate"
                told = _received(pipe, lost)
                if told is None or isinstance(told, Audit):  # none: interrupted before there was anything
                    del running[pipe]
                    kill_group(process.pid)
                if isinstance(told, Audit):
                    told.decoder = decoder
                    listen(Finished(decoder.name, told))
                    yield told
                elif told is not None:
                    listen(told)
    finally:
        for _, process in running.values():
            kill_group(process.pid)


def _received(pipe: Connection, lost: str) -> Any:
    """The next message of a process; raises its exception, or a `UsageError` that says that it is ``lost``."""
    try:
        told = pipe.recv()
    except (EOFError, OSError):
        raise UsageError(lost) from None
    if isinstance(told, BaseException):
        raise told
    return told


def _audited(pipe: Connection, spec: str, settings: Options) -> None:
    """The process of one audit: it sends the events as they happen, and then the audit."""
    from eqcheck.audit.loop import audit

    calls_no_decoder()
    try:
        result = audit(
            registry.load(spec), settings, lambda event: None if isinstance(event, Finished) else pipe.send(event)
        )
        result.decoder = _described(result.decoder)
        pipe.send(result)
    except KeyboardInterrupt:
        pipe.send(None)
    except BaseException as error:
        pipe.send(_plain(error))


def _plain(error: BaseException) -> Exception:
    """An exception that crosses a pipe, whatever it holds."""
    return error if isinstance(error, UsageError) else RuntimeError(traceback.format_exc())


def _loaded_elsewhere(spec: str) -> Decoder:
    """The description of a decoder that another process loads."""
    pipe, process = launched(context(), _describe, spec)
    try:
        decoder: Decoder = _received(pipe, f"adapter {spec!r}: it ended the process that loaded it")
    finally:
        kill_group(process.pid)
    return decoder


def _describe(pipe: Connection, spec: str) -> None:
    try:
        pipe.send(_described(registry.load(spec)))
    except Exception as error:
        pipe.send(_plain(error))


def _described(decoder: Decoder) -> Decoder:
    return replace(decoder, function=_elsewhere, engine=None, inside=nullcontext)


def _elsewhere(*_: Any) -> Any:
    raise UsageError("this decoder is only described here: have a worker decode that loads its spec")
