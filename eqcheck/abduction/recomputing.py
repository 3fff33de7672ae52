"""Engines without a cache: the whole batch, left padded, is fed anew each round, or once for every draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from eqcheck.abduction.batch import Applied
from eqcheck.abduction.evidence import Evidence, Round, Turn
from eqcheck.abduction.program import BLANK, Program


@dataclass(frozen=True)
class EditedRow:
    """One row of one call: its columns' ``tokens``, which of them are ``real``.

    ``pads`` stand before it; ``first_pads`` is the padding of the call's first row.
    """

    row: int
    tokens: list[int]
    real: list[bool]
    pads: int
    first_pads: int


def _counted(row: EditedRow, applied: Applied) -> list[int]:
    counts = accumulate(row.real)
    return [max(0, count - 1) for count in counts]


def _real(row: EditedRow, applied: Applied, pad: int) -> list[bool]:
    return row.real


def _pads_at(row: EditedRow, applied: Applied) -> list[int]:
    right = zip(_counted(row, applied), row.real, strict=True)
    return [position if is_real else applied.amount for position, is_real in right]


@dataclass(frozen=True)
class Recomputation:
    """What an edit changes in a call: positions, what the mask shows, or where pads stay. The defaults are right."""

    positions: Callable[[EditedRow, Applied], list[int]] = _counted
    visible: Callable[[EditedRow, Applied, int], list[bool]] = _real
    accumulates: bool = False


CHANGES = {
    "another-rows-positions": Recomputation(
        positions=lambda row, applied: [max(0, column - row.first_pads) for column in range(len(row.tokens))]
    ),
    "pads-seen": Recomputation(positions=_pads_at, visible=lambda row, applied, pad: [True] * len(row.tokens)),
    "pads-accumulate": Recomputation(
        visible=lambda row, applied, pad: [column >= row.pads for column in range(len(row.tokens))], accumulates=True
    ),
    "pad-id-hidden": Recomputation(visible=lambda row, applied, pad: [token != pad for token in row.tokens]),
    "mask-of-another": Recomputation(
        visible=lambda row, applied, pad: [r and column >= row.first_pads for column, r in enumerate(row.real)]
    ),
}


def recomputed(evidence: Evidence, style: str, applied: Applied, rounds: Sequence[Round], final: int) -> list[Program]:
    """What each call sees under an edit; ``style`` is ``recomputed``, or ``expanded`` for a row per beginning."""
    programs = []
    change = CHANGES[applied.id]
    inner = [0] * len(evidence.texts)
    for turns in rounds[: final + 1]:
        if style == "expanded":
            fed = [(turn, count) for turn in turns for count in range(len(turn.drafts) + 1)]
        else:
            fed = [(turn, len(turn.drafts)) for turn in turns]
        lengths = [turn.start + count + inner[turn.row] for turn, count in fed]
        pads = [max(lengths) - length for length in lengths]
        for (turn, count), here in zip(fed, pads, strict=True):
            new = range(turn.end - turn.start)  # the draft tokens behind which one is asked for
            positions = [count] * (count in new) if style == "expanded" else list(new)
            if positions:
                row = _row(evidence, turn, count, here, inner[turn.row], pads[0])
                programs.append(_program(evidence, change, applied, row, [turn.start + number for number in positions]))
        if change.accumulates:
            ends = [len(text) for text in evidence.texts]
            for turn in turns:
                ends[turn.row] = turn.end
            inner = [max(ends) - end for end in ends]
    return programs


def _row(evidence: Evidence, turn: Turn, count: int, pads: int, inner: int, first_pads: int) -> EditedRow:
    text = evidence.texts[turn.row][: turn.start] + list(turn.drafts[:count])
    prompt = len(evidence.prompts[turn.row])
    tokens = [evidence.pad] * pads + [*text[:prompt], *[evidence.pad] * inner, *text[prompt:]]
    real = [False] * pads + [True] * prompt + [False] * inner + [True] * (len(text) - prompt)
    return EditedRow(turn.row, tokens, real, pads, first_pads)


def _program(
    evidence: Evidence, change: Recomputation, applied: Applied, row: EditedRow, positions: Sequence[int]
) -> Program:
    """The program of a row; ``positions`` are the logical positions of the new tokens that it is asked for."""
    program = Program()
    visible = change.visible(row, applied, evidence.pad)
    columns = [program.write(t, p) for t, p in zip(row.tokens, change.positions(row, applied), strict=True)]
    for query in columns:
        seen = [column for column in columns[: query + 1] if visible[column]]
        program.sees[query] = seen or [program.column(BLANK, BLANK)]
    at = [column for column, is_real in enumerate(row.real) if is_real]
    for position in positions:
        program.queries[row.row, position - len(evidence.prompts[row.row])] = at[position - 1]
    return program
