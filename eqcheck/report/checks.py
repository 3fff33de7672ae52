"""An audit as a list of checks, for what shows lists of tests: the verdict first, then a check for each cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eqcheck.explanation.records import many
from eqcheck.report.schema import Report, ReportedViolation

Status = Literal["passed", "failed", "known", "inconclusive"]


@dataclass(frozen=True)
class Check:
    """One thing that was checked; ``message`` is a line, ``text`` all that there is to say."""

    name: str
    status: Status
    message: str = ""
    text: str = ""


def checks(report: Report, allow_declared: bool) -> list[Check]:
    """The checks of one audit; where ``allow_declared``, what the adapter declares as known passes.

    The verdict fails with the causes, so that no list shows a wrong decoder with a verdict that passed.
    """
    causes = [_of_violation(violation, allow_declared) for violation in report.violations]
    doubtful = [
        Check(f"inconclusive: {one.fingerprint}", "inconclusive", "answers do not repeat", _text(one))
        for one in report.inconclusive
    ]
    return [_verdict(report, causes), *causes, *doubtful]


def failing(found: Sequence[Check]) -> list[Check]:
    """Those that need somebody's eye; a verdict whose causes are among them adds nothing to them."""
    bad = [check for check in found if check.status in ("failed", "inconclusive")]
    return bad[1:] if len(bad) > 1 and bad[0] is found[0] else bad


def _verdict(report: Report, causes: Sequence[Check]) -> Check:
    run, failed = many(report.cases.run, "case"), [check for check in causes if check.status == "failed"]
    pair = report.real_pair
    if failed:
        return Check("verdict", "failed", f"{run}: {', '.join(check.name for check in failed)}")
    if report.stale:
        gone = f"declared as known, and not seen any more: {', '.join(report.stale)}; take it out of known="
        return Check("verdict", "failed", gone)
    if report.outdated:
        return Check("verdict", "failed", "; ".join(report.outdated))
    if pair and pair.wrong and not causes:
        return Check("verdict", "failed", f"on trained models {pair.equivalent} of {pair.rows} rows are right")
    if not report.cases.run:
        return Check("verdict", "inconclusive", "nothing was tested")
    if report.interrupted or report.verdict == "inconclusive" or report.inconclusive:
        why = "interrupted" if report.interrupted else "inconclusive"
        return Check("verdict", "inconclusive", f"{run}: {why}")
    return Check("verdict", "passed", f"{run}: {'violations that are known' if causes else report.verdict}")


def _of_violation(violation: ReportedViolation, allow_declared: bool) -> Check:
    known = violation.known_until is not None or (allow_declared and violation.known is not None)
    message = f"{many(violation.count, 'case')}: {violation.cause.meaning}"
    if violation.known is not None:
        message += f" ({violation.in_known_words})"
    return Check(violation.fingerprint, "known" if known else "failed", message, _text(violation))


def _text(violation: ReportedViolation) -> str:
    parts = (violation.explanation, violation.traceback.rstrip(), f"Reproduce: {violation.reproduce}")
    return "\n".join(part for part in parts if part)
