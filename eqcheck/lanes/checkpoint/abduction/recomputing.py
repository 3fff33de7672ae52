"""Engines without a cache: the whole batch, left padded, is fed anew each round, or once for every draft."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.lanes.checkpoint.abduction.evidence import Evidence, Round
from eqcheck.lanes.checkpoint.abduction.program import BLANK, Program
from eqcheck.lanes.checkpoint.abduction.simulation import Edit


def recomputed(evidence: Evidence, style: str, edit: Edit, rounds: Sequence[Round], final: int) -> list[Program]:
    """What each call sees under an edit; ``style`` is ``recomputed``, or ``expanded`` for a row per beginning."""
    programs = []
    inner = [0] * len(evidence.texts)
    for turns in rounds[: final + 1]:
        fed = []  # row, tokens after the committed ones, indices of the new tokens that are asked for
        for turn in turns:
            new = turn.start - len(evidence.prompts[turn.row])
            asked = range(new, new + turn.end - turn.start)
            if style == "expanded":
                fed += [
                    (turn, count, range(new + count, new + count + 1) if new + count in asked else range(0))
                    for count in range(len(turn.drafts) + 1)
                ]
            else:
                fed.append((turn, len(turn.drafts), asked))
        rows = [
            (turn.row, evidence.texts[turn.row][: turn.start] + list(turn.drafts[:count])) for turn, count, _ in fed
        ]
        width = max(len(text) + inner[row] for row, text in rows)
        pads = [width - len(text) - inner[row] for row, text in rows]
        for place, (row, text) in enumerate(rows):
            if fed[place][2]:
                first = (len(rows[0][1]), pads[0], inner[rows[0][0]])
                programs.append(_call(evidence, edit, row, text, pads[place], inner[row], first, fed[place][2]))
        if edit.name == "pads-accumulate":
            lengths = [len(text) for text in evidence.texts]
            for turn in turns:
                lengths[turn.row] = turn.end
            inner = [max(lengths) - length for length in lengths]
    return programs


def _call(
    evidence: Evidence,
    edit: Edit,
    row: int,
    text: Sequence[int],
    pads: int,
    inner: int,
    first: tuple[int, int, int],
    asked: range,
) -> Program:
    """One row of one call. ``first``: length, pads and inner pads of the call's first row."""
    program = Program()
    prompt = len(evidence.prompts[row])
    tokens = [evidence.pad] * pads + [*text[:prompt], *[evidence.pad] * inner, *text[prompt:]]
    real = [False] * pads + [True] * prompt + [False] * inner + [True] * (len(text) - prompt)
    positions, count = [], 0
    for is_real in real:
        count += is_real
        positions.append(max(0, count - 1))
    if edit.name == "another-rows-positions":
        positions = [max(0, column - first[1]) for column in range(len(tokens))]
    if edit.name == "clamped":
        positions = [max(edit.amount, position) for position in positions]
    if edit.name == "pads-seen":
        positions = [p if is_real else edit.amount for p, is_real in zip(positions, real, strict=True)]
    visible = list(real)
    if edit.name in ("pads-seen", "pads-accumulate"):
        visible = [True] * pads if edit.name == "pads-seen" else [False] * pads
        visible += [True] * (len(tokens) - pads)
    if edit.name == "pad-id-hidden":
        visible = [token != evidence.pad for token in tokens]
    if edit.name == "mask-of-another":
        visible = [is_real and column >= first[1] for column, is_real in enumerate(real)]
    columns = [program.write(token, position) for token, position in zip(tokens, positions, strict=True)]
    for query in columns:
        seen = [column for column in columns[: query + 1] if visible[column]]
        program.sees[query] = seen or [program.column(BLANK, BLANK)]
    at = [column for column, is_real in enumerate(real) if is_real]
    for index in asked:
        program.asked[row, index] = at[prompt + index - 1]
    return program
