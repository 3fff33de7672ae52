"""Where the cases of an audit are decoded: in this process, or in worker processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from threading import Event
from typing import Protocol

import torch

from eqcheck.case import Case
from eqcheck.contract import Decoder, Generate
from eqcheck.errors import UsageError
from eqcheck.lanes.transparent.outcome import Outcome, noted, set_up, try_case
from eqcheck.workers.forked import Limits, Worker

_BATCH = 10
HANG = "crash/hang"
HANGS_TO_GIVE_UP = 3


class Runner(Protocol):
    """Decodes cases; ``note`` is what the decoder says of itself. Families in ``given_up`` are passed over."""

    given_up: set[str]

    @property
    def note(self) -> str: ...

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """One outcome; ``timeout`` instead of the time limit where it is shorter; ``opinion``: with repair."""

    def outcomes(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """The outcomes of the cases, in order."""

    def renew(self) -> bool:
        """Have the next case decoded by a decoder that has decoded nothing yet; False where that cannot be."""


@contextmanager
def runner(decoder: Decoder, limits: Limits, jobs: int, isolate: bool, warnings: list[str]) -> Iterator[Runner]:
    """What runs the decoder; a decoder that no spec names runs in this process and cannot be isolated."""
    if isolate and not decoder.spec:
        raise UsageError(f"decoder {decoder.name!r}: only one that a spec names can be isolated")
    if not decoder.spec or (jobs <= 1 and not isolate):
        torch.set_num_threads(1)
        with set_up(decoder, warnings) as generate:
            yield InProcess(generate, limits.timeout)
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(decoder.spec, limits)) for _ in range(jobs)]
        yield Workers(workers)
    warnings += dict.fromkeys(warning for worker in workers for warning in worker.warnings)


@dataclass
class InProcess:
    """A decoder set up in this process."""

    generate: Generate
    timeout: float
    given_up: set[str] = field(default_factory=set)
    log: list[Case] = field(default_factory=list)

    @property
    def note(self) -> str:
        return str(getattr(self.generate, "note", ""))

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        tried = try_case(self.generate, case, min(timeout or self.timeout, self.timeout), opinion=opinion)
        return noted(self.log, tried)

    def outcomes(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        return (self.try_case(case) for case in cases if case.family not in self.given_up)

    def renew(self) -> bool:
        return False


@dataclass
class Workers:
    """A decoder in one or more worker processes, each driven by a thread of its own when there are several."""

    workers: list[Worker]
    given_up: set[str] = field(default_factory=set)

    @property
    def note(self) -> str:
        return next((worker.note for worker in self.workers if worker.note), "")

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        return self.workers[0].try_case(case, timeout, opinion=opinion)

    def renew(self) -> bool:
        self.workers[0].stop()
        return True

    def outcomes(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        if len(self.workers) == 1:
            yield from (self.try_case(case) for case in cases if case.family not in self.given_up)
            return
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            idle.put(worker)
        source = iter(cases)
        waiting: deque[Future[list[Outcome]]] = deque()
        over = Event()
        pool = ThreadPoolExecutor(len(self.workers))
        try:
            while batch := list(islice(source, _BATCH)):
                waiting.append(pool.submit(self._batch, idle, batch, over))
                if len(waiting) == 2 * len(self.workers):
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BaseException:
            over.set()
            for worker in self.workers:  # ends what the threads wait for
                worker.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _batch(self, idle: SimpleQueue[Worker], batch: list[Case], over: Event) -> list[Outcome]:
        worker = idle.get()
        done: list[Outcome] = []
        hung: Counter[str] = Counter()
        try:
            for case in batch:
                if over.is_set():
                    break
                if case.family not in self.given_up and hung[case.family] < HANGS_TO_GIVE_UP:
                    done.append(worker.try_case(case))
                    hung[case.family] += done[-1].fingerprint == HANG
            return done
        finally:
            idle.put(worker)
