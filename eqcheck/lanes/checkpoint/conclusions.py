"""The conclusions from all counts of an audit on checkpoints: facts, and warnings about what it cannot say."""

from __future__ import annotations

from collections import Counter

from eqcheck.checkpoints import dictation
from eqcheck.contract.decoders import CAPABILITIES
from eqcheck.explanation.notice import INCONCLUSIVE, VACUOUS, Notice
from eqcheck.explanation.records import many
from eqcheck.lanes.about import CHECKPOINT
from eqcheck.lanes.checkpoint.changing import COUNTERS
from eqcheck.lanes.checkpoint.drawing import SETTINGS
from eqcheck.lanes.lane import EXACT_LAW, LESS
from eqcheck.result import declining, losses
from eqcheck.result.findings import Audit
from eqcheck.result.tally import DICTATED, SPEAKS, Tally

_NARROWER = {"only-dictated-drafts": ("dictated-drafts",), "no-drafts": ("ngram", "dictated-drafts")}
"""Capabilities that say how little a decoder does, and what nobody misses of it then."""
# A need of cases, the counter by which an engine tells that it came to that, and the words where none does.
_UNSEEN = (
    ("kv_blocks", "preemptions", "preemption", "that need more KV blocks than there are that a row was preempted"),
    ("prefix_caching", "prefix_hits", "use of a cache", "with prefix caching that a cached beginning was used"),
)

_IF_MISSED = {"kv-blocks": "one whose rows need more kv-blocks than there are"}


def conclusions(result: Audit) -> None:
    """Draw conclusions from the counts and the findings of ``result`` into its facts and warnings."""
    if result.unsettled:
        cases = many(result.unsettled, "failing case")
        result.warnings.append(f"{cases} without a finding: there was no time to confirm more")
    observed = result.tally.observed
    drafted, accepted = observed["drafted"], observed["accepted"]
    rounds = _dictated_rounds(result)
    result.facts |= {
        "capabilities": list(result.decoder.capabilities),
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "dictated_rounds": {
            name.removesuffix(f" {dictation.ASKED}"): (
                count,
                rounds[name.replace(dictation.ASKED, dictation.PLAYED)],
            )
            for name, count in sorted(rounds.items())
            if name.endswith(f" {dictation.ASKED}")
        },
    }
    result.warnings += _warnings(result)


def _warnings(result: Audit) -> list[str]:
    """The warnings about things that the audit cannot say."""
    warnings, tally = list[str](), result.tally
    claimed = {*result.decoder.capabilities, *_NARROWER}
    claimed |= {other for name in result.decoder.capabilities for other in _NARROWER.get(name, ())}
    lacking = [name for name in CAPABILITIES if name not in claimed]
    if lacking and result.decoder.checkpoints:
        warnings.append(f"capabilities not claimed, so not exercised: {', '.join(lacking)}")
    if "temperature" in claimed and result.decoder.dtype in LESS and EXACT_LAW not in result.decoder.kinds:
        said = f"in {result.decoder.dtype} the laws of the checkpoint {EXACT_LAW} are exact, which is not in kinds="
        warnings.append(f"no row was sampled: {said}")
    essential = ["several_rows", "ragged_prompts"]
    if tally.observed[SPEAKS]:
        essential += ["accepted", "rejected"]
    drafts = result.decoder.checkpoints and "no-drafts" not in result.decoder.capabilities
    warnings += silent(tally) if drafts else []  # others are given a draft that is counted elsewhere
    missing = declining.unseen(essential, result.coverage, result.decoder.requires)
    if missing and tally.run:
        said = f"no case was seen to exercise: {'; '.join(f'{n} ({CHECKPOINT.counters[n]})' for n in missing)}"
        warnings.append(Notice(said, VACUOUS))
    warnings += [*_about_rounds(result), *losses.warnings(losses.due(tally.observed)), *_about_contexts(result)]
    for needed, seen, what, happened in _UNSEEN:
        if (cases := result.coverage.get(needed)) and not result.coverage.get(seen):
            warnings.append(f"{what} was not seen: the engine says of none of {many(cases, 'case')} {happened}")
    warnings += declining.of_requirements(result.decoder)
    warnings += declining.of_ends(result.decoder, result.coverage) if tally.run else []
    warnings += declining.too_many(tally.declined, tally.drawn)
    warnings += refused(tally, result.decoder.dtype)
    # A profile says in its first line what it asks; an engine that declines everything is told so.
    warnings += _unasked(result) if not result.options.profile and (tally.run or not tally.drawn) else []
    if result.doubtful:
        count = sum(finding.count for finding in result.doubtful)
        ids = ", ".join(finding.case.id for finding in result.doubtful[:5])
        said = f"{many(count, 'failing case')} did not fail in the same way when decoded alone by a new engine ({ids})"
        warnings.append(Notice(f"{said}; what was decoded before may matter, so this is no violation", INCONCLUSIVE))
    return warnings


