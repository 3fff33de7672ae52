"""Hypothesis strategies that draw cases so that small is simple.

Shrinking gives one short row before two, few new tokens before many, zero accepted before some, no EOS before one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from eqcheck.case import Case
from eqcheck.contract import CLAIMED, PADDING_SIDES, TAKEN
from eqcheck.hashing import WINDOW, continue_row

VOCAB_SIZE = 128
PADS = ("distinct", "eos", "in-prompt", "emitted")


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    families: tuple[str, ...] = CLAIMED,
    padding_sides: tuple[str, ...] = PADDING_SIDES,
    cache_states: tuple[str, ...] = TAKEN,
    max_rows: int = 4,
    max_prompt: int = 6,
    max_new_tokens: int = 10,
    max_draft_tokens: int = 4,
) -> Case:
    """Cases over the given families, padding sides and cache states; the bounds are inclusive.

    EOS tokens are tokens that the target really emits, so they fall inside accepted blocks, on corrections, on
    bonus tokens, first, and at the limit; now and then one occurs in a prompt. The pad id is a token that never
    occurs, or an EOS, or a token of a prompt, or an emitted one.

        >>> from hypothesis import find
        >>> find(cases(), lambda case: len(case.prompts) > 1).prompts
        ((0,), (0,))
    """
    limit = draw(st.integers(1, max_new_tokens))
    k = draw(st.integers(1, max_draft_tokens))
    family = draw(st.sampled_from(families))
    side = draw(st.sampled_from(padding_sides))
    agreement = draw(st.sampled_from((None,) * 7 + (0.0, 0.3, 0.7, 1.0)))
    prompt = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=max_prompt).map(tuple)
    accepted = st.lists(st.integers(0, k), max_size=min(limit, 5)).map(tuple)
    rows = draw(st.lists(st.tuples(prompt, accepted), min_size=1, max_size=max_rows))
    state = _state(draw, cache_states, family, [prompt for prompt, _ in rows])
    prompts = state.pop("prompts")
    accepts = tuple(accepted for _, accepted in rows) if agreement is None else ()
    count = len(rows)
    truth = [continue_row(family, VOCAB_SIZE, 0, prompt, limit)[0] for prompt in prompts]
    places = draw(st.integers(0, 2))
    eos = [draw(st.sampled_from(truth[draw(st.integers(0, count - 1))])) for _ in range(places)]
    if draw(st.integers(0, 7)) == 7:
        eos.append(draw(st.sampled_from(draw(st.sampled_from(prompts)))))
    pad = _pad(draw, prompts, truth, eos)
    return Case(
        prompts=prompts,
        max_new_tokens=limit,
        num_draft_tokens=k,
        accepts=accepts,
        agreement=agreement,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        pad_token_id=pad,
        padding_side=side,  # type: ignore[arg-type]
        family=family,
        **state,
    )


def _state(draw: st.DrawFn, taken: tuple[str, ...], family: str, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
    """A cache state and its parameters, with the prompts that go with it; two cases in three start empty."""
    possible = [state for state in taken if state != "wrapped" or family == "window"] or ["empty"]
    more = 2 * (len(possible) - 1) if "empty" in possible else 0
    name = draw(st.sampled_from(["empty"] * more + possible))
    tokens = st.integers(0, VOCAB_SIZE - 1)
    found: dict[str, Any] = {"cache_state": name}
    if name == "chunked":
        found["prefill_chunk"] = draw(st.integers(1, max(1, max(map(len, prompts)) - 1)))
    if name == "prefix":
        prefix = tuple(draw(st.lists(tokens, min_size=1, max_size=4)))
        found["prefix_length"] = len(prefix)
        prompts = [prefix + prompt for prompt in prompts]
    if name == "late-rows":
        found["arrivals"] = tuple(draw(st.integers(0, 4)) for _ in prompts)
    if name == "wrapped":
        before = draw(st.lists(tokens, min_size=WINDOW, max_size=WINDOW))
        prompts = [(*before, *prompt) for prompt in prompts]
    return {"prompts": tuple(prompts), **found}


def _pad(draw: st.DrawFn, prompts: tuple[tuple[int, ...], ...], truth: list[tuple[int, ...]], eos: list[int]) -> int:
    kind = draw(st.sampled_from(PADS))
    row = draw(st.integers(0, len(prompts) - 1)) if kind in ("in-prompt", "emitted") else 0
    if kind == "eos" and eos:
        return eos[0]
    if kind == "in-prompt":
        return prompts[row][draw(st.integers(0, len(prompts[row]) - 1))]
    if kind == "emitted":
        return truth[row][draw(st.integers(0, len(truth[row]) - 1))]
    used = {token for tokens in (*prompts, *truth) for token in tokens}
    return next(token for token in reversed(range(VOCAB_SIZE)) if token not in used)
