"""The case on which a decoder's memory is measured, and what is said of it.

One case of three rows that draft, accept and reject for a dozen rounds; the first row ends early. It is decoded twice
by one instance of the decoder, so that what is kept after a request shows.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from eqcheck.case.record import Case
from eqcheck.contract.decoder import Generate, Request
from eqcheck.contract.requirements import barred, without_ids
from eqcheck.decoding.harness import run, truth_of
from eqcheck.decoding.run import Run
from eqcheck.memory.contents import KINDS, Use, uses
from eqcheck.memory.leaks import leaks
from eqcheck.memory.ledger import Ledger
from eqcheck.oracle.check import judge
from eqcheck.result.outcome import Outcome

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
    """Decode a case twice and measure; the figures are in ``observed``, nothing where the output is not right."""
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
    """What a report says, in bytes, and as times the least that is needed.

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
