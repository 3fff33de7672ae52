"""Hypothesis strategies that draw cases so that small is simple.

Shrinking gives one short row before two, few new tokens before many, zero accepted before some, no EOS before one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from eqcheck.case import Case
from eqcheck.contract import CLAIMED, PADDING_SIDES, TAKEN
from eqcheck.hashing import WINDOW, continue_row
from eqcheck.requirements import checked

VOCAB_SIZE = 128
PADS = ("distinct", "eos", "in-prompt", "emitted")


def cases(
    *,
    families: tuple[str, ...] = CLAIMED,
    padding_sides: tuple[str, ...] = PADDING_SIDES,
    cache_states: tuple[str, ...] = TAKEN,
    max_rows: int = 4,
    max_prompt: int = 6,
    max_new_tokens: int = 10,
    max_draft_tokens: int = 4,
    requires: tuple[str, ...] = (),
) -> st.SearchStrategy[Case]:
    """Cases over the given families, padding sides and cache states; the bounds are inclusive.

    EOS tokens are tokens that the target really emits, so they fall inside accepted blocks, on corrections, on
    bonus tokens, first, and at the limit; now and then one occurs in a prompt. The pad id is a token that never
    occurs, or an EOS, or a token of a prompt, or an emitted one. ``requires`` names preconditions
    (`eqcheck.contract.REQUIREMENTS`) that every case meets; `UsageError` for one that does not exist.

        >>> from hypothesis import find
        >>> find(cases(), lambda case: len(case.prompts) > 1).prompts
        ((0,), (0,))
    """
    rows = 1 if "batch-1" in checked(requires) else max_rows
    return _cases(
        families, padding_sides, cache_states, (rows, max_prompt, max_new_tokens, max_draft_tokens), frozenset(requires)
    )


@st.composite
def _cases(
    draw: st.DrawFn,
    families: tuple[str, ...],
    padding_sides: tuple[str, ...],
    cache_states: tuple[str, ...],
    most: tuple[int, int, int, int],
    requires: frozenset[str],
) -> Case:
    max_rows, max_prompt, max_new_tokens, max_draft_tokens = most
    limit = draw(st.integers(min(2, max_new_tokens) if "min-limit-2" in requires else 1, max_new_tokens))
    k = draw(st.integers(1, max_draft_tokens))
    family = draw(st.sampled_from(families))
    side = draw(st.sampled_from(padding_sides))
    agreement = draw(st.sampled_from((None,) * 7 + (0.0, 0.3, 0.7, 1.0)))
    length = draw(st.integers(1, max_prompt)) if "equal-lengths" in requires else None
    prompt = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=length or 1, max_size=length or max_prompt).map(tuple)
    accepted = st.lists(st.integers(0, k), max_size=min(limit, 5)).map(tuple)
    rows = draw(st.lists(st.tuples(prompt, accepted), min_size=1, max_size=max_rows))
    state = _state(draw, cache_states, family, [prompt for prompt, _ in rows])
    prompts = state.pop("prompts")
    accepts = tuple(accepted for _, accepted in rows) if agreement is None else ()
    truth = [continue_row(family, VOCAB_SIZE, 0, prompt, limit)[0] for prompt in prompts]
    eos = _eos(draw, prompts, truth, requires)
    pad = _pad(draw, prompts, truth, eos, "pad-not-in-prompt" in requires)
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


def _eos(
    draw: st.DrawFn, prompts: tuple[tuple[int, ...], ...], truth: list[tuple[int, ...]], requires: frozenset[str]
) -> list[int]:
    """EOS ids: mostly emitted ones, now and then one of a prompt; fewer where ``requires`` leaves no candidate."""
    if "no-eos" in requires:
        return []
    barred = {token for prompt in prompts for token in prompt} if "eos-not-in-prompt" in requires else set()
    eos = []
    for _ in range(draw(st.integers(0, 1 if "one-eos" in requires else 2))):
        row = truth[draw(st.integers(0, len(truth) - 1))]
        candidates = [token for token in row if token not in barred]
        if candidates:
            eos.append(draw(st.sampled_from(candidates)))
    more = not barred and not (eos and "one-eos" in requires)
    if more and draw(st.integers(0, 7)) == 7:
        eos.append(draw(st.sampled_from(draw(st.sampled_from(prompts)))))
    return eos


def _pad(
    draw: st.DrawFn, prompts: tuple[tuple[int, ...], ...], truth: list[tuple[int, ...]], eos: list[int], apart: bool
) -> int:
    """A pad id; with ``apart`` one that occurs in no prompt."""
    fed = {token for prompt in prompts for token in prompt}
    kind = draw(st.sampled_from([kind for kind in PADS if not (apart and kind == "in-prompt")]))
    row = draw(st.integers(0, len(prompts) - 1)) if kind in ("in-prompt", "emitted") else 0
    if kind == "eos" and eos and not (apart and eos[0] in fed):
        return eos[0]
    if kind == "in-prompt":
        return prompts[row][draw(st.integers(0, len(prompts[row]) - 1))]
    emitted = [token for token in truth[row] if not (apart and token in fed)]
    if kind == "emitted" and emitted:
        return draw(st.sampled_from(emitted))
    used = fed.union(*truth)
    return next(token for token in reversed(range(VOCAB_SIZE)) if token not in used)
