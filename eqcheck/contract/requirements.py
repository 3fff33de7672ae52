"""Preconditions of a decoder: how each is named, whether a request meets it, and how drawn rows are given it.

Two names have a number in them: ``id-0-not-in-prompt`` keeps the id 0 out of prompts, and so for every other id;
``prompt-2`` asks for prompts of at least 2 tokens, and so for every other number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from eqcheck.contract.errors import Unsupported, UsageError, did_you_mean
from eqcheck.contract.options import RowOptions

REQUIREMENTS = {
    "equal-lengths": "all prompts are of one length",
    "one-eos": "there is at most one EOS id",
    "no-eos": "there is no EOS id",
    "pad-not-in-prompt": "the pad id occurs in no prompt",
    "eos-not-in-prompt": "no EOS id occurs in a prompt",
    "batch-1": "there is one row",
    "min-limit-2": "max_new_tokens is at least 2",
    "same-weights": "target and draft keep their weights between requests",
    "one-temperature": "all rows have one temperature",
    "one-sampling": "all rows have one temperature, top_k, top_p and min_p",
    "sampled-n": "a request with several answers is sampled",
}
"""Requirements of every request, but for those that have a number in their names; see `told`."""
_BARRED = re.compile(r"id-(0|[1-9]\d{0,8})-not-in-prompt")
_LEAST = re.compile(r"prompt-([2-9]|[1-9]\d{1,2})")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
Prompts = Sequence[tuple[int, ...]]


class _Asked(Protocol):
    """A `Request`, as far as it matters here."""

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def rows(self) -> Sequence[RowOptions]: ...


def _fed(asked: _Asked) -> set[int]:
    return {token for prompt in asked.prompts for token in prompt}


def _eos(asked: _Asked) -> set[int]:
    """The EOS ids of the request and of its rows."""
    return {*asked.eos_token_ids, *(token for row in asked.rows for token in row.eos_token_ids)}


def _alike(asked: _Asked, *names: str) -> bool:
    return all(len({getattr(row, name) for row in asked.rows}) <= 1 for name in names)


_MET: dict[str, Callable[[_Asked], bool]] = {
    "equal-lengths": lambda asked: len({len(prompt) for prompt in asked.prompts}) <= 1,
    "one-eos": lambda asked: len(_eos(asked)) <= 1,
    "no-eos": lambda asked: not _eos(asked),
    "pad-not-in-prompt": lambda asked: asked.pad_token_id not in _fed(asked),
    "eos-not-in-prompt": lambda asked: not _eos(asked) & _fed(asked),
    "batch-1": lambda asked: len(asked.prompts) == 1,
    "same-weights": lambda asked: True,  # which takes more than one request to break
    "min-limit-2": lambda asked: min([asked.max_new_tokens, *(row.max_new_tokens for row in asked.rows)]) >= 2,
    "one-temperature": lambda asked: _alike(asked, "temperature"),
    "one-sampling": lambda asked: _alike(asked, *_SAMPLING),
    "sampled-n": lambda asked: all(row.n == 1 or row.temperature for row in asked.rows),
}


def barred(requires: Iterable[str]) -> frozenset[int]:
    """The ids that are to stand in no prompt.

    >>> sorted(barred(("no-eos", "id-7-not-in-prompt", "id-0-not-in-prompt")))
    [0, 7]
    """
    return frozenset(int(found[1]) for name in requires if (found := _BARRED.fullmatch(name)))


def least_prompt(requires: Iterable[str]) -> int:
    """The tokens that each prompt is to have at least.

    >>> least_prompt(("no-eos", "prompt-2", "prompt-3")), least_prompt(())
    (3, 1)
    """
    return max([1, *(int(found[1]) for name in requires if (found := _LEAST.fullmatch(name)))])


def lengthened(requires: Iterable[str], prompts: Prompts) -> list[tuple[int, ...]]:
    """The prompts, those too short for what is required repeated.

    >>> lengthened(("prompt-3",), [(1, 2), (4, 5, 6, 7)])
    [(1, 2, 1), (4, 5, 6, 7)]
    """
    least = least_prompt(requires)
    return [prompt if len(prompt) >= least else (prompt * least)[:least] for prompt in prompts]


def told(name: str) -> str:
    """A precondition in words; empty for one that does not exist.

    >>> told("batch-1"), told("id-7-not-in-prompt"), told("prompt-2"), told("batch-2")
    ('there is one row', 'the id 7 occurs in no prompt', 'each prompt has at least 2 tokens', '')
    """
    if found := _LEAST.fullmatch(name):
        return f"each prompt has at least {found[1]} tokens"
    found = _BARRED.fullmatch(name)
    return f"the id {found[1]} occurs in no prompt" if found else REQUIREMENTS.get(name, "")


def checked(requires: Iterable[str]) -> tuple[str, ...]:
    """The preconditions, when all of them exist; else `UsageError`."""
    known = f"some of {tuple(REQUIREMENTS)}, or id-N-not-in-prompt with an id for N, or prompt-N with a number"
    if isinstance(requires, str):
        raise UsageError(f"requires: expected a tuple with {known}, got {requires!r}")
    for name in requires:
        if not isinstance(name, str) or not told(name):
            raise UsageError(f"requires: expected {known}, got {name!r}{did_you_mean(str(name), tuple(REQUIREMENTS))}")
    return tuple(requires)


def unmet(asked: Any, requires: Iterable[str]) -> list[str]:
    """Return the preconditions that a `Request` does not meet, or a case, or one of the requests before it.

        >>> from eqcheck.core.case.record import Case
        >>> unmet(Case(prompts=((1, 2), (3,)), max_new_tokens=1), ("equal-lengths", "one-eos", "id-3-not-in-prompt"))
        ['equal-lengths', 'id-3-not-in-prompt']

    Raises `UsageError` for a precondition that does not exist.
    """
    if not (requires := checked(requires)):
        return []
    of_case = hasattr(asked, "request")
    requests: list[_Asked] = [one.request() for one in (*asked.before, asked.alone)] if of_case else [asked]
    changes = of_case and any(earlier.weights != asked.weights for earlier in asked.before)
    kept = {"same-weights": not changes}
    return [name for name in requires if not (kept.get(name, True) and all(_meets(one, name) for one in requests))]


def _meets(asked: _Asked, name: str) -> bool:
    if name in _MET:
        return _MET[name](asked)
    return not barred([name]) & _fed(asked) and min(map(len, asked.prompts), default=0) >= least_prompt([name])


def refused(asked: Any, requires: Iterable[str]) -> str:
    """Return why a decoder with these preconditions is not to be asked; empty where it may be.

    >>> from eqcheck.core.case.record import Case
    >>> refused(Case(prompts=((1, 2), (3,))), ("equal-lengths", "one-eos"))
    'it requires equal-lengths'
    """
    names = unmet(asked, requires)
    return f"it requires {', '.join(names)}" if names else ""


class Guarded:
    """The decoder's function for requests that meet the preconditions; it declines others.

    Cases are drawn so that they meet them. A case derived from one, to explain it or to make it smaller, may not.
    """

    def __init__(self, generate: Callable[..., Any], requires: tuple[str, ...]) -> None:
        self._generate, self._requires = generate, requires

    def __call__(self, target: Any, draft: Any, request: Any) -> Any:
        if declined := refused(request, self._requires):
            raise Unsupported(declined)
        return self._generate(target, draft, request)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_generate"], name)


def without_ids(prompts: Prompts, ids: Iterable[int], vocabulary: int) -> list[tuple[int, ...]]:
    """The prompts, each of these ``ids`` replaced by the next one that may stand there.

        >>> without_ids([(1, 2), (9, 3)], {2, 3, 9}, 10)
        [(1, 4), (0, 4)]

    Raises `UsageError` where none is left.
    """
    out = set(ids)
    free = [token for token in range(vocabulary) if token not in out]
    if not free:
        raise UsageError(f"requires: expected an id that may stand in a prompt, got none of {vocabulary}")
    instead = {token: next((one for one in free if one > token), free[0]) for token in out}
    return [tuple(instead.get(token, token) for token in prompt) for prompt in prompts]


def prompts_meeting(requires: Sequence[str], prompts: Prompts, pad: int, vocabulary: int) -> list[tuple[int, ...]]:
    """Drawn prompts, changed as little as it takes to meet what is required of them beside a pad id.

    >>> prompts_meeting(("equal-lengths", "id-5-not-in-prompt"), [(4, 5), (1, 2, 3), (9,)], 0, 64)
    [(4, 6), (1, 2), (9, 9)]
    """
    prompts = lengthened(requires, prompts)
    length = len(prompts[0])
    if "batch-1" in requires:
        prompts = prompts[:1]
    if "equal-lengths" in requires:
        prompts = [(prompt * length)[:length] for prompt in prompts]
    return without_ids(prompts, barred(requires) | ({pad} if "pad-not-in-prompt" in requires else set()), vocabulary)


def options_meeting(requires: Sequence[str], prompts: Prompts, rows: Sequence[RowOptions]) -> list[RowOptions]:
    """Drawn options of rows, changed as little as it takes to meet what is required of them beside these prompts.

    >>> [row.temperature for row in options_meeting(("one-temperature",), [(1,), (2,)],
    ...                                             [RowOptions(4, temperature=0.7), RowOptions(4)])]
    [0.7, 0.7]
    """
    fed = {token for prompt in prompts for token in prompt}
    ends = [token for row in rows for token in row.eos_token_ids]
    if "eos-not-in-prompt" in requires:
        ends = [token for token in ends if token not in fed]
    if {"one-eos", "no-eos"} & set(requires):
        ends = [] if "no-eos" in requires else ends[:1]
    alike = _SAMPLING if "one-sampling" in requires else _SAMPLING[:1] if "one-temperature" in requires else ()
    least = 2 if "min-limit-2" in requires else 1
    return [
        replace(
            row,
            max_new_tokens=max(least, row.max_new_tokens),
            eos_token_ids=tuple(token for token in row.eos_token_ids if token in ends),
            n=row.n if row.temperature or "sampled-n" not in requires else 1,
            **{name: getattr(rows[0], name) for name in alike},
        )
        for row in rows
    ]
