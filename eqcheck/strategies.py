"""Draw cases with Hypothesis, so that they shrink well.

Shrinking prefers one short row, few new tokens, no accepted drafts and no EOS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from eqcheck.contract.decoders import CLAIMED, PADDING_SIDES, TAKEN
from eqcheck.contract.errors import CaseError
from eqcheck.contract.extras import missing
from eqcheck.contract.profiles import WIDE, Bounds
from eqcheck.contract.requirements import checked
from eqcheck.core.case.record import Case
from eqcheck.transparent.drawing import VOCAB_SIZE, Choices, Claims, draw_case

try:
    from hypothesis import reject
    from hypothesis import strategies as st
except ModuleNotFoundError:
    raise missing("hypothesis", "eqcheck.strategies") from None

__all__ = ["VOCAB_SIZE", "cases"]
T = TypeVar("T")


def cases(
    *,
    families: tuple[str, ...] = CLAIMED,
    padding_sides: tuple[str, ...] = PADDING_SIDES,
    cache_states: tuple[str, ...] = TAKEN,
    max_rows: int = WIDE.rows,
    max_prompt: int = WIDE.prompt,
    max_new_tokens: int = WIDE.new_tokens,
    max_draft_tokens: int = WIDE.draft_tokens,
    requires: tuple[str, ...] = (),
) -> st.SearchStrategy[Case]:
    """Return a Hypothesis strategy of cases over these families, padding sides and cache states; bounds are inclusive.

    Most cases are small, some are large in one respect or more. EOS ids are tokens that the target really generates, so
    they fall inside accepted blocks, on corrections, on bonus tokens, on the first token and at the limit; sometimes
    one occurs in a prompt. The pad id is unused, or an EOS, or a token of a prompt or output, or the first or last id,
    or one that the target cannot generate. Every case meets the preconditions in ``requires``, as in `eqcheck.decoder`.
    Raises `UsageError` for an unknown precondition.

    Switch off Hypothesis' own clock, as below: the first decode imports torch, and on a busy machine any decode may
    take longer than the 200 ms that Hypothesis allows, which would fail a right decoder.

        >>> import eqcheck
        >>> from hypothesis import HealthCheck, given, settings
        >>> @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=5, database=None)
        ... @given(cases(max_rows=3))
        ... def test_mine(case):
        ...     eqcheck.assert_equivalent(eqcheck.load("eqspec"), case)
        >>> test_mine()
    """
    claims = Claims(families, padding_sides, cache_states, checked(requires))
    return _cases(claims, Bounds(max_rows, max_prompt, max_new_tokens, max_draft_tokens))


@st.composite
def _cases(draw: st.DrawFn, claims: Claims, bounds: Bounds) -> Case:
    try:
        return draw_case(_Draws(draw), claims, bounds)
    except CaseError:  # beyond what a case may ask
        reject()


class _Draws:
    """Let Hypothesis make the choices, and shrink them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        # `st.integers` draws mostly values near the lower end of a wide range.
        return self._draw(st.integers(low, high) if high - low < 64 else st.sampled_from(range(low, high + 1)))

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def some(self, make: Callable[[Choices], T], least: int, most: int) -> list[T]:
        one = st.composite(lambda draw: make(_Draws(draw)))()
        return self._draw(st.lists(one, min_size=least, max_size=most))
