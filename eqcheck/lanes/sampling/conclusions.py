"""The conclusions from all sampled tokens of one audit or of several shards: verdict, exclusions, omissions."""

from __future__ import annotations

from dataclasses import replace

from eqcheck.contract.escaping import one_line
from eqcheck.explanation.notice import INCONCLUSIVE, VACUOUS, Notice
from eqcheck.explanation.records import many
from eqcheck.explanation.statements import power
from eqcheck.lanes.checkpoint.conclusions import silent
from eqcheck.lanes.sampling.evidence import wrong_law
from eqcheck.lanes.sampling.judge import IMPOSSIBLE
from eqcheck.result import declining, losses
from eqcheck.result.findings import Audit, Finding, LawEvidence
from eqcheck.result.outcome import Outcome
from eqcheck.sampling.wealth import DOUBT, VIOLATION, Wealth

ENOUGH = 200  # tokens of a regime, below which it says little
REGIMES = "regimes"  # the fact that names the regimes that are drawn


def conclusions(result: Audit) -> None:
    """The verdict of the evidence, what becomes of findings that rest on it, and what a clean audit excludes."""
    wealth = result.wealth or Wealth()
    verdict = wealth.verdict()
    drafts = "no-drafts" not in result.decoder.capabilities
    result.evidence = LawEvidence(
        tokens=wealth.tokens,
        evidence=wealth.evidence,
        greatest=wealth.supremum,
        threshold=VIOLATION,
        verdict=verdict,
        excludes=result.exclusion.sentences(drafts=drafts) if verdict == "equivalent" and result.exclusion else (),
        regimes=dict(wealth.counts),
        course=wealth.course,
    )
    if verdict == "violation":
        result.findings += _seen_together(result, wealth)
    else:
        result.warnings += _doubts(result, wealth)
        result.findings = [replace(one, standing="inconclusive") if of_law(one) else one for one in result.findings]
    if result.decoder.lossless is not True:
        why = one_line(str(result.decoder.lossless), 120)
        result.warnings.append(f"the decoder does not claim to be lossless (lossless=): {why}")
    result.warnings += _vacuous(result, wealth)
    if result.lane == "checkpoint-sampling":
        result.warnings += losses.warnings(losses.due(result.tally.observed))
        result.warnings += silent(result.tally) if drafts else []
        result.warnings += declining.too_many(result.tally.declined, result.tally.drawn)


def of_law(finding: Finding) -> bool:
    """Return whether a finding is that of a wrong law, seen by its evidence."""
    return finding.explanation.of_law


def law_finding(outcome: Outcome, tokens: int, count: int, lossless: bool) -> Finding:
    """The finding of a wrong law, shown by this case; it was seen after so many ``tokens``."""
    shown = replace(outcome, case=replace(outcome.case, crosses_after=tokens))
    explanation = shown.explanation
    assert explanation is not None
    seen = (explanation.fingerprint, f"sampling/{IMPOSSIBLE}")
    return Finding(shown, explanation, count=count, standing="violation" if lossless else "discovery", seen=seen)


def _seen_together(result: Audit, wealth: Wealth) -> list[Finding]:
    """The finding of a law that the tokens of several shards show to be wrong, and those of none alone."""
    if result.telling is None or wealth.impossible or any(map(of_law, result.findings)):
        return []
    outcome = wrong_law(result.telling[1], wealth, None)
    return [law_finding(outcome, wealth.crossed or wealth.tokens, 1, result.decoder.lossless is True)]


def _doubts(result: Audit, wealth: Wealth) -> list[str]:
    doubts = []
    alone = sum(map(of_law, result.findings))
    if alone:
        said = (
            f"{many(alone, 'shard')} alone reached {power(VIOLATION)}, all together do not: by chance, as one of many "
        )
        said += "does. Rerun that shard's seed; if it repeats, suspect its machine"
        doubts.append(Notice(said, INCONCLUSIVE))
    if wealth.verdict() == "inconclusive" and wealth.tokens:
        said = f"the evidence against the target's distribution is {power(wealth.evidence)} after {wealth.tokens:,} "
        said += f"tokens: between {DOUBT:g} and the limit {power(VIOLATION)}. Draw more tokens: --budget 10m"
        doubts.append(Notice(said, INCONCLUSIVE))
    return list(doubts)


def _vacuous(result: Audit, wealth: Wealth) -> list[str]:
    few = [name for name in result.facts.get(REGIMES, ()) if wealth.counts.get(name, 0) < ENOUGH]
    if wealth.supremum >= VIOLATION or not few or not result.tally.run:
        return []
    said = f"fewer than {ENOUGH} sampled tokens in the regimes {one_line(', '.join(few), 70)}"
    if profile := result.options.profile:  # it says how few it draws
        return [f"{said}, in profile {profile.name}: an audit without a profile draws more"]
    return [Notice(f"{said}: draw more cases", VACUOUS)]
