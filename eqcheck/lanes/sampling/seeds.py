"""Whether rows with seeds keep what the decoder promises of them: the same tokens, exactly, where it says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eqcheck.contract import Generate
from eqcheck.lanes.sampling.case import PROMISES, SampledCase
from eqcheck.lanes.sampling.decode import SampledRun, decode
from eqcheck.verdict import Explanation

_OTHER = 0x5EED  # added to the entropy, so that only what has a seed can be the same


def broken(generate: Generate, done: SampledRun, timeout: float | None) -> Explanation | None:
    """The first promise of the case that a seeded row does not keep, as an explanation."""
    case = done.case
    outputs = done.run.outputs
    seeded = [row for row, options in enumerate(case.rows) if options.seed is not None and options.temperature]
    if outputs is None or not seeded:
        return None
    for level, what, other, rows in _trials(case, seeded):
        tried = decode(generate, other, timeout).run.outputs
        if tried is None:
            continue
        for at, row in enumerate(rows):
            if row in seeded and tried[at] != outputs[row]:
                return _explanation(case, row, level, what, outputs[row], tried[at])
    return None


def _trials(case: SampledCase, seeded: list[int]) -> Iterator[tuple[str, str, SampledCase, list[int]]]:
    """A level, what is changed, the changed case, and which row each of its rows was."""
    level = PROMISES.index(case.promise)
    every = list(range(len(case.rows)))
    if level >= 1:
        yield "repeatable", "the same request again", replace(case, entropy=case.entropy ^ _OTHER), every
    if level >= 2:
        turned = every[::-1]
        yield "mates", "the rows in another order", _of(case, turned), turned
        yield "mates", "the row alone", _of(case, seeded[:1]), seeded[:1]
    if level >= 3:
        yield "speculation", "another K", replace(case, num_draft_tokens=case.num_draft_tokens % 4 + 1), every


def _of(case: SampledCase, rows: list[int]) -> SampledCase:
    return replace(
        case,
        prompts=tuple(case.prompts[row] for row in rows),
        rows=tuple(case.rows[row] for row in rows),
        entropy=case.entropy ^ _OTHER,
    )


def _explanation(
    case: SampledCase, row: int, level: str, what: str, first: tuple[int, ...], other: tuple[int, ...]
) -> Explanation:
    same = zip(first, other, strict=False)
    index = next((i for i, (a, b) in enumerate(same) if a != b), min(len(first), len(other)))
    return Explanation(
        "sampling",
        "seed-ignored" if level == "repeatable" else "batch-dependent",
        row=row,
        token_index=index,
        observed=other[index] if index < len(other) else None,
        expected=first[index] if index < len(first) else None,
        detail=f"row {row} has the seed {case.rows[row].seed}, and with {what} it emits other tokens from new token "
        f"{index} on; the decoder promises seeds={case.promise!r}",
        facts={"seed": str(case.rows[row].seed), "changed": what, "promise": case.promise},
        expected_row=first,
        observed_row=other,
        wrong_rows=(row,),
        subject=level if level != "repeatable" else "",
        tied=True,
    )
