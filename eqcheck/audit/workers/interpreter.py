"""A decoder in a process of its own, started with any Python: requests and answers cross as JSON lines."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from eqcheck.audit.workers.worker import Lost, ProcessWorker, child_environment, group_cpu_s, guard_group
from eqcheck.contract.decoders import SETTINGS, Decoder
from eqcheck.contract.errors import UsageError, one_line, printable
from eqcheck.contract.profiles import LOADING
from eqcheck.core.explanation.records import crash
from eqcheck.core.result.outcome import HANGS_TO_GIVE_UP, Outcome

SERVE = Path(__file__).with_name("serve.py")
_SET_UP_S = 300.0  # for an engine to be imported
_TOLD_AFTER_S = 5.0  # of loading
_CLOSE_S = 10.0
_LOG_LINES = 30
_PLACE = re.compile(r"[\w-]+\.(?:c|cc|cpp|cu|h|hpp|py|rs):\d+")  # where in its source an engine says it failed

Ask = Callable[[Any], Mapping[str, Any]]  # a case as the request that crosses
Judge = Callable[[Any, Mapping[str, Any]], Outcome]  # a case, and the message that answers for it
Folders = Callable[[Any], tuple[Path, Path]]  # of a case, the folders of target and draft


def environment(decoder: Decoder, python: str | None) -> str:
    """The Python to run a decoder with: the given one, that of its environment, or this one, which may have the engine.

    Raises `UsageError` where there is none.
    """
    if python:
        program = shutil.which(python)
        if program is None:
            raise UsageError(f"--python {python}: expected the Python of an environment, there is no such program")
        return program
    if not decoder.environment:
        return sys.executable
    places = [Path(base) / f".venv-{decoder.environment}" for base in (Path.cwd(), Path(__file__).resolve().parents[3])]
    for place in places:
        if (place / "bin" / "python").exists():
            return str(place / "bin" / "python")
    if find_spec(decoder.environment):  # the engine lies beside eqcheck, as in its own CI
        return sys.executable
    raise UsageError(
        f"adapter {decoder.name!r}: it runs in an environment of its own, expected in {places[0]}; "
        "run `make engines` in a clone of eqcheck, or name the Python of such an environment with --python"
    )


class InterpreterWorker(ProcessWorker):
    """A decoder in a process that ``python`` runs, with the folders of a case; ``judge`` judges here what it answers.

    >>> from eqcheck.contract import registry
    >>> from eqcheck.core.case.engine import EngineCase, EngineRow
    >>> from eqcheck.engines.lane import worker
    >>> from eqcheck.contract.decoders import RowOptions
    >>> with worker(registry.load("eqspec"), sys.executable) as spawned:
    ...     spawned.try_case(EngineCase((EngineRow((1, 2), RowOptions(4)),))).status
    'equivalent'

    A checkpoint is loaded before the time of a case begins; ``on_loading`` is called with its name if that takes long.
    ``on_loaded`` is called with the seconds that the first start of the process took, or a checkpoint with settings
    that are new: an engine that has to start again because it crashed takes of the time of the audit.
    """

    def __init__(self, decoder: Decoder, python: str, folders: Folders, ask: Ask, judge: Judge, timeout: float) -> None:
        super().__init__(timeout)
        self.decoder, self.python = decoder, python
        self._folders, self._ask, self._judge = folders, ask, judge
        self.on_loading: Callable[[str], None] = lambda name: None
        self.on_loaded: Callable[[float], None] = lambda seconds: None
        self._loads = self._renews = False
        self._refused: dict[tuple[object, ...], str] = {}  # why nothing is loaded, by folders and settings
        self._loaded = set[tuple[object, ...]]()  # folders and settings, of this process or of one before it
        self._stuck = 0  # times that loading did not end
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self._log.close()

    def open(self) -> None:
        """Start the process. Raises `UsageError` where the decoder cannot even be set up."""
        try:
            self.begin()
        except Lost as lost:
            text = self.last_words()
            self.kill()
            raise UsageError(
                f"adapter {self.decoder.name!r} cannot be set up by {self.python}: "
                f"{lost.explanation.detail}\n{text}".rstrip()
            ) from None

    def start(self) -> None:
        command, begun = [self.python, str(SERVE), self.decoder.spec or self.decoder.name], time.monotonic()
        self._log.seek(0)
        self._log.truncate()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env=child_environment(OMP_NUM_THREADS="1", PYTHONSAFEPATH="1"),
        )
        guard_group(self._process.pid)
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        message = self._receive(_SET_UP_S)
        if "error" in message:
            raise Lost("exception", str(message["error"]), _first_line(message))
        self.version = one_line(str(message.get("ready", "")), 100)
        self._loads, self._renews = bool(message.get("loads")), bool(message.get("renews"))
        self._tell_loaded((), begun)

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of the process that decodes now, with its children."""
        process = self._process
        return group_cpu_s(process.pid) if process is not None else 0.0

    def renew(self) -> bool:
        """Have the decoder forget what it decoded, if it says that it can; else the next case finds a new process."""
        renewed = False
        if self._process is not None and self._renews:
            with suppress(OSError, Lost):
                self._send({"renew": True})
                renewed = bool(self._receive(_CLOSE_S).get("renewed"))
        if renewed:
            self.log = []
        else:
            self.kill()
        return True

    def stop(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._process.stdin.close()
            self.exit_code(self._process, _CLOSE_S)
        self.kill()

    def exit_code(self, process: subprocess.Popen[str], seconds: float | None) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def hang_up(self, process: Any) -> None:
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError, AttributeError):
                pipe.close()

    def begin(self) -> None:
        if not self._given_up():
            super().begin()

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Mapping[str, Any]:
        request = self._ask(case)
        folders = list(map(str, self._folders(case)))
        settings = (*folders, *(request.get(name) for name in SETTINGS))
        if self._loads and (why := self._refused.get(settings) or self._given_up()):
            return {"unsupported": why}
        sent = {"folders": folders, "request": request, "entropy": getattr(case, "entropy", None)}
        try:
            self._send(sent)
        except OSError:
            raise self.lost(_CLOSE_S) from None
        if self._loads and (why := self._not_loaded(case.checkpoint, settings)):
            self._refused[settings] = why
            return {"unsupported": why}
        return self._receive(timeout)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _tell_loaded(self, settings: tuple[object, ...], begun: float) -> None:
        """Tell how long a start took, or a checkpoint, that was never loaded before."""
        if settings not in self._loaded:
            self._loaded.add(settings)
            self.on_loaded(time.monotonic() - begun)

    def _not_loaded(self, name: str, settings: tuple[object, ...]) -> str:
        """Return why a checkpoint is not loaded; empty as soon as it is."""
        begun = time.monotonic()
        told = threading.Timer(_TOLD_AFTER_S, self.on_loading, (name,))
        told.daemon = True
        told.start()
        try:
            message = self._receive(self._loading_s)
        except Lost as lost:
            self.kill()
            if lost.explanation.kind != "hang":
                return f"{lost.explanation.detail} while it loaded the checkpoint"
            self._stuck += 1
            return f"the engine did not load the checkpoint within {self._loading_s:g} s"
        finally:
            told.cancel()
            self._tell_loaded(settings, begun)
        if "error" in message:
            return f"the engine does not load the checkpoint: {one_line(str(message['error']))}: {_first_line(message)}"
        return one_line(str(message.get("unsupported", "")))

    @property
    def _loading_s(self) -> float:
        return max(LOADING, self.timeout)

    def _given_up(self) -> str:
        """Return why nothing is loaded any more; empty while it is."""
        hung = f"the engine did not load a checkpoint within {self._loading_s:g} s, {self._stuck} times"
        return hung if self._stuck >= HANGS_TO_GIVE_UP else ""

    def judge(self, case: Any, answer: Mapping[str, Any]) -> Outcome:
        if "unsupported" in answer:
            return Outcome(case, "skipped", declined=one_line(str(answer["unsupported"])))
        if "error" in answer:
            place = _PLACE.search(str(answer.get("message", "")))
            kind = one_line(str(answer["error"]))
            subject = f"{kind} at {place[0]}" if place else kind
            if switch := getattr(case, "switch", None):  # another fault than that of another switch
                subject += f" with {switch}"
            failure = crash("exception", subject, _first_line(answer))
            trace = printable(str(answer.get("traceback", "")))
            return Outcome(case, "violation", explanation=failure, traceback=trace)
        return self._judge(case, answer)

    def _receive(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise Lost("hang", "", f"no answer within {seconds:g} s") from None
        if line is None:
            raise self.lost(_CLOSE_S)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Lost("invalid-output", "line", f"expected a JSON object, got {line[:80]!r}")
        return message

    def last_words(self) -> str:
        """The last lines the process wrote to standard error."""
        self._log.seek(0)
        return printable(b"\n".join(self._log.read().splitlines()[-_LOG_LINES:]).decode(errors="replace")) + "\n"


def _first_line(answer: Mapping[str, Any]) -> str:
    """The first line of the message of an exception that was answered."""
    return one_line(next(iter(str(answer.get("message", "")).splitlines()), ""))


def _read(pipe: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with suppress(ValueError):  # the pipe is closed under us when the process is killed
        for line in pipe:
            lines.put(line)
    lines.put(None)
