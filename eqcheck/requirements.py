"""What a decoder may need of a request, as conditions on a request or a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from eqcheck.contract import REQUIREMENTS
from eqcheck.errors import UsageError, did_you_mean


class _Conditions(Protocol):
    """What a `Request` and a `Case` share."""

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def pad_token_id(self) -> int: ...


_MET: dict[str, Callable[[_Conditions], bool]] = {
    "equal-lengths": lambda options: len({len(prompt) for prompt in options.prompts}) <= 1,
    "one-eos": lambda options: len(set(options.eos_token_ids)) <= 1,
    "no-eos": lambda options: not options.eos_token_ids,
    "pad-not-in-prompt": lambda options: not any(options.pad_token_id in prompt for prompt in options.prompts),
    "eos-not-in-prompt": lambda options: (
        not any(set(options.eos_token_ids) & set(prompt) for prompt in options.prompts)
    ),
    "batch-1": lambda options: len(options.prompts) == 1,
    "min-limit-2": lambda options: options.max_new_tokens >= 2,
}


def unmet(options: _Conditions, requires: Iterable[str]) -> list[str]:
    """Those of the preconditions that a request (or a case) does not meet.

        >>> from eqcheck.case import Case
        >>> unmet(Case(prompts=((1, 2), (3,)), max_new_tokens=1), ("equal-lengths", "one-eos", "min-limit-2"))
        ['equal-lengths', 'min-limit-2']

    Raises `UsageError` for a precondition that does not exist.
    """
    return [name for name in checked(requires) if not _MET[name](options)]


def refused(options: _Conditions, requires: Iterable[str]) -> str:
    """Why a decoder with these preconditions is not to be asked; empty where it may be.

    >>> from eqcheck.case import Case
    >>> refused(Case(prompts=((1, 2), (3,))), ("equal-lengths", "one-eos"))
    'it requires equal-lengths'
    """
    names = unmet(options, requires)
    return f"it requires {', '.join(names)}" if names else ""


def checked(requires: Iterable[str]) -> tuple[str, ...]:
    """The preconditions, when all of them exist; else `UsageError`."""
    names = (requires,) if isinstance(requires, str) else tuple(requires)
    for name in names:
        if name not in REQUIREMENTS:
            known = tuple(REQUIREMENTS)
            raise UsageError(f"requires: expected some of {known}, got {name!r}{did_you_mean(name, known)}")
    return names
