"""Decide which findings are one, and which other cases show one."""

from __future__ import annotations

from dataclasses import replace

from eqcheck.contract.escaping import printable
from eqcheck.explanation.text import render
from eqcheck.result.findings import Audit, Finding, OtherCase

_OTHERS, _OTHER_LENGTH = 4, 3000  # other cases of a finding, and characters of each


def one_of(earlier: Finding, later: Finding) -> Finding | None:
    """One of two findings, where they need the same options and have one cause or look alike; an explained one stays.

    Several fingerprints that were read can prove to be one, or `unattributed`.
    """
    components = {earlier.explanation.component, later.explanation.component}
    alike = set(earlier.seen) & set(later.seen) and len(components - {"unattributed"}) < 2
    if earlier.needs != later.needs or not (alike or earlier.fingerprint == later.fingerprint):
        return None
    better = earlier.explanation.component == "unattributed" != later.explanation.component
    return replace(later if better else earlier, seen=tuple(dict.fromkeys(earlier.seen + later.seen)))


def others_of(result: Audit, finding: Finding) -> tuple[OtherCase, ...]:
    """The first small cases, as they were drawn, that were read to fail by the cause of a finding."""
    shown: list[OtherCase] = []
    for outcome in result.outcomes:
        e = outcome.explanation
        if e is None or not outcome.failed or e.fingerprint != finding.fingerprint or outcome.case == finding.case:
            continue
        case, claimed = outcome.case.to_dict(), result.claims(outcome.case)
        if len(str(case)) <= _OTHER_LENGTH and claimed == (finding.standing != "discovery"):
            text = printable(render(e))[:_OTHER_LENGTH]
            shown.append(OtherCase(case, text, e.row, e.token_index, e.expected, e.observed))
        if len(shown) == _OTHERS:
            break
    return tuple(shown)
