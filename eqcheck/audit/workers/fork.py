"""Decoders in forked processes: one that crashes, hangs or eats memory loses its process, and the audit goes on.

A worker is forked from the process of the audit, or from a server that has imported torch and transformers, so that a
fresh one is there in a tenth of a second. The two sides talk over a pipe: the worker says when a decoder begins and
ends, and the other side kills it, with all its children, when it takes longer than it may. Where the platform has no
fork server or no memory limit, workers start slowly or run without the limit.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eqcheck.audit.workers.worker import (
    Limits,
    LocalWorker,
    Lost,
    ProcessWorker,
    TryCase,
    Workers,
    guard_group,
    said_by,
    set_up,
    unguarded,
)
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Generate, Request
from eqcheck.contract.errors import UsageError
from eqcheck.core.explanation.notice import internal_error
from eqcheck.core.result.outcome import HANG, Outcome, unjudged

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_SET_UP_S = 600.0  # for an engine to start, or to stop
_OURS_S = 120.0  # for eqcheck's own part of a case
_GRACE_S = 1.0  # the worker's own alarm comes first and leaves a cleaner process
_starting = threading.Lock()


class MemoryLimit(Exception):
    """The decoder asked for more memory than a case may take."""


class ForkWorker(ProcessWorker):
    """A decoder in a process forked from one that has imported all it needs; ``task`` decodes and judges a case there.

    ``decoder`` is a spec, which the process loads, or a decoder as it was loaded here: then the process is forked from
    this one, which has to be `forkable`.
    ``scattered``: global random generators begin elsewhere in each process, so that a decoder that draws from them does
    not look deterministic.

    >>> from eqcheck.core.case.record import Case
    >>> from eqcheck.transparent.coverage import try_case
    >>> with ForkWorker("eqspec", Limits(), try_case) as worker:
    ...     worker.try_case(Case(prompts=((1, 2),))).status
    'equivalent'
    """

    def __init__(self, decoder: str | Decoder, limits: Limits, task: TryCase, *, scattered: bool = False) -> None:
        super().__init__(limits.timeout)
        self._arguments = (decoder, limits, task, scattered)
        if isinstance(decoder, str):
            context(task.__module__)  # the server ends with the thread that starts it: not one of a pool
        self._pipe: Connection

    def start(self) -> None:
        decoder, _, task, _ = self._arguments
        begin = context(task.__module__) if isinstance(decoder, str) else multiprocessing.get_context("fork")
        self._pipe, self._process = launched(begin, _serve, *self._arguments)
        self.version = self._receive(_SET_UP_S, "the decoder did not get ready within {:g} s")[1]

    def stop(self) -> None:
        if self._process is not None:
            with suppress(Lost):
                self._send(None)
                self.warnings += self._receive(self.timeout, "close() did not end within {:g} s")[1]
        self.kill()

    def exit_code(self, process: BaseProcess, seconds: float | None) -> int | None:
        process.join(seconds)
        return process.exitcode

    def hang_up(self, process: BaseProcess) -> None:
        self._pipe.close()

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Outcome:
        self._send((case, timeout, opinion))
        message = self._receive(_OURS_S, "eqcheck did not hand over the case within {:g} s")
        while message[0] == "begun":
            self._receive(timeout, "no answer within {:g} s", _GRACE_S)
            message = self._receive(_OURS_S, "no verdict within {:g} s")
        _, outcome, self.note = message
        assert isinstance(outcome, Outcome)
        if outcome.fingerprint in (HANG, f"crash/exception:{MemoryLimit.__name__}"):
            self.kill()  # whatever it still holds
        return outcome

    def _send(self, message: tuple[Any, float, bool] | None) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self.lost(_GRACE_S) from None

    def _receive(self, seconds: float, late: str, grace: float = 0.0) -> Any:
        try:
            if not self._pipe.poll(seconds + grace):
                raise Lost("hang", "", late.format(seconds))
            return self._pipe.recv()
        except (EOFError, OSError):
            raise self.lost(_GRACE_S) from None


@contextmanager
def decoding(
    decoder: Decoder, limits: Limits, task: TryCase, said: list[str], *, isolate: bool = False, jobs: int = 1
) -> Iterator[Workers]:
    """Worker processes that decode and judge cases, and can be ended whatever the decoder does.

    A decoder that no spec names runs in this process, which can only be interrupted. ``said`` gets the warnings.
    """
    if isolate and not decoder.spec:
        raise UsageError(f"decoder {decoder.name!r}: only one that a spec names can be isolated")
    if not decoder.spec:
        torch.set_num_threads(1)
        with set_up(decoder, said) as generate:
            yield Workers([LocalWorker(generate, task, limits.timeout)])
        return
    loaded = decoder if jobs == 1 and not isolate and forkable() else decoder.spec
    with ExitStack() as stack:
        workers = [stack.enter_context(ForkWorker(loaded, limits, task)) for _ in range(jobs)]
        yield Workers(workers)
    said += dict.fromkeys(warning for worker in workers for warning in worker.warnings)


def context(*modules: str) -> Any:
    """Return how workers are started: forked from a server that has imported these modules and models, else afresh."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["eqcheck.audit.workers.server", *modules])
    forkserver.ensure_running()
    return forking


