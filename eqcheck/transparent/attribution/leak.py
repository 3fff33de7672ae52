"""A request that is right alone and wrong after others: the facts of it, as an explanation.

The state that the decoder keeps from one request to the next is not read. The explanation says only what was tried: the
requests, in order, and the outcome of the last one with and without the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import Leak, SequencedRequest, leak_words
from eqcheck.core.result.outcome import HANG, Outcome
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import LAYERS, MODEL, OTHER_WEIGHTS, POSITION
from eqcheck.transparent.hashlm.trace import TARGET
from eqcheck.transparent.truth.continuation import continue_row


def leaked(case: Case, wrong: Explanation, times: int = 1, stale: bool = False) -> Explanation:
    """The violation of a decoder that answers ``case`` wrongly, and rightly without the earlier requests of the case.

    ``wrong`` explains the wrong answer, ``times`` says how often both were seen. The cause that ``wrong`` names is not
    repeated: it was read as if the last request were alone. ``stale``: after the same requests under its own weights
    the last one is right, so what outlives the requests are weights, or what was computed with them.

    >>> earlier = Case(prompts=((3, 1),), eos_token_ids=(12,))
    >>> wrong = Explanation("bookkeeping", "premature-stop", 0, 1, expected=12, observed=None)
    >>> print(leaked(Case(prompts=((7,),), before=(earlier,)), wrong).detail)
    Alone, the last request is answered correctly.
    After the earlier request it is not: new token 1 of row 0 is missing, it must be 12.
    Earlier request: prompt 3 1; max_new_tokens 4, K = 1, EOS 12, pad id 0, left padding, family rotary
    Last request: prompt 7; max_new_tokens 4, K = 1, no EOS, pad id 0, left padding, family rotary
    """
    changed = any(earlier.weights != case.weights for earlier in case.before)
    earlier_requests = tuple(_sequenced(earlier, changed) for earlier in case.before)
    several = len(wrong.observed_row) > 1  # one token alone may agree by chance
    emitted = stale and several and any(_emits(earlier, case, wrong) for earlier in case.before)
    leak = Leak(wrong, earlier_requests, _sequenced(case, changed), times, stale, emitted)
    statement = "stale-weights" if stale else "right-alone"
    return Explanation(
        "state",
        "stale-weights" if stale else "leaks-from-earlier-request",
        row=wrong.row,
        expected=wrong.expected,
        observed=wrong.observed,
        detail=leak_words(leak),
        facts={"statement": statement, "earlier_requests": len(case.before), "seen": times},
        expected_row=wrong.expected_row,
        observed_row=wrong.observed_row,
        wrong_rows=wrong.wrong_rows,
    )


def of_sequence(outcome: Outcome, known: str = "") -> Outcome:
    """The outcome of a case; what fails after earlier requests is a fault of state, until it is looked into.

    Whether new weights have a part in it is ``known`` from the fingerprint of a case that was looked into before; of
    another one it is taken for granted.
    """
    case = outcome.case
    if not (case.before and outcome.explanation) or outcome.fingerprint == HANG:
        return outcome
    stale = case.unchanging != case and known != "state/leaks-from-earlier-request"
    return replace(outcome, explanation=leaked(case, outcome.explanation, stale=stale))


def with_stale_entries(done: Run, wrong: Explanation) -> Explanation:
    """The explanation of a wrong answer, with the first call of the target that sees what it wrote under other weights.

    Only entries of the transparent target say under which weights they were written.
    """
    for call in done.trace.made(TARGET):
        for layer in range(LAYERS):
            now = call.of_layer(layer)[0]  # layers that do not see the same have slots of their own
            fields = now.kv[min(layer, len(now.kv) - 1)]
            if fields.shape[3] != now.visible.shape[2]:  # a decoder that crops one layer's cache and not the other's
                continue
            seen = now.visible.any(axis=1) & (fields[0, :, 0, :, MODEL] == OTHER_WEIGHTS)
            if seen.any():
                row = int(np.argwhere(seen)[0][0])
                at = fields[0, row, 0, :, POSITION][seen[row]]
                facts: dict[str, int | str] = {
                    "stale_call": call.number,
                    "stale_row": row,
                    "stale_entries": int(seen[row].sum()),
                }
                facts |= {"stale_from": int(at.min()), "stale_to": int(at.max())}
                return replace(wrong, facts=wrong.facts | facts)
    return wrong


def _emits(earlier: Case, case: Case, wrong: Explanation) -> bool:
    """Return whether the wrong row is that of the target that an earlier request had."""
    if wrong.row is None:
        return False
    family, size, seed, _ = earlier.weights
    options = case.options[wrong.row]
    uncut, _ = continue_row(family, size, seed, case.prompts[wrong.row], case.max_new_tokens)
    return earlier.weights != case.weights and options.cut(uncut) == wrong.observed_row


def _sequenced(case: Case, weights: bool) -> SequencedRequest:
    """A request of a sequence; with the seeds of its models, where these differ."""
    _, _, target, draft = case.weights
    return SequencedRequest(
        case.prompts,
        case.max_new_tokens,
        case.num_draft_tokens,
        case.eos_token_ids,
        case.pad_token_id,
        case.padding_side,
        case.family,
        case.cache_state,
        (target, draft) if weights else None,
    )
