"""A decoder behind a process that is replaced whenever it is lost: what all transports share.

One that crashes, hangs or answers nonsense is ended with all its children; the case is the decoder's failure, and the
next case finds a new process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from eqcheck.explanation.records import Explanation, crash
from eqcheck.result.outcome import History, Outcome


class Lost(Exception):
    """The process is gone, or has to go: how, as kind of a crash, its subject (none for a hang) and in words."""

    def __init__(self, kind: str, subject: str, text: str) -> None:
        self.explanation = crash(kind, subject, text) if subject else Explanation("crash", kind, detail=text)


@dataclass(frozen=True)
class Decoded:
    """What a process made of a case, not yet judged, and what it had decoded before."""

    case: Any
    answer: Any
    history: History


class ProcessWorker:
    """A decoder in a process of its own. A transport says how to `start`, `exchange` and `judge`.

    ``log`` are the cases that the process has decoded.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.log: list[Any] = []
        self.note = self.version = ""
        self.warnings: list[str] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            self.stop()
        self.kill()

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process and have it set the decoder up; raises `Lost`."""
        raise NotImplementedError

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Any:
        """Have the process decode a case; raises `Lost`."""
        raise NotImplementedError

    def judge(self, case: Any, answer: Any) -> Outcome:
        """The outcome of what `exchange` returned."""
        raise NotImplementedError

    def last_words(self) -> str:
        """The last lines that the process wrote, where they are kept."""
        return ""

    def stop(self) -> None:
        """Shut the decoder down in good order if it lets us, and end the process in any case."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the process and its children at once; also from another thread than the one that awaits its answer."""
        raise NotImplementedError

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """Decode and judge one case; a lost process is the decoder's failure and is described as such.

        ``timeout`` counts instead of the limit where it is shorter. With ``opinion`` there is a second look.
        """
        return self.judged(self.decode(case, timeout, opinion=opinion))

    def decode(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Decoded:
        """The part of `try_case` that needs the process."""
        try:
            self.begin()
            answer = self.exchange(case, min(timeout or self.timeout, self.timeout), opinion)
        except Lost as lost:
            text = self.last_words()
            self.kill()
            answer = Outcome(case, "violation", explanation=lost.explanation, traceback=text)
        history = History(self.log, len(self.log))
        self.log += [*case.before, case.alone]
        return Decoded(case, answer, history)

    def judged(self, decoded: Decoded) -> Outcome:
        """The part of `try_case` that does not need the process."""
        answer = decoded.answer
        outcome = answer if isinstance(answer, Outcome) else self.judge(decoded.case, answer)
        return replace(outcome, history=decoded.history)

    def begin(self) -> None:
        """Have a process that is ready for a case."""
        if not self.running:
            self.log = []
            self.start()

    def ready(self) -> bool:
        """Whether a process with the decoder can be started."""
        try:
            self.begin()
        except Lost:
            self.kill()
            return False
        return True


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
    os.posix_spawn(command[0], command, os.environ, file_actions=actions, setpgroup=0)
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


def kill_group(pid: int | None) -> None:
    """Kill a process and its children, where it leads a group of its own."""
    if pid:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        guard_group(pid)


def ended(code: int | None) -> Lost:
    """How a process ended that nobody told to."""
    if code is None:
        return Lost("exception", "ProcessExit", "the decoder closed the pipe of its worker process")
    name = signal.Signals(-code).name if code < 0 else str(code)
    how = f"was ended by {name}" if code < 0 else f"ended with exit code {code}"
    return Lost("exception", f"ProcessExit-{name}", f"the decoder's process {how}")
