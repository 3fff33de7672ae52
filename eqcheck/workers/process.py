"""A decoder behind a process that is replaced whenever it is lost: what all transports share.

One that crashes, hangs or answers nonsense is ended with all its children; the case is the decoder's failure, and the
next case finds a new process.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from eqcheck.outcome import History, Outcome
from eqcheck.verdict import Explanation, crash


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


def kill_group(pid: int | None) -> None:
    """Kill a process and its children, where it leads a group of its own."""
    with suppress(OSError):
        os.killpg(pid or 0, signal.SIGKILL)


def ended(code: int | None) -> Lost:
    """How a process ended that nobody told to."""
    if code is None:
        return Lost("exception", "ProcessExit", "the decoder closed the pipe of its worker process")
    name = signal.Signals(-code).name if code < 0 else str(code)
    how = f"was ended by {name}" if code < 0 else f"ended with exit code {code}"
    return Lost("exception", f"ProcessExit-{name}", f"the decoder's process {how}")
