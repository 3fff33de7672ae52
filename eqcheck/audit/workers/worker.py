"""Workers decode and judge cases, wherever the decoder runs: in this process, or in others that are replaced when lost.

A decoder that crashes, hangs or answers nonsense in a process of its own is ended with all its children; the case is
the decoder's failure, and the next case finds a new process. `fork` and `interpreter` hold the limit on time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from eqcheck.audit.workers.serve import NO_BYTECODE
from eqcheck.contract.decoders import Decoder, Generate, Request, hook
from eqcheck.contract.errors import SetupError, one_line
from eqcheck.contract.profiles import CASE_TIMEOUT
from eqcheck.contract.requirements import Guarded
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import Sampled
from eqcheck.core.explanation.notice import LIMIT, EqcheckFailed, internal_error
from eqcheck.core.explanation.records import Explanation, crash
from eqcheck.core.result.outcome import HANG, HANGS_TO_GIVE_UP, CaseLog, Outcome, unjudged

TryCase = Callable[..., Outcome]  # (generate, case, timeout, *, opinion)


@dataclass(frozen=True)
class Limits:
    """The limits of one case: seconds, and bytes beyond what the worker has after its imports (None: no limit)."""

    timeout: float = CASE_TIMEOUT
    memory: int | None = None


class Lost(Exception):
    """The process is gone, or has to go: how, as kind of a crash, its subject (none for a hang) and in words."""

    def __init__(self, kind: str, subject: str, text: str) -> None:
        self.explanation = crash(kind, subject, text) if subject else Explanation("crash", kind, detail=text)


@dataclass(frozen=True)
class Decoded:
    """The answer of a decoder to a case, not yet judged, and what it had decoded before."""

    case: Any
    answer: Any
    history: CaseLog


class Worker:
    """A decoder that is handed cases. ``log`` are those it has decoded; ``note`` and ``version`` are its own words."""

    def __init__(self, timeout: float, log: list[Any] | None = None) -> None:
        self.timeout = timeout
        self.log = [] if log is None else log
        self.note = self.version = ""
        self.warnings: list[str] = []

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of a process of its own that decodes now; those of this process are counted elsewhere."""
        return 0.0

    def begin(self) -> None:
        """Have a decoder that is ready for a case; raises `Lost`."""

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Any:
        """The decoder's answer to a case, or the outcome; raises `Lost`."""
        raise NotImplementedError

    def judge(self, case: Any, answer: Any) -> Outcome:
        """The outcome of what `exchange` returned."""
        raise NotImplementedError

    def last_words(self) -> str:
        """The last lines that the process wrote, where they are kept."""
        return ""

    def kill(self) -> None:
        """End the process and its children at once; also from another thread than the one that awaits its answer."""

    def renew(self) -> bool:
        """Have the next case decoded by a decoder that has decoded nothing yet; False where that cannot be."""
        return False

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """Decode and judge one case; a lost process is the decoder's failure and is described as such.

        ``timeout`` counts instead of the limit where it is shorter. With ``opinion`` there is a second look.
        Raises `EqcheckFailed` where eqcheck itself fails: whoever asks has a step of its own that ends by that.
        """
        outcome = self.judged(self.decode(case, timeout, opinion=opinion))
        if outcome.internal is not None:
            raise EqcheckFailed(outcome.internal)
        return outcome

    def decode(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Decoded:
        """The part of `try_case` that needs the decoder; of errors of eqcheck's own it raises `SetupError` alone."""
        try:
            self.begin()
            answer = self.exchange(case, min(timeout or self.timeout, self.timeout), opinion)
        except Lost as lost:
            text = self.last_words()
            self.kill()
            answer = Outcome(case, "violation", explanation=lost.explanation, traceback=text)
        except SetupError:
            raise
        except Exception as error:
            answer = unjudged(internal_error(_step(opinion), error, case), case)
        history = CaseLog(self.log, len(self.log))
        self.log += [*case.before, case.alone]
        return Decoded(case, answer, history)

    def judged(self, decoded: Decoded) -> Outcome:
        """The part of `try_case` that does not need the decoder; it never raises an error of eqcheck's own."""
        answer, case = decoded.answer, decoded.case
        try:
            outcome = answer if isinstance(answer, Outcome) else self.judge(case, answer)
        except Exception as error:
            outcome = unjudged(internal_error("judge", error, case), case)
        e = outcome.explanation
        if e and e.component == "crash" and e.given is None and isinstance(case, Case | Sampled):
            # No row is at fault: the case itself is what there is to show.
            outcome = replace(outcome, explanation=replace(e, given=case.given(0)))
        return replace(outcome, history=decoded.history)


def said_by(generate: Generate, name: str) -> str:
    """Return what a decoder says of itself, as text; empty where it raises when it is asked."""
    try:
        return str(hook(generate, name))
    except Exception:
        return ""


def _step(opinion: bool) -> str:
    return "explain" if opinion else "judge"


class LocalWorker(Worker):
    """A decoder set up in this process; ``task`` decodes and judges a case."""

    def __init__(self, generate: Generate, task: TryCase, timeout: float, log: list[Any] | None = None) -> None:
        super().__init__(timeout, log)
        self.generate, self.task = generate, task

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Outcome:
        outcome = self.task(self.generate, case, timeout, opinion=opinion)
        self.note, self.version = (said_by(self.generate, name) for name in ("note", "version"))
        return outcome


class ProcessWorker(Worker):
    """A decoder in a process of its own, which a transport starts and talks to."""

    _process: Any = None  # of `multiprocessing` or `subprocess`

    def __enter__(self) -> Any:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            self.stop()
        self.kill()

    def start(self) -> None:
        """Start the process and have it set the decoder up; raises `Lost`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Shut the decoder down in good order if it lets us, and end the process in any case."""
        raise NotImplementedError

    def exit_code(self, process: Any, seconds: float | None) -> int | None:
        """Wait for a process to end, not longer than so many seconds; None: it did not."""
        raise NotImplementedError

    def hang_up(self, process: Any) -> None:
        """Let go of the pipes of a process that has ended."""

    def begin(self) -> None:
        if self._process is None:
            self.log = []
            self.start()

    def ready(self) -> bool:
        """Return whether a process with the decoder can be started."""
        try:
            self.begin()
        except Lost:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_group(process.pid)
            process.kill()
            self.exit_code(process, None)
            self.hang_up(process)

    def renew(self) -> bool:
        self.stop()
        return True

    def lost(self, seconds: float) -> Lost:
        """Return how the process ended, which nobody told to; it may take so many ``seconds``."""
        process = self._process
        if process is None:
            return Lost("exception", "ProcessExit", "ended by the audit")
        code = self.exit_code(process, seconds)
        if code is None:
            return Lost("exception", "ProcessExit", "the decoder closed the pipe of its worker process")
        name = signal.Signals(-code).name if code < 0 else str(code)
        how = f"was ended by {name}" if code < 0 else f"ended with exit code {code}"
        return Lost("exception", f"ProcessExit-{name}", f"the decoder's process {how}")


class Workers:
    """A decoder in one or more workers. Cases of families in ``given_up`` are passed over.

    ``batch`` cases are handed to one at a time. ``ahead``: while a process decodes, what it decoded before is judged
    here, and what comes next is drawn.
    """

    def __init__(self, workers: Sequence[Worker], *, batch: int = 10, ahead: bool = False) -> None:
        self.workers = list(workers)
        self.given_up = set[str]()
        self._batch, self._threads = batch, len(self.workers) + ahead
        self._most_waiting = 2 * self._threads  # batches that are handed out and not yet told

    @property
    def note(self) -> str:
        """The decoder's note on itself."""
        return next((worker.note for worker in self.workers if worker.note), "")

    @property
    def version(self) -> str:
        """The name that the decoder's engine gives itself."""
        return next((worker.version for worker in self.workers if worker.version), "")

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """The outcome of one case; see `Worker.try_case`."""
        return self.workers[0].try_case(case, timeout, opinion=opinion)

    def renew(self) -> bool:
        """Have the next case decoded by a decoder that has decoded nothing yet; False where that cannot be."""
        return self.workers[0].renew()

    def taken(self) -> int:
        """The number of cases that are handed to a worker at once."""
        return self._batch

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        """The outcomes of the cases, in order; also of those in which eqcheck itself failed."""
        if self._threads == 1:
            (worker,) = self.workers
            yield from (worker.judged(worker.decode(case)) for case in cases if case.family not in self.given_up)
            return
        import torch

        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            idle.put(worker)
        source = iter(cases)
        waiting: deque[Future[list[Outcome]]] = deque()
        over = threading.Event()
        pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            while batch := list(islice(source, self.taken())):
                waiting.append(pool.submit(self._decode, idle, batch, over))
                if len(waiting) == self._most_waiting:
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

    def _decode(self, idle: SimpleQueue[Worker], batch: list[Any], over: threading.Event) -> list[Outcome]:
        worker = idle.get()
        done: list[Decoded] = []
        hung: Counter[str] = Counter()
        try:
            for case in batch:
                if over.is_set():
                    break
                if case.family not in self.given_up and hung[case.family] < HANGS_TO_GIVE_UP:
                    done.append(worker.decode(case))
                    answer = done[-1].answer
                    hung[case.family] += isinstance(answer, Outcome) and answer.fingerprint == HANG
        finally:
            idle.put(worker)
        return list(map(worker.judged, done))


@contextmanager
def set_up(decoder: Decoder, warnings: list[str]) -> Iterator[Generate]:
    """The decoder set up, and guarded; if that fails, a stand-in that fails every case with the same error."""
    with ExitStack() as stack:
        try:
            generate: Generate = Guarded(stack.enter_context(decoder.running()), decoder.requires)
        except (Exception, SystemExit) as error:
            failure = error

            def generate(target: Any, draft: Any, request: Request) -> Any:
                raise failure

        yield generate
        closing = stack.pop_all()
        try:
            closing.close()
        except (Exception, SystemExit) as error:
            warnings.append(one_line(f"the decoder's close() raised {type(error).__name__}: {error}", LIMIT))


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a process that eqcheck starts: this one's without `NO_BYTECODE`, and with ``more``."""
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE} | more


