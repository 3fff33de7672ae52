"""A decoder in a process of its own, started with any Python: requests and answers cross as JSON lines.

The process serves many cases. One that dies, hangs or answers nonsense is ended with all its children, the case is the
decoder's failure, and the next case finds a new process.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from eqcheck.contract import Decoder
from eqcheck.errors import OutputError, UsageError
from eqcheck.lanes.checkpoint.case import EngineCase
from eqcheck.lanes.checkpoint.checkpoints import VOCAB_SIZE, checkpoint
from eqcheck.plain import one_line, printable
from eqcheck.verdict import Explanation, check_rows

SERVE = Path(__file__).with_name("serve.py")
_SET_UP_S = 300.0  # for an engine to be imported, or to load a checkpoint under new settings
_CLOSE_S = 10.0
_LOG_LINES = 30


@dataclass(frozen=True)
class Answer:
    """What a decoder made of a case: its rows, or how it failed, or why it cannot. ``observed`` is what it counted."""

    outputs: tuple[tuple[int, ...], ...] | None
    observed: Mapping[str, Any] = field(default_factory=dict)
    failure: Explanation | None = None
    unsupported: str = ""
    traceback: str = ""
    seconds: float = 0.0


def environment(decoder: Decoder, python: str | None) -> str:
    """The Python to run a decoder with: the given one, that of the environment it names, or this one.

    Raises `UsageError` where there is none.
    """
    if python:
        program = shutil.which(python)
        if program is None:
            raise UsageError(f"--python {python}: expected the Python of an environment, there is no such program")
        return program
    if not decoder.environment:
        return sys.executable
    places = [Path(base) / f".venv-{decoder.environment}" for base in (Path.cwd(), Path(__file__).resolve().parents[2])]
    for place in places:
        if (place / "bin" / "python").exists():
            return str(place / "bin" / "python")
    raise UsageError(
        f"adapter {decoder.name!r}: it runs in an environment of its own, expected in {places[0]}; "
        "run `make engines` in a clone of eqcheck, or name the Python of such an environment with --python"
    )


class EngineWorker:
    """A decoder behind a process that is replaced whenever it is lost.

    >>> from eqcheck import registry
    >>> from eqcheck.lanes.checkpoint.case import Row
    >>> from eqcheck.contract import RowOptions
    >>> with EngineWorker(registry.load("eqspec"), sys.executable) as worker:
    ...     len(worker.decode(EngineCase((Row((1, 2), RowOptions(4)),))).outputs[0])
    4
    """

    def __init__(self, decoder: Decoder, python: str, timeout: float = 60.0) -> None:
        self.decoder, self.python, self.timeout = decoder, python, timeout
        self.version = ""
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker

    def __enter__(self) -> EngineWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_S)
        self.kill()
        self._log.close()

    def open(self) -> None:
        """Start the process. Raises `UsageError` where the decoder cannot even be set up."""
        try:
            self._start()
        except _Lost as lost:
            text = self._tail()
            self.kill()
            raise UsageError(
                f"adapter {self.decoder.name!r} cannot be set up by {self.python}: {lost.detail}\n{text}".rstrip()
            ) from None

    def decode(self, case: EngineCase) -> Answer:
        """Decode one case; whatever goes wrong with the decoder or its process is in the answer's ``failure``."""
        start = time.monotonic()
        try:
            self._start()
            self._send({"request": self._request(case)})
            message = self._receive(self.timeout)
        except _Lost as lost:
            text = self._tail()
            self.kill()
            return Answer(None, failure=Explanation("crash", lost.kind, detail=lost.detail), traceback=text)
        seconds = time.monotonic() - start
        if "unsupported" in message:
            return Answer(None, unsupported=one_line(str(message["unsupported"])))
        if "error" in message:
            failure = Explanation("crash", "exception", detail=one_line(str(message["error"]).partition("\n")[0]))
            trace = printable(str(message.get("traceback", "")))
            return Answer(None, failure=failure, traceback=trace, seconds=seconds)
        try:
            rows = check_rows(message.get("outputs"), len(case.rows), VOCAB_SIZE)
        except OutputError as error:
            return Answer(
                None, failure=Explanation("crash", "invalid-output", detail=one_line(str(error))), seconds=seconds
            )
        return Answer(rows, message.get("observed", {}), seconds=seconds)

    def kill(self) -> None:
        """End the process and its children at once."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> None:
        if self._process is not None:
            return
        pair = checkpoint()
        command = [self.python, str(SERVE), self.decoder.spec or self.decoder.name, str(pair.target), str(pair.draft)]
        self._log.seek(0)
        self._log.truncate()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        message = self._receive(_SET_UP_S)
        if "error" in message:
            raise _Lost("exception", message["error"].splitlines()[0])
        self.version = one_line(str(message.get("ready", "")), 100)

    def _request(self, case: EngineCase) -> dict[str, Any]:
        request = asdict(replace(case.request(), padding_side=self.decoder.padding_sides[0]))
        return {name: value for name, value in request.items() if name not in ("target_cache", "draft_cache")}

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost() from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise _Lost("hang", f"no answer within {seconds:g} s") from None
        if line is None:
            raise self._lost()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise _Lost("invalid-output", f"line: expected a JSON object, got {line[:80]!r}")
        return message

    def _lost(self) -> _Lost:
        assert self._process is not None
        try:
            code = self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            return _Lost("exception", "ProcessExit: the decoder closed the pipe of its worker process")
        name = signal.Signals(-code).name if code < 0 else str(code)
        return _Lost("exception", f"ProcessExit-{name}: the decoder's process ended ({name})")

    def _tail(self) -> str:
        """The last lines the process wrote to standard error."""
        self._log.seek(0)
        return printable(b"\n".join(self._log.read().splitlines()[-_LOG_LINES:]).decode(errors="replace")) + "\n"


class _Lost(Exception):
    """The process is gone, or has to go."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail


def _read(pipe: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with suppress(ValueError):  # the pipe is closed under us when the process is killed
        for line in pipe:
            lines.put(line)
    lines.put(None)
