"""The case on which a decoder's memory is measured, and what is said of it: figures, and warnings of leaks.

One case of three rows that draft, accept and reject for a dozen rounds; the first row ends early. It is decoded twice
by one instance of the decoder, so that what is kept after a request shows.

Bytes beyond the least may be a decoder's way: a padded batch, a block of slots allocated beforehand. A leak is
what a longer answer makes worse. So growth counts against what a padded batch of the same rows takes, and what is spare
does not count, unless it is several times what is needed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from eqcheck.contract.decoders import Generate, Request
from eqcheck.contract.requirements import barred, least_prompt, without_ids
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import Notice
from eqcheck.core.result.outcome import Outcome
from eqcheck.transparent.decoding.harness import run, truth_of
from eqcheck.transparent.decoding.run import Run
from eqcheck.transparent.memory.ledger import (
    COPIES,
    KINDS,
    NEEDED,
    PADS,
    REJECTED,
    SPARE,
    TOKEN,
    UNREAD,
    Ledger,
    Use,
    uses,
)
from eqcheck.transparent.oracle.check import judge

NEW, K, VOCABULARY = 40, 3, 128
PROMPTS = (6, 9, 13)
ENDS = (8, 16)  # new tokens after which the first row meets its EOS
REJECTS = (0, 1, 3, 2, 0, 2, 1, 3, 0, 1)  # accepted draft tokens, round by round; each row begins elsewhere


@lru_cache(maxsize=8)
def probe_case(family: str, padding_side: str, requires: tuple[str, ...] = ()) -> Case:
    """The case for decoders of this claim.

    >>> case = probe_case("rotary", "left")
    >>> [len(row) < case.max_new_tokens for row in truth_of(case).rows]
    [True, False, False]
    """
    lengths: Sequence[int] = PROMPTS[1:2] * 3 if "equal-lengths" in requires else PROMPTS
    lengths = lengths[:1] if "batch-1" in requires else lengths
    lengths = [max(length, least_prompt(requires)) for length in lengths]
    accepts = tuple(REJECTS[row * 3 :] + REJECTS * 4 for row in range(len(lengths)))
    for seed in range(100):
        noise = np.random.default_rng(seed)
        case = Case(
            prompts=tuple(
                without_ids(
                    [tuple(noise.integers(0, VOCABULARY, n).tolist()) for n in lengths], barred(requires), VOCABULARY
                )
            ),
            max_new_tokens=NEW,
            num_draft_tokens=K,
            accepts=accepts,
            pad_token_id=VOCABULARY,  # no token of a row is taken for a pad
            padding_side=padding_side,  # type: ignore[arg-type]
            family=family,
            vocab_size=VOCABULARY,
            seed=seed,
        )
        if "no-eos" in requires:
            return case
        first, *others = truth_of(case).rows
        taken = {token for row in (*others, *case.prompts, first[: ENDS[0]]) for token in row}
        if ends := [token for token in first[slice(*ENDS)] if token not in taken]:
            return Case.from_dict({**case.to_dict(), "eos_token_ids": [ends[0]]})
    raise AssertionError("no seed of a hundred has a row that ends early")


def watched(generate: Generate, case: Case, timeout: float | None = None) -> tuple[Run, Ledger]:
    """A decode of a case, and the ledger of its storages."""
    ledger = Ledger()

    def following(target: Any, draft: Any, request: Request) -> Any:
        target.trace.watcher = ledger
        with ledger.following():
            return generate(target, draft, request)

    return run(following, case, timeout), ledger


def try_memory(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode a case twice and measure; ``observed`` has the figures, and is empty where the output is not right."""
    start = time.monotonic()
    done, first = watched(generate, case, timeout)
    verdict = judge(done)
    observed: dict[str, Any] = {}
    if verdict and not done.declined and done.outputs is not None:
        left = [_left(first)]
        again, second = watched(generate, case, timeout)
        left.append(_left(first, second))
        if again.outputs == done.outputs:
            seen = uses(done, first.moments)
            observed = {**figures(seen, first.peak, left), "warnings": leaks(seen, left)}
    return Outcome(case, verdict.status, declined=done.declined, observed=observed, seconds=time.monotonic() - start)


def figures(seen: Sequence[Use], peak: int, left: Sequence[int]) -> dict[str, Any]:
    """The figures of a report, in bytes, and as times the least that is needed.

    ``peak_bytes`` are the most at any instant, ``waste`` the median over the rounds of what is held over the least,
    ``waste_at_peak`` the same in the round that held most, ``split`` the shares of what it held.
    """
    full = [use for use in seen if use.least]
    if not full:
        return {"peak_bytes": peak, "after_return_bytes": left[-1]}
    most = max(full, key=lambda use: (use.held, use.least))
    shares = {kind: round(int(size) / most.held, 4) for kind, size in zip(KINDS, most.bytes, strict=True) if size}
    return {
        "peak_bytes": peak,
        "least_bytes": most.least,
        "waste": round(statistics.median(use.held / use.least for use in full), 3),
        "waste_at_peak": round(most.held / most.least, 3),
        "split": shares,
        "after_return_bytes": left[-1],
    }


def _left(*ledgers: Ledger) -> int:
    """Bytes of these ledgers' storages that are alive; what only waits for the collector does not count."""
    if any(ledger.alive() for ledger in ledgers):
        gc.collect()
    alive: dict[int, int] = {}
    for ledger in ledgers:
        alive |= ledger.addresses()
    return sum(alive.values())


FEWEST = 6  # rounds with the same rows, or growth is not judged
SLOPE = 0.4  # tokens a round, for each row: a draft of three tokens loses more than that where it is kept
RISE = 4.0  # tokens in all
AMPLE = 4.0  # times what is needed: so much may be allocated beforehand
LINGERS = 3  # rounds


def leaks(uses: Sequence[Use], left: Sequence[int]) -> list[Notice]:
    """Warnings about one decode; ``left`` are the bytes still alive after each of several equal decodes."""
    warnings = list(_growth(uses))
    if not any(warning.kind == "memory/storage-kept" for warning in warnings):  # which explains what it holds of them
        warnings += _finished(uses)
    if len(left) > 1 and left[-1] - left[0] >= TOKEN:
        more = f"{_tokens(left[-1] - left[0])} more than after the first"
        said = f"when {len(left)} equal requests were answered, {more} were alive"
        warnings.append(Notice(said, "memory/kept-after-return"))
    return warnings


def _growth(uses: Sequence[Use]) -> Iterator[Notice]:
    steady = max((list(some) for _, some in groupby(uses, lambda use: use.rows)), key=len, default=[])
    if len(steady) < FEWEST or not steady[0].rows:
        return
    rows = len(steady[0].rows)
    beyond = _slope([use.held - use.bytes[SPARE] - use.layout for use in steady])
    slopes = {kind: _slope([use.bytes[kind] for use in steady]) for kind in (REJECTED, PADS, COPIES, UNREAD)}
    culprit = max(slopes, key=lambda kind: slopes[kind])
    grown = slopes[culprit] * (len(steady) - 1)
    # A second copy of everything may be a decoder's way; one more with every round is not.
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
    """Return how many tokens these bytes grow by in a step, by least squares."""
    values = np.asarray(sizes, np.float64) / TOKEN
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def _tokens(size: int) -> str:
    """Bytes as the tokens of one model that they are good for, in which layers and heads differ less."""
    return f"entries of {size / TOKEN:.0f} tokens ({size:,} bytes)"
