"""The conclusions from all counts of an audit on checkpoints: facts, and warnings about what it cannot say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from eqcheck.audit.coverage_words import CHECKPOINT
from eqcheck.audit.lane import EXACT_LAW, LESS
from eqcheck.contract.decoders import CAPABILITIES, Decoder
from eqcheck.contract.errors import one_line
from eqcheck.core.explanation.notice import INCONCLUSIVE, VACUOUS, Notice
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import unrepeated
from eqcheck.core.result import declining, losses
from eqcheck.core.result.claims import Claim
from eqcheck.core.result.findings import Audit, Finding
from eqcheck.core.result.outcome import HANG, RoundsThat
from eqcheck.core.result.tally import SPEAKS, Tally
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.option_effects import COUNTERS

_NARROWER = {"only-dictated-drafts": ("dictated-drafts",), "no-drafts": ("ngram", "dictated-drafts")}
"""Capabilities that say how little a decoder does, and what nobody misses of it then."""
# A need of cases, the counter by which an engine tells that it came to that, and the words where none does.
_UNSEEN = (
    ("kv_blocks", "preemptions", "preemption", "that need more KV blocks than there are"),
    ("prefix_caching", "prefix_hits", "hit of the prefix cache", "with prefix caching"),
)

COUNTERS_OF = {option: counter for counter, options in COUNTERS.items() for option in options}
"""By option that changes scores, the counter of the cases in which it changed a token."""
_SHOWN = 8  # names in a warning


def conclusions(result: Audit) -> None:
    """Draw conclusions from the counts and the findings of ``result`` into its facts and warnings."""
    if result.unsettled:
        cases = many(result.unsettled, "failing case")
        result.warnings.append(f"there was no time to confirm {cases}: give the audit more time (--budget)")
    observed = result.tally.observed
    drafted, accepted = observed["drafted"], observed["accepted"]
    rounds = result.tally.dictated
    asked = sorted(
        (f"{a_round.accepted}/{a_round.of}", a_round)
        for a_round in rounds
        if a_round.rounds is RoundsThat.ASKED and a_round.of
    )
    result.facts |= {
        "capabilities": list(result.decoder.capabilities),
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "dictated_rounds": {name: (rounds[one], rounds[one._replace(rounds=RoundsThat.PLAYED)]) for name, one in asked},
    }
    result.warnings += _warnings(result)


def _warnings(result: Audit) -> list[str]:
    """The warnings about things that the audit cannot say."""
    decoder, tally = result.decoder, result.tally
    warnings = _undeclared(decoder)
    if "temperature" in decoder.capabilities and decoder.dtype in LESS and EXACT_LAW not in decoder.kinds:
        said = f"in {decoder.dtype} that takes the checkpoint {EXACT_LAW}; add it to kinds="
        warnings.append(f"no sampled rows were tested: {said}")
    essential = ["several_rows", "ragged_prompts"]
    if tally.observed[SPEAKS]:
        essential += ["accepted", "rejected"]
    if decoder.checkpoints and "no-drafts" not in decoder.capabilities:
        warnings += silent(tally)  # others are given a draft that is counted elsewhere
    missing = declining.unseen(essential, result.coverage, result.decoder.requires)
    if missing and tally.run:
        warnings.append(Notice(declining.lacking([CHECKPOINT.counters[name] for name in missing]), VACUOUS))
    warnings += [*_about_rounds(result), *losses.warnings(losses.due(tally.due)), *_about_contexts(result)]
    for needed, seen, what, happened in _UNSEEN:
        if (cases := result.coverage.get(needed)) and not result.coverage.get(seen):
            warnings.append(f"the engine reports no {what} in {many(cases, 'case')} {happened}; does it report them?")
    warnings += declining.of_requirements(result.decoder)
    if tally.run:
        warnings += declining.of_ends(result.decoder, tally)
    warnings += declining.too_many(tally.declined, tally.drawn)
    warnings += refused(tally, result.decoder.dtype)
    # A profile has as many cases as it has; an engine that declines everything has a warning of its own.
    warnings += _without_effect(result) if not result.options.profile and tally.run else []
    return warnings + _unrepeated(result)


def _undeclared(decoder: Decoder) -> list[str]:
    """The warning about capabilities that the decoder does not declare, so that no case has them."""
    claimed = {*decoder.capabilities, *_NARROWER}
    claimed |= {other for name in decoder.capabilities for other in _NARROWER.get(name, ())}
    lacking = [name for name in CAPABILITIES if name not in claimed]
    if not lacking or not decoder.checkpoints:
        return []
    shown = ", ".join(lacking[:_SHOWN]) + (f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else "")
    return [f"not tested, because the adapter does not declare it in capabilities=: {shown}"]


def _unrepeated(result: Audit) -> list[str]:
    """The warnings about failures that did not repeat; a slow machine explains a hang, and nothing else."""
    warnings = list[str]()
    hung = [finding for finding in result.doubtful if finding.fingerprint == HANG]
    others = [finding for finding in result.doubtful if finding.fingerprint != HANG]
    if others:
        said = f"{_cases(others)} did not repeat in a fresh engine, so no violation is counted"
        warnings.append(Notice(f"{said}; the engine may keep state between requests", INCONCLUSIVE))
    if hung:
        said = f"{_cases(hung)}: {unrepeated(hung=True)}, so no violation is counted"
        warnings.append(Notice(f"{said}; if the machine is slow, raise --case-timeout", INCONCLUSIVE))
    return warnings


def _cases(findings: Sequence[Finding]) -> str:
    count, ids = sum(finding.count for finding in findings), ", ".join(finding.case.id for finding in findings[:3])
    return f"{many(count, 'failing case')} ({ids})"


def _without_effect(result: Audit) -> list[str]:
    """The warning about options that were drawn, and changed no token in any case: more cases may show them."""
    names = [option.replace("_", "-") for option in COUNTERS_OF]
    drawn = [name for name in names if result.tally.tested[Claim("capability", name)]]
    idle = [name for name in drawn if not result.coverage.get(COUNTERS_OF[name.replace("-", "_")])]
    idle = [name for name in idle if name in result.decoder.capabilities]
    if "kv-blocks" in result.decoder.capabilities and not result.coverage.get("kv_blocks"):
        idle.append("kv-blocks")
    shown = ", ".join(idle[:_SHOWN]) + (f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else "")
    return [f"in no case did these options change a token: {shown}; draw more cases"] if idle else []


def refused(tally: Tally, dtype: str) -> list[str]:
    """A warning for each kind of checkpoint on which the engine declined every case, or failed in the same way.

    >>> from eqcheck.core.result.tally import ServedCase
    >>> declined, right = ServedCase("mla", "model", "skipped", "no MLA"), ServedCase("full", "model", "equivalent")
    >>> print(*refused(Tally(served=Counter({declined: 3, right: 2})), "float16"))
    VACUOUS: every case on the checkpoint mla in float16 was declined (no MLA); take it out of kinds= if the engine \
