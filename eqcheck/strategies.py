"""Hypothesis strategies that draw cases so that small is simple.

Shrinking gives one short row before two, few new tokens before many, zero accepted before some, no EOS before one.
"""

from __future__ import annotations

from hypothesis import strategies as st

from eqcheck.case import Case
from eqcheck.contract import FAMILIES, PADDING_SIDES
from eqcheck.hashing import continue_row

VOCAB_SIZE = 128
PADS = ("distinct", "eos", "in-prompt", "emitted")


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    families: tuple[str, ...] = FAMILIES,
    padding_sides: tuple[str, ...] = PADDING_SIDES,
    max_rows: int = 4,
    max_prompt: int = 6,
    max_new_tokens: int = 10,
    max_draft_tokens: int = 4,
) -> Case:
    """Cases over the given families and padding sides; the bounds are inclusive.

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
    prompts = tuple(prompt for prompt, _ in rows)
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
    )


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
