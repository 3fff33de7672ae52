"""A clock that a test sets: what a budget leaves is counted, however fast the machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

import pytest


@dataclass
class Clock:
    """Stands for the module `time` where it is put."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        """As much as went by: this machine is never busy with anything else."""
        return self.now

    def perf_counter(self) -> float:
        """Later each time: who waits for a moment comes to it."""
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def put(self, patched: pytest.MonkeyPatch, modules: Iterable[str]) -> Clock:
        """Have these modules, of eqcheck or of the benchmarks, read this clock."""
        for name in modules:
            patched.setattr(import_module(name if name.startswith("benchmarks.") else f"eqcheck.{name}"), "time", self)
        return self

    def charge(self, patched: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> Clock:
        """Have each call of a function take so many seconds of this clock."""
        call: Callable[..., Any] = getattr(owner, name)

        @wraps(call)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return call(*args, **kwargs)

        patched.setattr(owner, name, charged)
        return self


TRANSPARENT = (
    "audit.loop",
    "audit.time_budget",
    "audit.lane",
    *(f"transparent.{name}" for name in ("coverage", "sequences")),
    "core.shrinking.reducer",
)
CHECKPOINT = (
    "audit.loop",
    "audit.time_budget",
    "audit.lane",
    *(f"sampling.{name}" for name in ("engine_target", "judge", "lane")),
    "core.shrinking.reducer",
)
