"""The part of the self-check about memory: every planted leak is warned of as such, and builds without one are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tabulate import tabulate

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.faults import LEAKS
from eqcheck.catalogue.faults.leaks import KEEPING
from eqcheck.contract.decoders import Decoder
from eqcheck.core.explanation.notice import kind_of
from eqcheck.transparent.memory import probe_case, try_memory


@dataclass(frozen=True)
class MemoryResult:
    """The warnings about the memory of one build, by kind: what was ``expected``, and what was ``found``.

    ``waste`` is what it holds over the least that it needs, in the median of the rounds.
    """

    id: str
    expected: str
    found: tuple[str, ...]
    held_back: bool
    waste: float | None

    @property
    def failure(self) -> str:
        """The failure of the checker, in words; empty without one."""
        if self.found == ((self.expected,) if self.expected else ()):
            return ""
        return f"{self.id}: expected {self.expected or 'no warning'}, got {', '.join(self.found) or 'no warning'}"


def memory_checks() -> list[Callable[[], MemoryResult]]:
    """Every leak, and every build as it is."""
    return [
        *(partial(check_leak, number) for number in range(len(LEAKS))),
        *(partial(check_build, name) for name in BUILDS),
    ]


def check_leak(number: int) -> MemoryResult:
    leak = LEAKS[number]
    return _check(leak.decoder(), leak.fingerprint, leak.held_back)


def check_build(name: str) -> MemoryResult:
    return _check(BUILDS[name].decoder(name), KEEPING.get(name, ""), False)


def _check(decoder: Decoder, expected: str, held_back: bool) -> MemoryResult:
    torch.set_num_threads(1)
    case = probe_case(decoder.families[0], decoder.padding_sides[0], decoder.requires)
    with decoder.running() as generate:
        observed = try_memory(generate, case, 60.0).observed
    found = tuple(dict.fromkeys(map(kind_of, observed["warnings"])))
    return MemoryResult(decoder.name, expected, found, held_back, observed.get("waste"))


def table(results: Sequence[MemoryResult]) -> str:
    """The results as text, one line each."""
    rows = [
        (
            result.id,
            result.expected or "-",
            ", ".join(result.found) or "-",
            "" if result.waste is None else f"{result.waste:.2f}",
            "held back" if result.held_back else "",
        )
        for result in results
    ]
    headers = ("build", "expected of its memory", "warned of", "held over least", "")
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", "left", "right", "left"))