cannot load it
    """
    by_kind: dict[str, Counter[tuple[str, str]]] = {}
    for one, count in tally.served.items():
        by_kind.setdefault(one.checkpoint, Counter())[one.status, one.why] += count
    warnings: list[str] = []
    for kind, seen in by_kind.items() if len(by_kind) > 1 else ():
        whys = {why for _, why in seen}
        if "" in whys or not (len(whys) == 1 or {status for status, _ in seen} == {"skipped"}):
            continue
        declined = ("skipped", min(whys)) in seen
        ends = "was declined" if declined else "crashed"
        why = one_line("; ".join(sorted(whys)[:2]), 70)
        said = f"every case on the checkpoint {kind or 'random'} in {dtype} {ends} ({why})"
        kind_of_notice = VACUOUS if declined else ""  # a crash is a finding of its own
        warnings.append(Notice(f"{said}; take it out of kinds= if the engine cannot load it", kind_of_notice))
    return warnings


def silent(tally: Tally) -> list[str]:
    """The warning about a decoder that says nothing of its draft tokens."""
    said = "the engine reports no counts of draft tokens, so nothing shows that it speculated; return them in observed"
    return [said] if tally.run and not tally.observed[SPEAKS] else []


def _about_rounds(result: Audit) -> list[str]:
    """The warnings about rounds of dictated drafts that are wrong, whatever the tokens are."""
    if not result.coverage.get("dictated"):
        return []
    rounds = result.tally.dictated
    asked, warnings = rounds[dictation.ASKED], list[str]()
    if not rounds[dictation.PLAYED]:
        said = "draft tokens were dictated, and no round used them: check how the adapter hands them over"
        warnings.append(Notice(said, VACUOUS))
    if rounds[dictation.OTHERS]:
        warnings.append(
            f"in {rounds[dictation.OTHERS]} of {many(asked, 'round')} the engine got other draft tokens than the "
            "dictated ones: check how the adapter hands them over"
        )
    if rounds[dictation.FEWER]:
        warnings.append(
            f"in {rounds[dictation.FEWER]} of {many(asked, 'round')} correct draft tokens were not accepted. This "
            "costs speed, not output"
        )
    return warnings


def _about_contexts(result: Audit) -> list[str]:
    harmless = result.coverage.get("harmless_context", 0)
    if not harmless:
        return []
    return [
        f"in {many(harmless, 'case')} a query had a wrong position, mask or cache entry, and the output is correct by "
        "chance"
    ]
