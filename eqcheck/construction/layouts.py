"""The functions that are built: which heads each layer has, by the name of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eqcheck.construction import llama
from eqcheck.construction.function import BITS, CODES, VOCABULARY, Function, Head, shuffled
from eqcheck.construction.pointers import KEYED, PLAIN, Reads, keyed, plain
from eqcheck.construction.weights import Array

LAYERS, GROUPS = 3, 4

Written = tuple[dict[str, Any], dict[str, Array]]  # a configuration, and weights by name


@dataclass(frozen=True)
class Construction:
    """A built checkpoint: its layers of heads, the architecture that computes them, and its description in a line."""

    layers: Callable[[], Sequence[Sequence[Head]]]
    write: Callable[[Function], Written]
    about: str


def flagged(agreement: float) -> Iterable[int]:
    """The ids after which a draft of this agreement errs: so large a share of all ids."""
    ranges = ((0, CODES), (CODES, VOCABULARY - CODES))
    return [first + i for first, n in ranges for i in shuffled(n, "flagged", first)[: round((1 - agreement) * n)]]


def head(reads: Reads, layer: int, bit: int, window: int | None = None) -> Head:
    """A head with a shuffle of its own."""
    flips = shuffled(BITS, "flips", layer, reads)
    return Head(reads, bit, shuffled(BITS, "order", layer, reads), tuple(bool(n % 2) for n in flips), window)


def full() -> list[list[Head]]:
    """Three layers of 16 pointers: most distances to 64 stand in some layer, and six beyond, to 256.

    By key head, three plain pointers and a keyed one. Its keys carry a bit of their own code.
    """
    layers = []
    for layer in range(LAYERS):
        straight, choosing = PLAIN[layer::LAYERS], KEYED[layer::LAYERS]
        share, bits = len(straight) // GROUPS, shuffled(BITS, "bit", layer)
        layers.append(
            [
                head(reads, layer, bits[group])
                for group in range(GROUPS)
                for reads in (*map(plain, straight[group * share : (group + 1) * share]), keyed(*choosing[group]))
            ]
        )
    return layers


LAYOUTS = {
    "full": Construction(full, llama.llama, "a Llama: full attention, grouped key heads, rotary positions"),
}
