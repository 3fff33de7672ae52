"""The cases that a decoder declined, in words, and when an audit is left without meaning by it.

An audit is VACUOUS when more than half of its cases were declined, or every case of a family, a padding side or a cache
state that the decoder claims. Cases that a precondition (``requires=``) keeps from being drawn do not count: they are
said in a warning of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from eqcheck.contract.decoders import REQUIREMENTS, Decoder
from eqcheck.contract.requirements import told
from eqcheck.explanation.notice import VACUOUS, Notice
from eqcheck.result.tally import Alike, Tally

MOST_DECLINED = 0.5
KEPT_AWAY = {
    "no-eos": ("eos_inside_block",),
    "equal-lengths": ("ragged_prompts",),
    "batch-1": ("several_rows", "ragged_prompts", "batched_call", "ragged_round"),
}
"""By precondition, the counters of the lanes that no case which meets it can raise."""
_SHOWN = 3  # reasons


def summary(reasons: Mapping[str, int], total: int) -> str:
    """Return how many cases were declined and why; empty for none.

    >>> summary({"one row at a time": 4}, 10)
    '4 of 10 cases were declined: one row at a time (4)'
    """
    if not reasons:
        return ""
    named = [f"{reason} ({count})" for reason, count in Counter(reasons).most_common(_SHOWN)]
    named += [f"and {len(reasons) - _SHOWN} more reasons"] if len(reasons) > _SHOWN else []
    return f"{sum(reasons.values())} of {total} cases were declined: {'; '.join(named)}"


def too_many(reasons: Mapping[str, int], total: int) -> list[str]:
    """The warning where more than `MOST_DECLINED` of all cases were declined."""
    if sum(reasons.values()) <= MOST_DECLINED * total:
        return []
    said = (
        f"{summary(reasons, total)}; the audit says nothing about them. Declare what the decoder needs of every request"
    )
    some = f"requires=(...) with some of {', '.join(REQUIREMENTS)}: then cases are drawn that it takes"
    return [Notice(f"{said}, {some}", VACUOUS)]


def unseen(essential: Iterable[str], coverage: Mapping[str, int], requires: Iterable[str]) -> list[str]:
    """The essential counters that stayed at zero, without the ones that preconditions keep there.

    >>> unseen(("ragged_prompts", "eos_inside_block"), {}, ("no-eos",))
    ['ragged_prompts']
    """
    kept = {name for one in requires for name in KEPT_AWAY.get(one, ())}
    return [name for name in essential if not coverage.get(name) and name not in kept]


def of_requirements(decoder: Decoder) -> list[str]:
    """A warning of the cases that the decoder's preconditions keep away; none where it has no preconditions."""
    needs = "; ".join(f"{name} ({told(name)})" for name in decoder.requires)
    return [f"only cases were drawn that meet what the decoder requires: {needs}"] if needs else []


def of_ends(decoder: Decoder, coverage: Mapping[str, int]) -> list[str]:
    """Warnings of what the decoder declares about the ends of rows, and was not seen to do in the cases run."""
    warnings = list[str]()
    if "finish-reason" in decoder.capabilities and not coverage.get("finish_reason"):
        said = "the decoder declares finish-reason, and no row came with one"
        warnings.append(f"{said}: return eqcheck.Completion(tokens, finish_reason=...) in place of a list")
    if "logprobs" in decoder.capabilities and not coverage.get("logprobs"):
        warnings.append("the decoder declares logprobs, and no row came with any")
    if "prompt-logprobs" in decoder.capabilities and not coverage.get("prompt_logprobs"):
        warnings.append("the decoder declares prompt-logprobs, and no row came with those of its prompt")
    if coverage.get("to_cancel") and not coverage.get("cancelled"):
        warnings.append("rows were to be cancelled, and each was decoded to its end")
    if coverage.get("stops") and not coverage.get("stopped"):
        warnings.append("rows had stop sequences, and none was seen to end a row")
    return warnings


def warnings_of(decoder: Decoder, tally: Tally) -> list[str]:
    """Warnings of the cases that preconditions keep away, and of the claims that declining leaves without meaning."""
    warnings = of_requirements(decoder)
    declined = sum(tally.declined.values())
    warnings += too_many(tally.declined, tally.run + declined)
    if not tally.run:
        return warnings
    warnings += of_ends(decoder, tally.coverage)
    drawn = tally.places(lambda one: one.claimed)
    passed = tally.places(lambda one: one.claimed and bool(one.declined))
    families = dict.fromkeys(name for axis, name in drawn if axis == "family")
    for what, field, claimed in (
        ("family", "family", families),
        ("padding side", "padding_side", decoder.padding_sides),
        ("cache state", "cache_state", decoder.cache_states),
    ):
        for name in claimed:
            at = (field, name)
            if drawn[at] and drawn[at] == passed[at]:
                reasons = dict(tally.by(lambda one: one.declined, partial(_declined_at, at)).most_common())
                said = f"every case of {what} {name} was declined ({summary(reasons, drawn[at])})"
                warnings.append(Notice(f"{said}; the audit says nothing about that claim", VACUOUS))
    return warnings


def _declined_at(at: tuple[str, str], one: Alike) -> bool:
    return one.claimed and bool(one.declined) and at in one.axes
