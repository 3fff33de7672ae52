"""Worker processes for decoders: one that crashes, hangs or eats memory loses its process, and the audit goes on.

A worker is forked from a server that has imported torch and transformers, so that a fresh one is there in a tenth of a
second. The two sides talk over a pipe: the worker says when a decoder begins and ends, and the other side kills it,
with all its children, when it takes longer than it may. Where the platform has no fork server or no memory limit,
workers start slowly or run without the limit.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eqcheck import registry
from eqcheck.case import Case
from eqcheck.contract import Generate, Request
from eqcheck.lanes.transparent.outcome import Outcome, noted, set_up, try_case

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

GIB = 2**30
_SET_UP_S = 600.0  # for an engine to start, or to stop
_OURS_S = 120.0  # for eqcheck's own part of a case
_GRACE_S = 1.0  # the worker's own alarm comes first and leaves a cleaner process
_starting = threading.Lock()


@dataclass(frozen=True)
class Limits:
    """What one case may take: seconds, and bytes beyond what the worker has after its imports (None: no limit)."""

    timeout: float = 60.0
    memory: int | None = None


class MemoryLimit(Exception):
    """The decoder asked for more memory than a case may take."""


class Worker:
    """A decoder in a process of its own, which is replaced whenever it is lost.

    ``log`` are the cases that the process has decoded. ``scattered``: global random generators begin elsewhere in each
    process, so that a decoder that draws from them does not look deterministic.

    >>> with Worker("eqspec", Limits()) as worker:
    ...     worker.try_case(Case(prompts=((1, 2),))).status
    'equivalent'
    """

    def __init__(self, spec: str, limits: Limits, *, scattered: bool = False) -> None:
        self.spec, self.limits, self.scattered = spec, limits, scattered
        self.log: list[Case] = []
        self.note = ""
        self.warnings: list[str] = []
        self._process: BaseProcess | None = None
        self._pipe: Connection

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            self.stop()
        self.kill()

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """Decode and judge one case; a lost worker is the decoder's failure and is described as such.

        ``timeout`` counts instead of the limit where it is shorter. With ``opinion`` the case is decoded again
        under each repair.
        """
        try:
            outcome = self._answer(case, min(timeout or self.limits.timeout, self.limits.timeout), opinion)
        except _Lost as lost:
            self.kill()
            outcome = Outcome.crashed(case, lost.kind, lost.detail)
        return noted(self.log, outcome)

    def ready(self) -> bool:
        """Whether a process with the decoder can be started, as `try_case` does."""
        try:
            self._start()
        except _Lost:
            self.kill()
            return False
        return True

    def stop(self) -> None:
        """Shut the decoder down in good order if it lets us, and end the process in any case."""
        if self._process is not None:
            with suppress(_Lost):
                self._send(None)
                self.warnings += self._receive(self.limits.timeout, "close() did not end within {:g} s")[1]
        self.kill()

    def kill(self) -> None:
        """End the process and its children at once; also from another thread than the one that awaits its answer."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
        self._pipe.close()

    def _answer(self, case: Case, timeout: float, opinion: bool) -> Outcome:
        self._start()
        self._send((case, timeout, opinion))
        message = self._receive(_OURS_S, "eqcheck did not hand over the case within {:g} s")
        while message[0] == "begun":
            self._receive(timeout, "no answer within {:g} s", _GRACE_S)
            message = self._receive(_OURS_S, "no verdict within {:g} s")
        _, outcome, self.note = message
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, Outcome)
        if outcome.fingerprint in ("crash/hang", f"crash/exception:{MemoryLimit.__name__}"):
            self.kill()  # whatever it still holds
        return outcome

    def _start(self) -> None:
        if self._process is not None:
            return
        with _starting, _main_left_alone():
            start = context()
            self._pipe, theirs = start.Pipe()
            asked = (theirs, self.spec, self.limits, self.scattered)
            process = start.Process(target=_serve, args=asked, daemon=True)
            process.start()
            self._process, self.log = process, []
            theirs.close()
        self._receive(_SET_UP_S, "the decoder did not get ready within {:g} s")

    def _send(self, message: tuple[Case, float, bool] | None) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._lost() from None

    def _receive(self, seconds: float, late: str, grace: float = 0.0) -> Any:
        try:
            if not self._pipe.poll(seconds + grace):
                raise _Lost("hang", late.format(seconds))
            return self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None

    def _lost(self) -> _Lost:
        process = self._process
        if process is None:
            return _Lost("exception", "ProcessExit: ended by the audit")
        process.join(_GRACE_S)
        code = process.exitcode
        if code is None:
            return _Lost("exception", "ProcessExit: the decoder closed the pipe of its worker process")
        if code >= 0:
            return _Lost("exception", f"ProcessExit-{code}: the decoder ended its process with exit code {code}")
        name = signal.Signals(-code).name
        return _Lost("exception", f"ProcessExit-{name}: the decoder's process was ended by {name}")


class _Lost(Exception):
    """The worker is gone, or has to go."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail


def context() -> Any:
    """How workers are started: forked from a server with everything imported, else afresh."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([__name__, "eqcheck.hashlm", "transformers.generation.utils"])
    return forking


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


def _serve(pipe: Connection, spec: str, limits: Limits, scattered: bool) -> None:
    """The worker: say ``ready``, then for each case ``begun``, ``ended`` and the outcome, until None comes."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if scattered:
        torch.seed()
        random.seed()
        np.random.seed()
    warnings: list[str] = []
    decoder = registry.load(spec)
    with set_up(decoder, warnings) as generate:
        ceiling = _held() + limits.memory if limits.memory and resource else None
        pipe.send(("ready",))
        while (asked := pipe.recv()) is not None:
            case, timeout, opinion = asked
            outcome: Outcome | BaseException
            try:
                outcome = try_case(_announced(generate, pipe, ceiling), case, timeout, opinion=opinion)
            except Exception as error:
                outcome = error
            pipe.send(("outcome", outcome, getattr(generate, "note", "")))
    pipe.send(("closed", warnings))


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


def _die_with_parent() -> None:
    """Lead a process group of its own, and end it when the audit's process ends, however that ends."""
    if hasattr(os, "setsid"):
        os.setsid()
    audit = multiprocessing.parent_process()
    assert audit is not None

    def watch() -> None:
        audit.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
