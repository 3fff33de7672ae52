"""Answers of servers in a file, so that a gate goes on that was broken off, or that asked too few requests.

It asks the same again, in order. The bets may go on after any stop: their bound holds however long they run.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "answers.ndjson"


class StoredAnswers:
    """The answers of a gate that is not at its end. ``finish`` removes them: servers that were mended are asked anew.

    A call that is made several times has its answers in turn. A line that was torn is left out. ``count`` is how many
    answers there were at the begin.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / NAME, threading.Lock()
        self._known: dict[str, deque[dict[str, Any]]] = {}
        if self.path.is_file():
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
        self.count = sum(map(len, self._known.values()))
        self._file = self.path.open("a", encoding="utf-8")
        self._file.write("\n")  # behind a line that was torn

    def _read(self, line: str) -> None:
        try:
            key, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        if isinstance(key, str) and isinstance(answer, dict):
            self._known.setdefault(key, deque()).append(answer)

    def take(self, url: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next stored answer to a call."""
        with self._lock:
            known = self._known.get(_key(url, body))
            return known.popleft() if known else None

    def put(self, url: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Store an answer."""
        with self._lock:
            self._file.write(f"{json.dumps([_key(url, body), answer])}\n")

    def close(self) -> None:
        """Keep the answers for a later gate."""
        self._file.close()

    def finish(self) -> None:
        """Remove the answers."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _key(url: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()[:32]