def _unasked(result: Audit) -> list[str]:
    """The warning about checkpoints, settings and options that the decoder claims, and that no case has had so far."""
    met = {name.split(" ", 1)[0] for name in result.tally.served}
    missed = [f"on the checkpoint {kind}" for kind in result.decoder.kinds if kind not in met]
    counters = {option.replace("_", "-"): counter for counter, options in COUNTERS.items() for option in options}
    counters |= {name: name.replace("-", "_") for name in (*SETTINGS, "row-limits", "row-eos")}
    claimed = [name for name in counters if name in result.decoder.capabilities]
    changing = {option.replace("_", "-") for options in COUNTERS.values() for option in options}
    missed += [
        f"one in which {name} changes a token" if name in changing else _IF_MISSED.get(name, f"with {name}")
        for name in claimed
        if not result.coverage.get(counters[name])
    ]
    said = "the decoder claims more than was asked: give the audit more time, or more cases"
    return [f"no case was {', '.join(missed)}: {said}"] if missed else []


def refused(tally: Tally, dtype: str) -> list[str]:
    """A warning for each kind of checkpoint on which the engine declined every case, or failed in the same way.

    >>> served = Counter({"mla model skipped no MLA": 3, "full model equivalent ": 2})
    >>> print(*refused(Tally(served=served), "float16"))
    checkpoint mla in float16: every case was declined (no MLA); leave it out of kinds= if the engine does not load it
    """
    by_kind: dict[str, Counter[tuple[str, str]]] = {}
    for name, count in tally.served.items():
        kind, _, status, why = name.split(" ", 3)
        by_kind.setdefault(kind, Counter())[status, why] += count
    warnings = []
    for kind, seen in by_kind.items() if len(by_kind) > 1 else ():
        whys = {why for _, why in seen}
        if "" in whys or not (len(whys) == 1 or {status for status, _ in seen} == {"skipped"}):
            continue
        ends = "was declined" if ("skipped", min(whys)) in seen else "ended"
        said = f"checkpoint {kind or 'random'} in {dtype}: every case {ends} ({'; '.join(sorted(whys)[:2])})"
        warnings.append(f"{said}; leave it out of kinds= if the engine does not load it")
    return warnings


def silent(tally: Tally) -> list[str]:
    """The warning about a decoder that says nothing of its draft tokens."""
    said = "the decoder does not say how many draft tokens it proposed: nothing shows that it speculated"
    return [said] if tally.run and not tally.observed[SPEAKS] else []


def _dictated_rounds(result: Audit) -> Counter[str]:
    observed = result.tally.observed.items()
    return Counter({name.removeprefix(DICTATED): n for name, n in observed if name.startswith(DICTATED)})


def _about_rounds(result: Audit) -> list[str]:
    """The warnings about rounds of dictated drafts that are wrong, whatever the tokens are."""
    if not result.coverage.get("dictated"):
        return []
    rounds = _dictated_rounds(result)
    asked, warnings = rounds[dictation.ASKED], list[str]()
    if not rounds[dictation.PLAYED]:
        warnings.append(Notice("draft tokens were dictated, and no round was seen to be played as asked", VACUOUS))
    if rounds[dictation.OTHERS]:
        warnings.append(
            f"in {many(rounds[dictation.OTHERS], 'round')} of {asked} the engine was given other draft tokens than the "
            "dictated ones: what hands them over is wrong, and those rounds show nothing of what was asked"
        )
    if rounds[dictation.FEWER]:
        warnings.append(
            f"in {many(rounds[dictation.FEWER], 'round')} of {asked} fewer tokens came than the draft tokens that the "
            "engine was given allow: right ones were lost. This costs speed, not output"
        )
    return warnings


def _about_contexts(result: Audit) -> list[str]:
    harmless = result.coverage.get("harmless_context", 0)
    if not harmless:
        return []
    return [
        f"in {many(harmless, 'case')} a query was read to see something wrong, and yet every row is right: "
        "position, mask or cache is wrong, and the tokens are right by luck"
    ]
