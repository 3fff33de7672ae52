"""What grows with the rounds, or outlives its row: warnings, each with the culprit.

What a decoder holds beyond the least may be its way: a padded batch, a block of slots allocated beforehand. A leak is
what a longer answer makes worse. So growth counts against what a padded batch of the same rows takes, and what is spare
does not count, unless it is several times what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from eqcheck.explanation.notice import Notice
from eqcheck.memory.contents import COPIES, NEEDED, PADS, REJECTED, SPARE, TOKEN, UNREAD, Use

FEWEST = 6  # rounds with the same rows, or growth is not judged
SLOPE = 0.4  # tokens a round, for each row: a draft of three tokens loses more than that where it is kept
RISE = 4.0  # tokens in all
AMPLE = 4.0  # times what is needed: so much may be allocated beforehand
LINGERS = 3  # rounds


def leaks(uses: Sequence[Use], left: Sequence[int]) -> list[Notice]:
    """Warnings about one decode; ``left`` are the bytes still alive after each of several equal decodes."""
    found = list(_growth(uses))
    if not any(warning.kind == "memory/storage-kept" for warning in found):  # which explains what it holds of them
        found += _finished(uses)
    if len(left) > 1 and left[-1] - left[0] >= TOKEN:
        more = f"{_tokens(left[-1] - left[0])} more than after the first"
        said = f"when {len(left)} equal requests were answered, {more} were alive"
        found.append(Notice(said, "memory/kept-after-return"))
    return found


def _growth(uses: Sequence[Use]) -> Iterator[Notice]:
    steady = max((list(some) for _, some in groupby(uses, lambda use: use.rows)), key=len, default=[])
    if len(steady) < FEWEST or not steady[0].rows:
        return
    rows = len(steady[0].rows)
    beyond = _slope([use.held - use.bytes[SPARE] - use.layout for use in steady])
    slopes = {kind: _slope([use.bytes[kind] for use in steady]) for kind in (REJECTED, PADS, COPIES, UNREAD)}
    culprit = max(slopes, key=lambda kind: slopes[kind])
    grown = slopes[culprit] * (len(steady) - 1)
    # A second copy of all that is needed may be a decoder's way; one more with every round is not.
    least = 2 * _slope([use.bytes[NEEDED] for use in steady]) if culprit == COPIES else 0.0
    # In slots allocated beforehand, what is rejected only takes the place of what was spare.
    total = _slope([use.held - use.layout for use in steady])
    if min(beyond, slopes[culprit], total) >= max(SLOPE * rows, least) and grown >= RISE:
        idle = _slope([use.idle[culprit] for use in steady])
        name = "storage-kept" if culprit == COPIES and idle > 0 else _GROWS[culprit]
        said = f"{_WORDS[culprit]} grow by {slopes[culprit]:.1f} tokens a round, with {rows} rows"
        yield Notice(said, f"memory/{name}")
    spare = [use.bytes[SPARE] / max(use.least, 1) for use in steady]
    if spare[-1] > AMPLE and spare[-1] > 1.2 * spare[0]:
        yield Notice(f"spare slots grow to {spare[-1]:.1f} times what is needed", "memory/growth")


_GROWS = {REJECTED: "rejected-kept", PADS: "growth", COPIES: "growth", UNREAD: "growth"}
_WORDS = {
    REJECTED: "rejected draft tokens that stay in memory",
    PADS: "pads",
    COPIES: "second copies of entries",
    UNREAD: "storages whose entries cannot be read",
}


def _finished(uses: Sequence[Use]) -> list[Notice]:
    """Rows that ended and whose entries linger."""
    lingering: dict[int, list[int]] = {}
    for use in uses:
        for row, size in use.finished.items():
            lingering.setdefault(row, []).append(size)
    kept = {row: sizes for row, sizes in lingering.items() if len(sizes) >= LINGERS and sizes[-1] >= 2 * TOKEN}
    if not kept:
        return []
    row = max(kept, key=lambda one: len(kept[one]))
    lasted = f"{_tokens(kept[row][-1])} of row {row}, {len(kept[row])} rounds after it ended"
    return [Notice(f"entries of rows that ended are kept: {lasted}", "memory/finished-row-kept")]


def _slope(sizes: Sequence[npt.ArrayLike]) -> float:
    """How many tokens these bytes grow by in a step, by least squares."""
    values = np.asarray(sizes, np.float64) / TOKEN
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def _tokens(size: int) -> str:
    """Bytes as the tokens of one model that they are good for, in which layers and heads differ less."""
    return f"entries of {size / TOKEN:.0f} tokens ({size:,} bytes)"
