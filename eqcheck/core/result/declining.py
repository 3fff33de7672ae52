"""The cases that a decoder declined, in words, and when an audit is left without meaning by it.

An audit is VACUOUS when more than half of its cases were declined, or every case of a family, a padding side or a cache
state that the decoder claims. Cases that a precondition (``requires=``) keeps from being drawn do not count: they are
said in a warning of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import one_line
from eqcheck.contract.requirements import told
from eqcheck.core.explanation.notice import LIMIT, VACUOUS, Notice
from eqcheck.core.result.claims import Claim
from eqcheck.core.result.tally import Alike, Tally

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
    most = one_line(Counter(reasons).most_common(1)[0][0], 50)
    said = f"{sum(reasons.values())} of {total} cases were declined, most with {most!r}; declare it in requires=(...)"
    return [Notice(f"{said}, and cases are drawn that the decoder takes", VACUOUS)]


def lacking(missing: Sequence[str]) -> str:
    """The words of a VACUOUS warning about essential things that no case exercised, as many as fit a line.

    >>> print(lacking(["more than one row", "an EOS among accepted drafts"]))
    no case had: more than one row; an EOS among accepted drafts. Draw more cases, or check that the decoder speculates
    """
    last = ". Draw more cases, or check that the decoder speculates"
    for shown in range(len(missing), 0, -1):
        more = f"; and {len(missing) - shown} more" if shown < len(missing) else ""
        said = f"no case had: {'; '.join(missing[:shown])}{more}{last}"
        if len(said) + len(VACUOUS) + 2 <= LIMIT:
            break
    return said


def unseen(essential: Iterable[str], coverage: Mapping[str, int], requires: Iterable[str]) -> list[str]:
    """The essential counters that stayed at zero, without the ones that preconditions keep there.

    >>> unseen(("ragged_prompts", "eos_inside_block"), {}, ("no-eos",))
    ['ragged_prompts']
    """
    kept = {name for one in requires for name in KEPT_AWAY.get(one, ())}
    return [name for name in essential if not coverage.get(name) and name not in kept]


def of_requirements(decoder: Decoder) -> list[str]:
    """A warning of the cases that the decoder's preconditions keep away; none where it has no preconditions."""
    needs = one_line("; ".join(told(name) for name in decoder.requires), 140)
    return [f"requires= left out other cases; in those drawn: {needs}"] if needs else []


def of_ends(decoder: Decoder, tally: Tally) -> list[str]:
    """Warnings of what the decoder declares about rows and their ends, and was not seen to do in the cases run."""
    warnings, coverage = list[str](), tally.coverage
    if "finish-reason" in decoder.capabilities and not coverage.get("finish_reason"):
        said = "finish-reason is declared, and no row came with one"
        warnings.append(f"{said}: return eqcheck.Completion(tokens, finish_reason=...) in place of a list")
    if "logprobs" in decoder.capabilities and not coverage.get("logprobs"):
        warnings.append("logprobs is declared, and no row came with any: return eqcheck.Completion(..., logprobs=...)")
    asked = tally.tested[Claim("capability", "prompt-logprobs")]  # by some lanes alone
    if asked and "prompt-logprobs" in decoder.capabilities and not coverage.get("prompt_logprobs"):
        said = "prompt-logprobs is declared, and no row came with any"
        warnings.append(f"{said}: return eqcheck.Completion(..., prompt_logprobs=...)")
    if coverage.get("to_cancel") and not coverage.get("cancelled"):
        warnings.append(
            "cancel is declared, and rows to be cancelled were decoded to their ends: heed row.cancel_after"
        )
    if coverage.get("stops") and not coverage.get("stopped"):
        warnings.append("stop-sequences is declared, and none ended a row: draw more cases, or heed row.stop_sequences")
    return warnings


def warnings_of(decoder: Decoder, tally: Tally) -> list[str]:
    """Warnings of the cases that preconditions keep away, and of the claims that declining leaves without meaning."""
    warnings = of_requirements(decoder)
    declined = sum(tally.declined.values())
    warnings += too_many(tally.declined, tally.run + declined)
    if not tally.run:
        return warnings
    warnings += of_ends(decoder, tally)
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
                reasons = tally.by(lambda one: one.declined, partial(_declined_at, at)).most_common(1)
                said = f"all {drawn[at]} cases of {what} {name} were declined ({one_line(reasons[0][0], 60)})"
                warnings.append(Notice(f"{said}: accept such cases or do not claim it", VACUOUS))
    return warnings


def _declined_at(at: tuple[str, str], one: Alike) -> bool:
    return one.claimed and bool(one.declined) and at in one.axes
