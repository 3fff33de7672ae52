"""The function that a built checkpoint computes, in integers: the next token is made from codes that pointers read.

Each token has a code of `BITS` bits. Layer by layer the code of a place is joined, by exclusive or, with codes of
earlier places that its heads read, each shuffled by a table of the head. So every code that a layer reads changes the
layer's own code, and the order of the places matters. The code of the last layer names the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import sha256

from eqcheck.engines.construction.pointers import POSITIONS, ROTARY, Reads, Rotation

BITS = 8
CODES = 2**BITS
ATTENTION, INPUTS, MEMORY = "attention", "inputs", "memory"
VOCABULARY = CODES + 64  # ids behind the codes are never emitted: room for special tokens


def shuffled(count: int, *key: object) -> tuple[int, ...]:
    """The numbers below ``count`` in an order that the key alone decides, on every machine.

    >>> shuffled(5, "an example")
    (3, 1, 4, 2, 0)
    """
    return tuple(sorted(range(count), key=lambda i: sha256(repr((*key, i)).encode()).digest()))


@dataclass(frozen=True)
class Head:
    """A head: it reads one earlier code, or none, and joins it in, shuffled.

    ``reads`` are tried in turn; a read with the sign 1 asks that bit ``bit`` of the code there is set. A slot
    ``window`` or more tokens away is not seen. Bit ``b`` of the shuffled code is bit ``order[b]`` of the code, flipped
    if ``flips[b]``. A head with a score of a ``sink`` leaves its attention there, unless a slot scores more: none but
    its first read does, if it is ``choosing``. Scores are those of the reads, or of ``scored``: with a cap several read
    alike, so two heads that are scored alike make one.
    """

    reads: Reads
    bit: int
    order: tuple[int, ...]
    flips: tuple[bool, ...]
    window: int | None = None
    sink: float | None = None
    choosing: bool = False
    scored: Reads = ()

    @property
    def behind(self) -> Reads:
        """The reads without those that score less than a sink, or stand behind the query's own place.

        A right context does not have places behind.
        """
        return tuple(read for read in self.reads[: 1 if self.choosing else None] if read[0] >= 0)

    @cached_property
    def table(self) -> tuple[int, ...]:
        """Return the shuffled code by code."""
        return tuple(
            sum(((code >> self.order[b] & 1) ^ self.flips[b]) << b for b in range(BITS)) for code in range(CODES)
        )


@dataclass(frozen=True)
class DeltaRule:
    """A head with a memory by class: it keeps the last code for each class, and joins in one of them, shuffled.

    At each token it keeps, for the class that the bits ``key`` of a code have, a code; each stands the given distance
    back (`key_distance`, `value_distance`). Then it reads what it keeps for the class that the bits ``query`` of the
    token's own code have: nothing for a class that never came. With ``writing`` a token only writes if that bit of its
    code is set; a token whose bits ``forgetting`` are all set empties the memory first.
    """

    key: tuple[int, ...]
    query: tuple[int, ...]
    key_distance: int
    value_distance: int
    order: tuple[int, ...]
    flips: tuple[bool, ...]
    writing: int | None = None
    forgetting: tuple[int, ...] = ()

    @cached_property
    def table(self) -> tuple[int, ...]:
        """Return the shuffled code by code."""
        return Head((), 0, self.order, self.flips).table

    def joined(self, kept: dict[int, int], codes: Sequence[int]) -> int:
        """The code that it joins in after the last of some codes; ``kept`` is brought up to date."""
        code = codes[-1]
        if self.forgetting and all(code >> bit & 1 for bit in self.forgetting):
            kept.clear()
        if len(codes) > self.key_distance and (self.writing is None or code >> self.writing & 1):
            kind = _patterns(self.key)[codes[-1 - self.key_distance]]
            if len(codes) > self.value_distance:
                kept[kind] = self.table[codes[-1 - self.value_distance]]
            else:
                kept.pop(kind, None)  # a value from before the beginning is 0, as if the class had never come
        return kept.get(_patterns(self.query)[code], 0)

    def reader(self) -> Callable[[Sequence[int]], int]:
        """Called with all codes of a text after each of them, it returns the code that it joins in."""
        return partial(self.joined, {})


@cache
def _patterns(bits: tuple[int, ...]) -> tuple[int, ...]:
    """Return by code the number that some of its bits make."""
    return tuple(sum((code >> bit & 1) << place for place, bit in enumerate(bits)) for code in range(CODES))


class Function:
    """The exact function of a checkpoint, from the token ids before a place to the id there.

    ``flagged`` ids make a draft err: after one of them the lowest bit of the last code is flipped. ``rotation`` has the
    scores of its pointers. Logits are cut off at the ``cap``, if there is one.

    >>> from eqcheck.checkpoints import built
    >>> function = built("full").function
    >>> function.emitted([1, 2, 3], 2) == [function.next([1, 2, 3]), function.next([1, 2, 3, function.next([1, 2, 3])])]
    True
    """

    def __init__(
        self,
        layers: Sequence[Sequence[Head | DeltaRule]],
        flagged: Iterable[int] = (),
        rotation: Rotation = ROTARY,
        cap: float | None = None,
    ) -> None:
        self.layers = tuple(tuple(head for head in layer if isinstance(head, Head)) for layer in layers)
        self.rules = tuple(tuple(head for head in layer if isinstance(head, DeltaRule)) for layer in layers)
        self.flagged, self.rotation, self.cap = frozenset(flagged), rotation, cap
        self.codes_in = (
            *shuffled(CODES, "codes in"),
            *(i % CODES for i in shuffled(VOCABULARY - CODES, "special ids")),
        )
        self.tokens_out = shuffled(CODES, "tokens out")  # by code, the token that it names
        self._heads = [[(head.behind, head.bit, head.table, head.window) for head in layer] for layer in self.layers]

    @property
    def field(self) -> int:
        """The function looks at no more than so many tokens, the last one counted: at all of them with a memory."""
        if any(self.rules):
            return POSITIONS
        return 1 + sum(max(d for head in layer for d, _ in head.reads) for layer in self.layers)

    def joined(self, layer: int) -> int:
        """Return how many codes the layer joins in."""
        return len(self.layers[layer]) + len(self.rules[layer])

    @property
    def recurrent(self) -> bool:
        """Return whether a layer has a state in place of slots: none of its heads sees the query's own place."""
        return any(kind != ATTENTION for kind, _ in self.parts)

    @property
    def parts(self) -> dict[tuple[str, int], int]:
        """The parts by kind and number of layer, with the window of attention: 0 where there is none.

        A layer with a state has `INPUTS` of a convolution, and what it remembers (`MEMORY`) where it has rules.
        """
        parts: dict[tuple[str, int], int] = {}
        for number, (heads, rules) in enumerate(zip(self.layers, self.rules, strict=True)):
            if any((0, 0) in head.reads for head in heads):
                parts[ATTENTION, number] = heads[0].window or 0
            else:
                parts |= {(kind, number): 0 for kind in (INPUTS, MEMORY) if rules or kind == INPUTS}
        return parts

    def next(self, ids: Sequence[int]) -> int:
        """The token after these ids, at least one."""
        return self.choices(ids[-self.field :])[-1]

    def reader(self) -> Callable[[int], int]:
        """Called with the ids of a text, one after the other, it returns the token after each."""
        codes: list[list[int]] = [[] for _ in range(len(self.layers) + 1)]
        return partial(self._append, codes, [[rule.reader() for rule in layer] for layer in self.rules])

    def choices(self, ids: Sequence[int]) -> list[int]:
        """The token after each beginning of the ids."""
        return list(map(self.reader(), ids))

    def emitted(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the next ``count`` tokens, each chosen after those before it."""
        read = self.reader()
        *_, token = map(read, ids)
        tokens = [token]
        while len(tokens) < count:
            tokens.append(read(tokens[-1]))
        return tokens

    def _append(self, codes: list[list[int]], memories: list[list[Callable[[Sequence[int]], int]]], token: int) -> int:
        """Add a token's codes, layer by layer; returns the next token."""
        code = self.codes_in[token]
        for heads, memory, before in zip(self._heads, memories, codes, strict=False):
            before.append(code)
            last = len(before) - 1
            for reads, bit, table, window in heads:
                for distance, sign in reads:
                    if (
                        distance > last
                        or (window and distance >= window)
                        or (sign and not before[last - distance] >> bit & 1)
                    ):
                        continue
                    code ^= table[before[last - distance]]
                    break
            for read in memory:
                code ^= read(before)
        codes[-1].append(code)
        named: int = self.tokens_out[code ^ int(token in self.flagged)]
        return named
