"""A decoder in one or more worker processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from queue import SimpleQueue
from threading import Event
from typing import Any

import torch

from eqcheck.contract.decoder import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.result.outcome import HANG, HANGS_TO_GIVE_UP, Outcome
from eqcheck.workers.forked import Forked, Limits, forkable
from eqcheck.workers.local import InProcess, TryCase, set_up
from eqcheck.workers.process import ProcessWorker
from eqcheck.workers.runner import OneByOne, Runner


@contextmanager
def decoding(
    decoder: Decoder, limits: Limits, task: TryCase, said: list[str], *, isolate: bool = False, jobs: int = 1
) -> Iterator[Runner]:
    """What decodes and judges cases: worker processes, which can be ended whatever the decoder does.

    A decoder that no spec names runs in this process, which can only be interrupted. ``said`` gets the warnings.
    """
    if isolate and not decoder.spec:
        raise UsageError(f"decoder {decoder.name!r}: only one that a spec names can be isolated")
    if not decoder.spec:
        torch.set_num_threads(1)
        with set_up(decoder, said) as generate:
            yield InProcess(generate, task, limits.timeout)
        return
    loaded = decoder if jobs == 1 and not isolate and forkable() else decoder.spec
    with ExitStack() as stack:
        workers = [stack.enter_context(Forked(loaded, limits, task)) for _ in range(jobs)]
        yield Workers(workers)
    said += dict.fromkeys(warning for worker in workers for warning in worker.warnings)


class Workers(OneByOne):
    """A decoder in worker processes. ``batch`` cases are handed to one at a time.

    ``ahead``: while a process decodes, what it decoded before is judged here, and what comes next is drawn.
    """

    def __init__(self, workers: Sequence[ProcessWorker], *, batch: int = 10, ahead: bool = False) -> None:
        super().__init__()
        self.workers = list(workers)
        self._batch, self._threads = batch, len(self.workers) + ahead

    @property
    def note(self) -> str:
        return next((worker.note for worker in self.workers if worker.note), "")

    @property
    def version(self) -> str:
        return next((worker.version for worker in self.workers if worker.version), "")

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        return self.workers[0].try_case(case, timeout, opinion=opinion)

    def renew(self) -> bool:
        self.workers[0].stop()
        return True

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        if self._threads == 1:
            yield from super().outcomes(cases)
            return
        idle: SimpleQueue[ProcessWorker] = SimpleQueue()
        for worker in self.workers:
            idle.put(worker)
        source = iter(cases)
        waiting: deque[Future[list[Outcome]]] = deque()
        over = Event()
        pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            while batch := list(islice(source, self._batch)):
                waiting.append(pool.submit(self._decode, idle, batch, over))
                if len(waiting) == 2 * self._threads:
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

    def _decode(self, idle: SimpleQueue[ProcessWorker], batch: list[Any], over: Event) -> list[Outcome]:
        worker = idle.get()
        done: list[Callable[[], Outcome]] = []
        hung: Counter[str] = Counter()
        try:
            for case in batch:
                if over.is_set():
                    break
                if case.family not in self.given_up and hung[case.family] < HANGS_TO_GIVE_UP:
                    decoded = worker.decode(case)
                    done.append(lambda decoded=decoded: worker.judged(decoded))  # type: ignore[misc]
                    answer = decoded.answer
                    hung[case.family] += isinstance(answer, Outcome) and answer.fingerprint == HANG
        finally:
            idle.put(worker)
        return [judged() for judged in done]