_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    groups ^= {int(line)}
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
_guarding = threading.Lock()


@cache
def _guard(process: int) -> int:
    """A pipe to a guard of this ``process``: when the pipe ends, so does each process group that was written to it.

    It needs nothing of the processes that it ends, whatever their decoders do.
    """
    theirs, ours = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _GUARD]
    actions = [(os.POSIX_SPAWN_DUP2, theirs, 0), *((os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in (1, 2))]
    os.posix_spawn(command[0], command, child_environment(), file_actions=actions, setpgroup=0)
    os.close(theirs)
    return ours


def unguarded() -> None:
    """Let go of the guard of the process that this one was forked from, or the guard would wait for this one, too."""
    if _guard.cache_info().currsize:
        with suppress(OSError):
            os.close(_guard(os.getppid()))
        _guard.cache_clear()


def guard_group(pid: int | None) -> None:
    """Have a process group end with this process, however that ends; called again, no more."""
    if pid and hasattr(os, "posix_spawn"):
        with _guarding, suppress(OSError):
            os.write(_guard(os.getpid()), b"%d\n" % pid)


def group_cpu_s(pid: int) -> float:
    """Return the CPU seconds that the processes of a group have used so far; 0.0 where the system does not tell."""
    used = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            told = place.read_text().rpartition(")")[2].split()  # the name before it may hold anything
            if int(told[2]) == pid:
                used += sum(map(int, told[11:15]))  # its own, and of children that ended, as user and as system
    return used / os.sysconf("SC_CLK_TCK") if used else 0.0


def kill_group(pid: int | None) -> None:
    """Kill a process and its children, where it leads a group of its own."""
    if pid:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        guard_group(pid)
