"""A request that is right alone and wrong after others: the facts of it, as an explanation.

The state that the decoder keeps from one request to the next is not read. The explanation says only what was tried: the
requests, in order, and the outcome of the last one with and without the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eqcheck.case.record import Case
from eqcheck.contract.decoders import CACHE_STATES
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.text import eos_words
from eqcheck.hashlm.hashing import LAYERS, MODEL, OTHER_WEIGHTS, POSITION
from eqcheck.hashlm.trace import TARGET
from eqcheck.result.outcome import HANG, Outcome
from eqcheck.truth.continuation import continue_row


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
    often = f" ({times} of {times} times, each in a new process)" if times > 1 else ""
    others = "the earlier request" if len(case.before) == 1 else f"the {len(case.before)} earlier requests"
    changed = any(earlier.weights != case.weights for earlier in case.before)
    lines = [
        f"Alone, the last request is answered correctly{often}.",
        f"After {others} it is not{often}: {_what(wrong)}.",
    ]
    if stale:
        lines.append(f"After {others} under the same weights as the last one, it is answered correctly{often}.")
        lines += _of_other_weights(case, wrong)
    for number, earlier in enumerate(case.before, start=1):
        which = f"Earlier request{f' {number}' if len(case.before) > 1 else ''}:"
        lines.append(f"{which} {summary(earlier, changed)}")
    lines.append(f"Last request: {summary(case, changed)}")
    statement = "stale-weights" if stale else "right-alone"
    return Explanation(
        "state",
        "stale-weights" if stale else "leaks-from-earlier-request",
        row=wrong.row,
        expected=wrong.expected,
        observed=wrong.observed,
        detail="\n".join(lines),
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


def _of_other_weights(case: Case, wrong: Explanation) -> list[str]:
    """Return sentences on what the target of the last request saw of other weights, and whose tokens were emitted."""
    said, facts = list[str](), wrong.facts
    if "stale_call" in facts:
        one, first, last = facts["stale_entries"] == 1, facts["stale_from"], facts["stale_to"]
        at = f"position {first}" if first == last else f"positions {first} to {last}"
        entries = "an entry that was" if one else f"{facts['stale_entries']} entries that were"
        said.append(
            f"In call {facts['stale_call']} of the last request, batch row {facts['stale_row']} of the target attends "
            f"to {entries} written under other weights ({at})."
        )
    count = len(wrong.observed_row)
    if count > 1 and wrong.row is not None and any(_emits(earlier, case, wrong) for earlier in case.before):
        said.append(
            f"Row {wrong.row} is what the target of the earlier request would emit: {count} of {count} tokens are "
            "those of the weights before."
        )
    return said


def _emits(earlier: Case, case: Case, wrong: Explanation) -> bool:
    """Return whether the wrong row is that of the target that an earlier request had."""
    assert wrong.row is not None
    family, size, seed, _ = earlier.weights
    options = case.options[wrong.row]
    uncut, _ = continue_row(family, size, seed, case.prompts[wrong.row], case.max_new_tokens)
    return earlier.weights != case.weights and options.cut(uncut) == wrong.observed_row


def _what(wrong: Explanation) -> str:
    if wrong.row is None or wrong.token_index is None:
        return f"{wrong.fingerprint.partition(':')[0]}, {wrong.detail}"
    place = f"new token {wrong.token_index} of row {wrong.row}"
    if wrong.observed is None:
        return f"{place} is missing, it must be {wrong.expected}"
    right = "the row must end before it" if wrong.expected is None else f"it must be {wrong.expected}"
    return f"{place} is {wrong.observed}, {right}"


def summary(case: Case, weights: bool = False) -> str:
    """A request in one line; with the ``weights`` of its models, where these differ."""
    rows = f"{len(case.prompts)} requests, " if len(case.prompts) > 1 else ""
    prompts = " | ".join(" ".join(map(str, prompt)) for prompt in case.prompts)
    parts = [
        f"{rows}prompt{'s' if rows else ''} {prompts}; max_new_tokens {case.max_new_tokens}",
        f"K = {case.num_draft_tokens}",
        eos_words(case.eos_token_ids),
        f"pad id {case.pad_token_id}",
        f"{case.padding_side} padding",
        f"family {case.family}",
    ]
    if weights:
        _, _, target, draft = case.weights
        parts.append(
            f"weights of seed {target}" if target == draft else f"weights of seed {target} (target) and {draft} (draft)"
        )
    if case.cache_state != "empty":
        parts.append(f"cache state {case.cache_state} ({CACHE_STATES[case.cache_state]})")
    return ", ".join(parts)
