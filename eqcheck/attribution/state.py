"""A request that is right alone and wrong after others: the facts of it, as an explanation.

The state that the decoder keeps from one request to the next is not read. The explanation says only what was tried: the
requests, in order, and the outcome of the last one with and without the others.
"""

from __future__ import annotations

from eqcheck.case.record import Case
from eqcheck.contract.decoders import CACHE_STATES
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.text import eos_words


def leaked(case: Case, wrong: Explanation, times: int = 1) -> Explanation:
    """The violation of a decoder that answers ``case`` wrongly, and rightly without the earlier requests of the case.

    ``wrong`` explains the wrong answer, ``times`` says how often both were seen. The cause that ``wrong`` names is not
    repeated: it was read as if the last request were alone.

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
    lines = [
        f"Alone, the last request is answered correctly{often}.",
        f"After {others} it is not{often}: {_what(wrong)}.",
    ]
    for number, earlier in enumerate(case.before, start=1):
        which = f"Earlier request{f' {number}' if len(case.before) > 1 else ''}:"
        lines.append(f"{which} {summary(earlier)}")
    lines.append(f"Last request: {summary(case)}")
    return Explanation(
        "state",
        "leaks-from-earlier-request",
        row=wrong.row,
        expected=wrong.expected,
        observed=wrong.observed,
        detail="\n".join(lines),
        facts={"statement": "right-alone", "earlier_requests": len(case.before), "seen": times},
        expected_row=wrong.expected_row,
        observed_row=wrong.observed_row,
        wrong_rows=wrong.wrong_rows,
    )


def _what(wrong: Explanation) -> str:
    if wrong.row is None or wrong.token_index is None:
        return f"{wrong.fingerprint.partition(':')[0]}, {wrong.detail}"
    place = f"new token {wrong.token_index} of row {wrong.row}"
    if wrong.observed is None:
        return f"{place} is missing, it must be {wrong.expected}"
    right = "the row must end before it" if wrong.expected is None else f"it must be {wrong.expected}"
    return f"{place} is {wrong.observed}, {right}"


def summary(case: Case) -> str:
    """A request in one line."""
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
    if case.cache_state != "empty":
        parts.append(f"cache state {case.cache_state} ({CACHE_STATES[case.cache_state]})")
    return ", ".join(parts)
