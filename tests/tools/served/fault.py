"""The record of a planted fault in a served engine: its mechanism, its component, and the steps that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from served.builds import ENGINES
from served.engine import Engine

# By the name of a step: a function of the right step, its object, and what the step is given.
Steps = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Fault:
    """A planted fault. ``thread`` is where its mechanism was reported, ``own`` where it was not.

    Faults of one ``mechanism`` are variations of one. ``kinds`` are the checkpoints that show it. ``memory`` and
    ``engine`` are steps of the memory and of the engine of its ``build``.
    """

    id: str
    mechanism: str
    build: str
    kinds: tuple[str, ...]
    fingerprint: str
    thread: str
    title: str
    memory: Steps = field(default_factory=dict)
    engine: Steps = field(default_factory=dict)

    @property
    def component(self) -> str:
        return self.fingerprint.partition("/")[0]

    def broken(self) -> type[Engine]:
        """The engine with this fault."""
        right = ENGINES[self.build]
        memory = _with_steps(right.memory, self.memory)
        return type(right.__name__, (_with_steps(right, self.engine),), {"memory": memory})


def _with_steps(whole: type[Any], steps: Steps) -> type[Any]:
    """A class with some of its methods replaced."""
    part: type[Any] = type(whole.__name__, (whole,), {})
    for name, step in steps.items():
        getattr(whole, name)  # or there is no such step
        setattr(part, name, _method(part, name, step))
    return part


def _method(part: type[Any], name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *given: step(getattr(super(part, self), name), self, *given)