def launched(begin: Any, run: Callable[..., None], *arguments: Any) -> tuple[Connection, BaseProcess]:
    """A process that leads a group and ends with this one: it runs a function with one end of a pipe; the other end."""
    with _starting, _main_left_alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which `forkable` has looked at
        ours, theirs = begin.Pipe()
        process = begin.Process(target=_led, args=(run, theirs, *arguments))
        process.start()
        guard_group(process.pid)
        theirs.close()
    return ours, process


def _led(run: Callable[..., None], *arguments: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    run(*arguments)


def _native_threads() -> int:
    """Return how many threads the process has that Python did not start; 0 where the platform does not tell."""
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return 0


_OF_IMPORTS = _native_threads()  # those of numpy and torch, which are safe to fork
_SHOWING = ("rich", "eqcheck")  # modules of threads that no decoder waits for


_unused = False  # whether this process is known to have called no decoder that it loaded


def calls_no_decoder() -> None:
    """Say that this process only loads decoders, and calls none: then what is forked from it is as good as new.

    A command knows that. Where a user's own program audits, it may have called the decoder before.
    """
    global _unused
    _unused = True


def as_new(decoder: Decoder) -> Decoder | str:
    """The decoder for a process in which it decoded nothing: as it was loaded here, or else its spec.

    To load it again takes a server that imports torch anew, which is a third of a short audit.
    """
    return decoder if _unused and forkable() else decoder.spec


def forkable() -> bool:
    """Return whether a decoder that was loaded here runs in a process forked from this one.

    It does not where it may wait for a thread, or for a device, that a forked process lacks.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    known = all(type(thread).__module__.partition(".")[0] in _SHOWING for thread in threads)
    return known and _native_threads() <= _OF_IMPORTS


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep a new process from running the main module again: a worker needs nothing of it, and a script may be it."""
    main = sys.modules["__main__"]
    named = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    vars(main).update(dict.fromkeys(named))
    try:
        yield
    finally:
        vars(main).update(named)


def _serve(pipe: Connection, decoder: str | Decoder, limits: Limits, task: TryCase, scattered: bool) -> None:
    """The worker: say ``ready``, then for each case ``begun``, ``ended`` and the outcome, until None comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if isinstance(decoder, str):
        decoder = registry.load(decoder)
    else:
        unguarded()
        gc.freeze()  # or each collection copies the memory shared with the audit
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for a debugger in the decoder
        for name, number in (("stdout", 1), ("stderr", 2)):  # a thread of the audit may have held the lock of its own
            setattr(sys, name, open(number, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False))  # noqa: SIM115
    if scattered:
        torch.seed()
        random.seed()
        np.random.seed()
    said: list[str] = []
    with set_up(decoder, said) as generate:
        ceiling = _held() + limits.memory if limits.memory and resource else None
        pipe.send(("ready", said_by(generate, "version")))
        while (work := pipe.recv()) is not None:
            case, timeout, opinion = work
            try:
                outcome = task(_announced(generate, pipe, ceiling), case, timeout, opinion=opinion)
            except BaseException as error:  # whatever an object of the decoder's raises when it is looked at
                outcome = unjudged(internal_error("explain" if opinion else "judge", error, case), case)
            try:
                pipe.send(("outcome", outcome, said_by(generate, "note")))
            except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
                # An object in the outcome cannot leave this process.
                pipe.send(("outcome", unjudged(internal_error("judge", error, case), case), ""))
    pipe.send(("closed", said))


def _announced(generate: Generate, pipe: Connection, ceiling: int | None) -> Generate:
    """The decoder, saying when it begins and ends, and held to a ceiling of memory in between."""

    def decode(target: Any, draft: Any, request: Request) -> Any:
        pipe.send(("begun",))
        try:
            with _ceiling(ceiling):
                return generate(target, draft, request)
        except (MemoryError, RuntimeError) as error:
            if ceiling is None or not _out_of_memory(error):
                raise
            raise MemoryLimit("the decoder asked for more memory than a case may take") from error
        finally:
            pipe.send(("ended",))

    return decode


def _out_of_memory(error: BaseException) -> bool:
    words = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _held() -> int:
    """Bytes of private data the process has; 0 where the platform does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


@contextmanager
def _ceiling(size: int | None) -> Iterator[None]:
    """Refuse the process memory beyond ``size`` bytes of data; lifted again for what eqcheck does after."""
    if size is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
