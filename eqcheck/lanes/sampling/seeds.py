"""Check that rows with seeds repeat as the decoder promises, and that rows without one do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqcheck.case.sampling import PROMISES
from eqcheck.explanation.records import Explanation
from eqcheck.lanes.sampling.decode import SampledRun
from eqcheck.result.verdict import common_start

Outputs = Sequence[tuple[int, ...]]
Decode = Callable[[Any], Outputs | None]
_OTHER = 0x5EED  # added to the entropy, so that only what has a seed can be the same
_AGAIN_IN = 16  # cases, one is decoded again
_HARDLY = 30.0  # nats: what a right decoder repeats by chance once in 10^13 times


def repeated(done: SampledRun, decode: Decode) -> Explanation | None:
    """Return whether rows without a seed emit the same again, with other random numbers, which is hardly possible.

    Only some of the cases are decoded again; which, their entropy says.
    """
    case, outputs = done.case, done.run.outputs
    free = {number: row for number, row in done.rows.items() if row.seed is None}
    likely = [row.p[t, token] for row in free.values() for t, token in enumerate(row.tokens)]
    if outputs is None or case.entropy % _AGAIN_IN or 0 in likely or -np.log(likely).sum() < _HARDLY:
        return None
    again = decode(replace(case, entropy=case.entropy ^ _OTHER))
    if again is None or any(again[number] != outputs[number] for number in free):
        return None
    return Explanation(
        "sampling",
        "shared-noise",
        row=min(free),
        detail=f"the same request with fresh random numbers returns the same {len(likely)} tokens again in its rows "
        "without a seed: requests share random numbers",
        observed_row=outputs[min(free)],
        wrong_rows=tuple(free),
        subject="requests",
        tied=True,
    )


def broken(
    case: Any,
    outputs: Outputs | None,
    decode: Decode,
    excused: Callable[[Explanation], bool] = lambda _: False,
) -> Explanation | None:
    """The first promise of the case that a seeded row does not keep, unless it is ``excused``."""
    seeded = case.seeded
    if not outputs or not seeded:
        return None
    for level, what, first, other, rows in trials(case, seeded):
        known = [outputs[row] for row in rows] if first is None else decode(first)
        tried = decode(other)
        if known is None or tried is None:
            continue
        for row, was, now in zip(rows, known, tried, strict=True):
            if row in seeded and now != was and not excused(read := _broken(case, row, level, what, was, now)):
                return read
    return None


def trials(case: Any, seeded: Sequence[int]) -> Iterator[tuple[str, str, Any, Any, list[int]]]:
    """A level of the promise, what is changed, two cases whose rows are to agree, and which row each of theirs was.

    The first case is None where it is the one that was decoded.
    """
    level = PROMISES.index(case.promise)
    every, alone = list(range(len(case.rows))), list(seeded[:1])
    again = replace(case, entropy=case.entropy ^ _OTHER)
    # Rows without a seed come out otherwise the second time. Whether a row heeds its seed shows without them.
    if case.seeded == case.sampled:
        yield "repeatable", "the same request again", None, again, every
    elif level >= 2:
        yield "repeatable", "the request alone again", case.of(alone), again.of(alone), alone
    if level >= 2:
        yield "mates", "the requests in another order", None, again.of(every[::-1]), every[::-1]
        yield "mates", "the request alone", None, again.of(alone), alone
    if level >= 3:
        yield "speculation", "another K", None, replace(again, num_draft_tokens=case.num_draft_tokens % 4 + 1), every


def _broken(case: Any, row: int, level: str, what: str, first: tuple[int, ...], other: tuple[int, ...]) -> Explanation:
    """The promise that a row does not keep: ``first`` is what it emitted, ``other`` what it did after a change."""
    seed, index = case.options[row].seed, common_start(first, other)
    read = Explanation(
        "sampling",
        "seed-ignored" if level == "repeatable" else "batch-dependent",
        row=row,
        token_index=index,
        observed=other[index] if index < len(other) else None,
        expected=first[index] if index < len(first) else None,
        facts={"seed": str(seed), "changed": what, "promise": case.promise},
        expected_row=first,
        observed_row=other,
        wrong_rows=(row,),
        given=case.given(row),
        subject=level if level != "repeatable" else "",
        tied=True,
    )
    emits = f"request {row} has seed {seed}, but with {what} it returns other tokens from new token {index} on"
    return read.saying(emits, f"the adapter declares seeds={case.promise!r}")
