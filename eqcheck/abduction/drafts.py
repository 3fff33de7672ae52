"""The drafts of an engine whose drafter is known: looked up in the text, or of a draft with a stale cache."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.case.engine import EngineCase
from eqcheck.checkpoints.dictation import agreeing, drafts
from eqcheck.construction.function import Function
from eqcheck.contract.options import RowOptions

Branch = dict[int, list[int]]  # the tokens that are drafted after so many committed ones


def with_prompts(case: EngineCase, prompts: Sequence[Sequence[int]], branches: list[Branch]) -> list[Branch]:
    """The same proposals, and those behind the prompts too, where drafts are dictated."""
    first = [list(own[: case.num_draft_tokens]) for own in drafts(case)]
    places = zip(branches, prompts, first, strict=False)
    return [branch | {len(prompt): tokens} for branch, prompt, tokens in places] if first else branches


def stale(draft: Function, text: list[int], start: int, k: int, limit: int, since: int) -> Branch:
    """The proposals of a built draft that sees what was rejected, once it was fed more than ``since`` tokens.

    The ``text`` is prompt and output, which begins at ``start`` and may have ``limit`` tokens. As many are drafted as
    may still come: the bonus token has no place of its own there.
    """
    branch: Branch = {}
    at, fed, feed = start, text[: start - 1], text[start - 1 : start]
    while at < len(text):
        drafts = branch[at] = draft.emitted([*fed, *feed][-draft.field :], k) if k else []
        fed = [*fed, *feed, *drafts[:-1]]
        accepted = agreeing(drafts[: start + limit - at], text[at:])
        if len(fed) <= since:
            fed = fed[: at + accepted]
        feed = [*drafts[-1:] * (accepted == k > 0), *text[at + accepted : at + accepted + 1]]
        at += accepted + 1
    return branch


def allowed(options: RowOptions, before: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The drafts up to the first that the row's grammar forbids, where these tokens count before them."""
    states = options.ruled([*before, *drafts], len(before), len(drafts)) if options.grammar else ()
    fits = [token in ids for token, ids in zip(drafts, states, strict=False)]
    return list(drafts[: fits.index(False) if False in fits else len(drafts)])


def looked_up(text: Sequence[int], k: int) -> list[int]:
    """The K tokens that follow where the last two tokens of a text, or else the last, first stood before.

    >>> looked_up([5, 1, 2, 7, 9, 2, 1, 2], 3), looked_up([4, 6, 4], 3), looked_up([4, 6], 3)
    ([7, 9, 2], [6, 4], [])
    """
    for size in (2, 1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[len(text) - size :]:
                return list(text[start + size : start + size + k])
    return []
