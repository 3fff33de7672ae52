"""Which slots a forward wrote where no cache was told: in tensors of a decoder's own.

What it wrote is among the keys that attention was handed, in the order of the columns. Bytes that were not seen before
are new. A column may also have written what is known already: the same token at the same place after the same text, as
in rows that have ended and are fed all the same. Then the new slots are fewer than the columns. Those that lack lie in
one run with them, and hold the tokens that were fed.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.hashlm.hashing import Bools
from eqcheck.real.provenance import Provenance, is_filler

Part = tuple[int, int, list[bytes], Bools]  # the layer, K or V, by slot its bytes, what the queries may see


def written(tokens: Sequence[int], parts: Sequence[Part], role: int, provenance: Provenance) -> list[list[int]]:
    """For each part of a row's entries the slots that the row's ``tokens`` were written to, in their order.

    A part is K or V of a layer: of one head the bytes by slot, and what the queries may see, ``[block, slots]``.
    """
    new = [
        [at for at, data in enumerate(held) if not (is_filler(data) or provenance.knows(layer, role, data, kind))]
        for layer, kind, held, _ in parts
    ]
    whole = [slots for slots in new if len(slots) == len(tokens)]
    found = []
    for slots, (layer, kind, held, visible) in zip(new, parts, strict=True):
        if len(slots) == len(tokens):
            found.append(slots)
        elif fitting := [one for one in whole if set(slots) <= set(one) and one[-1] < len(held)]:
            found.append(fitting[0])
        else:
            known = [() if at in slots else provenance.tokens(layer, role, one, kind) for at, one in enumerate(held)]
            found.append(_run(tokens, slots, known, visible))
    return found


def _run(tokens: Sequence[int], new: list[int], known: Sequence[Sequence[int]], visible: Bools) -> list[int]:
    """The run of slots with all that are ``new`` in which the others hold the tokens; the last slots where none is.

    Of several the one in which most queries see their own slot last.
    """
    block, count = len(tokens), len(known)
    runs = [range(start, start + block) for start in range(count - block + 1)]
    fitting = [
        run
        for run in runs
        if set(new) <= set(run) and all(at in new or fed in known[at] for at, fed in zip(run, tokens, strict=True))
    ]

    def rank(run: range) -> tuple[int, int, int]:
        last = sum(bool(visible[c, at]) and not visible[c, at + 1 :].any() for c, at in enumerate(run))
        return last, sum(bool(visible[c, at]) for c, at in enumerate(run)), run.start

    best = max(fitting, key=rank, default=range(count - block, count))
    return list(best)
