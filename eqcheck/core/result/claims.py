"""List what a decoder claims, say which of it a case tests, and name what no case has tested.

A verdict rests on the cases that were drawn. Where none of them was on a claimed checkpoint, or with a claimed option,
the verdict is silent about that claim: such claims are kept as data, beside how many cases would have tested them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from eqcheck.contract.options import SCORING, RowOptions
from eqcheck.core.case.engine import SILENT, EngineCase
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import Sampled
from eqcheck.core.explanation.notice import LIMIT
from eqcheck.core.explanation.records import many

What = Literal["checkpoint", "drafter", "capability", "family", "cache state", "padding side"]
MANY_ROWS = 32  # rows from which a case tests the capability of that name

_OFF = {field.name: field.default for field in fields(RowOptions)}
_OPTIONS = {
    **{name.replace("_", "-"): name for name in (*SCORING, "logprobs", "prompt_logprobs", "stop_sequences", "n")},
    **{name.replace("_", "-"): name for name in ("temperature", "top_k", "top_p", "min_p")},
    "arrivals": "arrival",
    "cancel": "cancel_after",
    "seeds": "seed",
}
"""By capability, the option of a row that uses it wherever it is not at its default."""
_UNEQUAL = {"row-limits": "max_new_tokens", "row-eos": "eos_token_ids"}
"""Capabilities that a case uses where rows differ in this option."""
_SETTINGS = {"token-budget": "token_budget", "kv-blocks": "kv_blocks", "prefix-caching": "prefix_caching"}


@dataclass(frozen=True, order=True)
class Claim:
    """One thing that a decoder claims: ``name`` is which of the ``what``, such as the checkpoint ``window``."""

    what: What
    name: str


@dataclass(frozen=True)
class Unreached:
    """A claim that no drawn case tested; with so many ``cases`` one would have.

    ``cases`` is None where no case within the bounds and preconditions of the audit can test it: then more do not help.
    """

    claim: Claim
    cases: int | None


def claims_in(case: Any) -> frozenset[Claim]:
    """Everything a decoder may claim that this case tests, if it decodes it."""
    claims: list[Claim] = []
    if isinstance(case, EngineCase):
        claims = [Claim("checkpoint", case.checkpoint.partition("-")[0]), Claim("drafter", case.drafting)]
        claims += [Claim("capability", name) for name, field in _SETTINGS.items() if getattr(case, field) is not None]
        silent = any(SILENT in row.accepts for row in case.rows)
        claims += [Claim("capability", "silent-rounds")] if silent else []
        claims += [Claim("capability", "many-rows")] if len(case.rows) >= MANY_ROWS else []
    else:
        claims = [Claim("family", case.family), Claim("padding side", case.padding_side)]
        claims += [Claim("cache state", case.cache_state)] if isinstance(case, Case) else []
    if isinstance(case, EngineCase | Sampled):
        rows = case.options
        used = [name for name, field in _OPTIONS.items() if any(getattr(row, field) != _OFF[field] for row in rows)]
        used += [name for name, field in _UNEQUAL.items() if len({getattr(row, field) for row in rows}) > 1]
    else:
        uses = {"stop-sequences": any(case.stop_sequences), "cancel": any(case.cancel_after), "logprobs": case.logprobs}
        used = [name for name, holds in uses.items() if holds]
    return frozenset([*claims, *(Claim("capability", name) for name in used)])


def untested(claims: Iterable[Claim], cases: Iterable[Any]) -> list[Unreached]:
    """The claims that none of the first cases tests, by how many it takes; ``cases`` are those that would be drawn."""
    left, unreached = set(claims), list[Unreached]()
    for number, case in enumerate(cases, 1):
        if not left:
            break
        now = left & claims_in(case)
        unreached += [Unreached(claim, number) for claim in sorted(now)]
        left -= now
    return [*unreached, *(Unreached(claim, None) for claim in sorted(left))]


def sentence(unreached: Sequence[Unreached], drawn: int, profile: str = "") -> str:
    """The warning about claims that no case tested, in one line, with how many cases would test them all.

    A ``profile`` has as many cases as it has, so there an audit without one is what helps.

    >>> print(sentence([Unreached(Claim("checkpoint", "window"), 30), Unreached(Claim("drafter", "ngram"), 12)], 8))
    8 cases did not test the checkpoint window and the drafter ngram, which the adapter claims; use --cases 30
    """
    possible = [left.cases for left in unreached if left.cases is not None]
    first = f"{many(drawn, 'case')} did not test "
    last = ", which the adapter claims; "
    if profile:
        first, last = f"profile {profile} does not test ", ", which the adapter claims; an audit without a profile does"
    elif len(possible) == len(unreached):
        last += f"use --cases {max(possible)}"
    elif possible:
        last += f"--cases {max(possible)} tests what these bounds and requires= allow"
    else:
        last += "no case within these bounds and requires= does: widen them or claim less"
    groups: dict[str, list[str]] = {}
    for one in unreached:
        groups.setdefault(one.claim.what, []).append(one.claim.name)
    for shown in range(max(map(len, groups.values())), -1, -1):
        named = [_named(what, names, shown) for what, names in groups.items()]
        text = f"{first}{', '.join(named[:-1])}{' and ' if named[1:] else ''}{named[-1]}{last}"
        if len(text) <= LIMIT or not shown:
            break
    return text


def _named(what: str, names: Sequence[str], shown: int) -> str:
    """Some of one sort, so many of them by name."""
    plural = {"capability": "capabilities", "family": "families"}.get(what, f"{what}s")
    if not shown:
        return f"{len(names)} {what if len(names) == 1 else plural}"
    listed = ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
    return f"the {what if len(names) == 1 else plural} {listed}"
