"""Answers of servers in a file, so that an interrupted gate, or one with too few requests, continues.

The continued gate makes the same calls in the same order. The bets may go on after any stop: their bound holds however
long they run.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

NAME = "answers.ndjson"


class StoredAnswers:
    """Keep the answers of an unfinished gate. ``finish`` removes them, so that a mended server is asked anew.

    A call that is made several times gets its answers in turn. A torn line is skipped. ``count`` is the number of
    answers found at the start. No file is made before the first answer.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / NAME, threading.Lock()
        self._known: dict[str, deque[dict[str, Any]]] = {}
        if self.path.is_file():
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
        self.count = sum(map(len, self._known.values()))
        self._file: IO[str] | None = None

    def _read(self, line: str) -> None:
        try:
            key, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        if isinstance(key, str) and isinstance(answer, dict):
            self._known.setdefault(key, deque()).append(answer)

    def take(self, url: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the next stored answer to a call."""
        with self._lock:
            known = self._known.get(_key(url, body))
            return known.popleft() if known else None

    def put(self, url: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Store an answer."""
        with self._lock:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
                self._file.write("\n" if self._file.tell() else "")  # the last line of an earlier gate may be torn
            self._file.write(f"{json.dumps([_key(url, body), answer])}\n")

    def close(self) -> None:
        """Keep the answers for a later gate."""
        if self._file is not None:
            self._file.close()

    def finish(self) -> None:
        """Remove the answers."""
        self.close()
        self.path.unlink(missing_ok=True)


def _key(url: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()[:32]
